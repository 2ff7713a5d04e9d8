"""Sequences that cannot be asked for, answers that are none, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest
import torch
from lm_eval.utils import make_table
from transformers import GPT2Config, GPT2LMHeadModel

from lm_latent_eval.distortion.languages.causal import CausalLanguage
from lm_latent_eval.distortion.languages.tokenizer import train_bpe
from lm_latent_eval.harness.backends import LatentLSTM
from tests.distortion.languages.tiny import gpt2
from tests.distortion_tasks import (
    BINS,
    GROUP,
    TASK,
    Told,
    causal,
    draw,
    errors,
    evaluate,
    fox,
    load,
)

# -- texts that stand for other sequences ----------------------------------------------


@pytest.fixture(scope="module")
def spelled(tmp_path_factory):
    """Sequences of a model that knows nothing of its byte-pair encoding."""
    tokenizer = train_bpe(["the fox saw the fox"] * 5, vocab_size=266)
    torch.manual_seed(3)
    begin, end = tokenizer.bos_token_id, tokenizer.eos_token_id
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=8,
        n_embd=8,
        n_layer=1,
        n_head=1,
        bos_token_id=begin,
        eos_token_id=end,
    )
    model = GPT2LMHeadModel(config).double()
    with torch.no_grad():  # merged tokens, words and single letters, and the end
        model.transformer.wte.weight.zero_()
        probable = tokenizer.encode("the fox saw") + tokenizer.encode("thefox")
        probable += [tokenizer.convert_tokens_to_ids(c) for c in "thefox"]
        probable.append(end)
        model.transformer.wte.weight[probable] = 3.0
        model.transformer.ln_f.bias.fill_(1.0)
    language = CausalLanguage(model, 1.0, begin, end, tokenizer)
    return draw(language, tmp_path_factory.mktemp("spelled"), 200, max_length=5)


def test_only_what_is_read_back_is_asked_for_and_the_rest_is_counted(spelled, caplog):
    tokenizer, rows = spelled.tokenizer(), spelled.dataset()
    texts = [tokenizer.decode(ids) for ids in rows["ids"]]
    kept = {
        i: text
        for i, ids, text in zip(rows["index"], rows["ids"], texts, strict=True)
        if tokenizer.encode(text, add_special_tokens=False) == ids
    }
    assert 100 < len(kept) < 190, "premise"
    assert "".join(kept.values()).count("</s>") > 10, "premise"
    found = evaluate(Told(dict.fromkeys(texts, -1.0)), spelled)
    truth = dict(zip(rows["index"], rows["log_p"], strict=True))
    assert errors(found) == {i: -1.0 - truth[i] for i in kept}
    assert [s["arguments"] for s in found["samples"][TASK]] == [
        [("<s>", text)] for text in kept.values()
    ]
    numbers = found["results"][TASK]
    assert numbers["left_out,none"] == 200 - len(kept)
    assert found["configs"][TASK]["metadata"]["distortion"]["left_out"] == 200 - len(
        kept
    )
    assert f"{200 - len(kept)} of 200 sequences of" in caplog.text


def test_a_text_without_words_is_none_to_models_of_sentences(tmp_path):
    corpus = draw(causal(), tmp_path, 100, max_length=4)
    empty = corpus.dataset()["ids"][:].count([1])
    assert empty > 0, "premise"
    assert load(corpus, end="written").left_out == 0
    assert load(corpus, end="implied").left_out == empty


def test_a_tokenizer_that_does_not_know_the_begin(tmp_path):
    language = CausalLanguage(gpt2(vocab_size=5), 1.0, 4, 1, causal().tokenizer)
    corpus = draw(language, tmp_path, 20, max_length=4)
    with pytest.raises(ValueError, match="none of 20 sequences is what its tokenizer"):
        load(corpus)


def test_a_corpus_without_tokenizer(tmp_path):
    language = dataclasses.replace(causal(), tokenizer=None)
    corpus = draw(language, tmp_path, 5, max_length=4)
    with pytest.raises(ValueError, match="has no tokenizer, so its sequences have no"):
        load(corpus)


# -- log-probabilities of zero, and other answers --------------------------------------


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return draw(fox(), tmp_path_factory.mktemp("corpus"), 50, max_length=12)


def answers(corpus: Any, **changes: float) -> dict[str, float]:
    tokenizer = corpus.tokenizer()
    texts = [tokenizer.decode(ids) for ids in corpus.dataset()["ids"]]
    return dict.fromkeys(texts, -5.0) | changes


def test_what_a_model_rules_out_makes_means_infinite_and_is_counted(corpus):
    rows = corpus.dataset()
    rarest = min(rows["log_p"])
    text = corpus.tokenizer().decode(rows["ids"][rows["log_p"][:].index(rarest)])
    places = [p for p, each in enumerate(rows["log_p"]) if each == rarest]
    assert len(places) < 5, "premise: in one bin"
    found = evaluate(Told(answers(corpus, **{text: -math.inf})), corpus)
    numbers = found["results"][TASK]
    share = len(places) / 50
    assert numbers["share_ruled_out,none"] == pytest.approx(share)
    assert numbers["share_ruled_out_stderr,none"] == pytest.approx(
        math.sqrt(share * (1 - share) / 49)
    )
    for row in numbers, found["groups"][GROUP]:
        for name in "mean_error", "error_bin_01":
            assert row[f"{name},none"] == "minus infinity"
            assert row[f"{name}_stderr,none"] == "N/A"
    assert all(math.isfinite(numbers[f"{name},none"]) for name in BINS[1:])
    assert make_table(found).count("minus infinity") == 4
    json.dumps(found["results"])


@pytest.mark.parametrize("log_p", [math.nan, math.inf, 0.5])
def test_what_is_no_log_probability_names_its_sequence(corpus, log_p):
    text = corpus.tokenizer().decode(corpus.dataset()[7]["ids"])
    index = corpus.dataset()["ids"][:].index(corpus.dataset()[7]["ids"])
    told = Told(answers(corpus, **{text: log_p}))
    with pytest.raises(ValueError, match=rf"sequence {index} .*of {log_p} nats"):
        evaluate(told, corpus)


def test_few_sequences_have_no_curve(corpus, caplog):
    found = evaluate(Told(answers(corpus)), corpus, limit=9)
    truth = corpus.dataset()["log_p"][:9]
    numbers = found["results"][TASK]
    assert numbers["mean_error,none"] == pytest.approx(-5 - sum(truth) / 9)
    assert not [name for name in numbers if "bin" in name]
    assert "9 sequences cannot fill 10 bins" in caplog.text


def test_of_one_sequence_a_bin_no_error_is_known(corpus):
    found = evaluate(Told(answers(corpus)), corpus, limit=10)["results"][TASK]
    assert found["error_bin_03_stderr,none"] == "N/A"


# -- models that are asked the wrong way -----------------------------------------------


def test_a_model_of_whole_texts_is_not_told_of_end_tokens(corpus, tiny_lstm):
    with pytest.raises(ValueError, match=r'sequence 0 .*add "end": "implied"'):
        evaluate(LatentLSTM(pretrained=tiny_lstm), corpus)


def test_a_model_that_does_not_know_the_words(tmp_path, tiny_lstm):
    corpus = draw(causal(), tmp_path, 20, max_length=4)
    with pytest.raises(ValueError, match="words that the model does not know"):
        evaluate(LatentLSTM(pretrained=tiny_lstm), corpus, metadata={"end": "implied"})


def test_nothing_stands_before_a_sequence(corpus):
    with pytest.raises(ValueError, match="no examples, no system instruction"):
        evaluate(Told(answers(corpus)), corpus, system_instruction="Say it.")


def test_processes_do_not_share_requests_of_two_kinds(tmp_path):
    corpus = draw(fox(), tmp_path, 30, max_length=5)
    task = load(corpus, end="implied")
    task.build_all_requests()
    kinds = {instance.request_type for instance in task.instances}
    assert kinds == {"loglikelihood", "loglikelihood_rolling"}, "premise"
    with pytest.raises(ValueError, match="use one process"):
        task.build_all_requests(rank=0, world_size=2)


def test_requests_are_never_taken_from_a_cache(corpus, tmp_path, caplog, stock_data):
    other = draw(fox(), tmp_path / "other", 20, max_length=3)
    for each in (corpus, other):
        found = evaluate(Told(answers(each)), each, cache_requests=True)
        text = each.tokenizer().decode(each.dataset()[0]["ids"])
        assert found["samples"][TASK][0]["arguments"] == [("<s>", text)]
    assert "requests are not cached" in caplog.text


@pytest.mark.parametrize(
    "metadata, message",
    [
        ({"corpus": ""}, "needs the folder of a corpus"),
        ({"corpus": 3}, "needs the folder of a corpus"),
        ({"corpus": "nowhere"}, "not the settings of a corpus"),
        ({"end": "</s>"}, "expected one of written, implied"),
    ],
)
def test_options_that_cannot_be(corpus, metadata, message):
    settings = {"corpus": str(corpus.directory)} | metadata
    with pytest.raises(ValueError, match=message):
        load(settings.pop("corpus"), **settings)
