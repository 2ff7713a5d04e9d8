"""A causal LM as a learner: exact scores, and models that do not fit refused."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from lm_latent_eval.distortion.catalog import load_learner
from lm_latent_eval.distortion.languages.causal import CausalLanguage
from lm_latent_eval.distortion.languages.corpus import TokenIds
from lm_latent_eval.distortion.languages.language import word_tokenizer
from lm_latent_eval.distortion.learners.architectures import (
    ARCHITECTURES,
    Configuration,
    PretrainedStart,
    named_size,
)
from tests.distortion.languages.tiny import gpt2
from tests.distortion.learners.tiny import GPT2, LSTM, MAX_LENGTH, draw


def save(directory, model, words=("a", "b", "never")):
    model.save_pretrained(directory)
    word_tokenizer(words).save_pretrained(directory)
    return directory


def test_what_does_not_fit_is_refused(tmp_path):
    corpus = draw(tmp_path / "corpus", 5)
    longer = draw(tmp_path / "longer", 5, max_length=13)
    save(tmp_path / "other", gpt2(vocab_size=5), ["a", "c", "never"])
    save(tmp_path / "more", gpt2(vocab_size=6))
    save(tmp_path / "short", gpt2(vocab_size=5))
    gpt2(vocab_size=5).save_pretrained(tmp_path / "bare")
    for name, data, message in (
        ("missing", corpus, "missing: no such directory, and not a repository"),
        ("other", corpus, r"token 3 is 'c' for .* and 'b' for"),
        ("more", corpus, r"has 6 token ids and .* has 5"),
        ("bare", corpus, "bare has no tokenizer"),
        ("short", longer, "12 positions, but sequences have up to 13"),
    ):
        with pytest.raises(ValueError, match=message):
            load_learner(tmp_path / name, data)


def test_configurations_take_the_vocabulary_of_the_data(tmp_path):
    vocabulary = TokenIds.of(draw(tmp_path, 5))
    for config in (GPT2, LSTM):
        model, same, other = (
            Configuration(config).build(vocabulary, MAX_LENGTH, seed)
            for seed in (0, 0, 1)
        )
        found = model.config
        assert (found.vocab_size, found.bos_token_id, found.eos_token_id) == (5, 0, 1)
        assert model.get_output_embeddings().weight.shape[0] == 5
        assert all(map(torch.equal, model.parameters(), same.parameters()))
        assert not all(map(torch.equal, model.parameters(), other.parameters()))


def test_sizes_and_rates_are_those_of_the_paper():
    sizes = [named_size(name).config for name in ARCHITECTURES if "gpt2" in name]
    shapes = [(size["n_layer"], size["n_embd"], size["n_head"]) for size in sizes]
    assert shapes == [(12, 768, 12), (24, 1024, 16), (36, 1280, 20)]
    rates = [size.learning_rate for size in ARCHITECTURES.values()]
    assert rates == [5e-5, 4e-5, 3e-5, 1e-3]
    config = AutoConfig.for_model(vocab_size=57_256, **named_size("lstm").config)
    with torch.device("meta"):
        lstm = AutoModelForCausalLM.from_config(config)
        lstm.tie_weights()
    found = sum(weights.numel() for weights in lstm.parameters())
    assert round(found / 1e6, 1) == 119.5


def test_impossible_configurations_are_refused(tmp_path):
    vocabulary = TokenIds.of(draw(tmp_path, 5))
    for config, message in (
        ({"n_layer": 2}, "names its type"),
        ({**GPT2, "vocab_size": 7}, "sets vocab_size: leave that"),
        ({**GPT2, "n_layers": 2}, "a gpt2 has no n_layers"),
        ({**GPT2, "n_layer": "two"}, "is no configuration"),
        ({**GPT2, "n_positions": 8}, "has 8 positions, but .* up to 9"),
    ):
        with pytest.raises(ValueError, match=message):
            Configuration(config).build(vocabulary, MAX_LENGTH, 0)
    with pytest.raises(ValueError, match="there is gpt2-small, gpt2-medium"):
        named_size("gpt3")


def test_pretrained_models_begin_and_end_as_the_data_do(tmp_path):
    vocabulary = TokenIds.of(draw(tmp_path / "corpus", 5))
    config = GPT2Config(
        vocab_size=5, n_positions=12, n_embd=8, n_layer=1, n_head=2, eos_token_id=4
    )
    path = save(tmp_path / "model", GPT2LMHeadModel(config))
    model = PretrainedStart(path).build(vocabulary, MAX_LENGTH, 0)
    for found in (model.config, model.generation_config):
        assert (found.bos_token_id, found.eos_token_id) == (0, 1)
    wrong = save(tmp_path / "wrong", GPT2LMHeadModel(config), ["b", "a", "never"])
    with pytest.raises(ValueError, match=r"token 2 is 'b' for .*wrong and 'a' for"):
        PretrainedStart(wrong).build(vocabulary, MAX_LENGTH, 0)
    other = save(tmp_path / "other", GPT2LMHeadModel(config))
    assert PretrainedStart(path).settings() == PretrainedStart(path).settings()
    assert PretrainedStart(path).settings() != PretrainedStart(other).settings()


def test_a_model_that_sees_what_follows(tmp_path):
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    bert = {"model_type": "bert", "intermediate_size": 8, **sizes}
    vocabulary = TokenIds.of(draw(tmp_path / "corpus", 5))
    message = "sees the tokens that follow: it is no causal language model"
    with pytest.raises(ValueError, match=f"the configuration {message}"):
        Configuration({**bert, "initializer_range": 1.0}).build(vocabulary, 8, seed=0)
    decoder = {**bert, "initializer_range": 1.0, "is_decoder": True}
    model = Configuration(decoder).build(vocabulary, 8, seed=0)
    model.config.is_decoder = False
    model.save_pretrained(tmp_path / "bert")
    with pytest.raises(ValueError, match=message):
        CausalLanguage.load(tmp_path / "bert", begin_id=0, end_id=1, device="cpu")
