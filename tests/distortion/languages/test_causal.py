"""A tiny GPT-2 as a language, against its own logits without batches or cache."""

import math
from functools import cache

import pytest
import torch

from lm_latent_eval.distortion.languages.causal import CausalLanguage
from lm_latent_eval.distortion.languages.language import word_tokenizer
from lm_latent_eval.distortion.languages.loading import load_language
from tests.distortion.tiny import causal, gpt2, records


@pytest.mark.parametrize(
    "temperature", [0.4, pytest.param(1.0, marks=pytest.mark.nightly), 3.0]
)
@pytest.mark.parametrize("end_id", [0, 1])
def test_probabilities_are_products_of_tempered_predictions(temperature, end_id):
    language, model = causal(temperature, end_id), gpt2().eval()
    every = records(language, 4)

    @cache
    def after(*ids: int) -> list[float]:
        """Return the probabilities of the next token, of one sequence alone."""
        weights = (model(torch.tensor([[0, *ids]])).logits[0, -1] / temperature).exp()
        return (weights / weights.sum()).tolist()

    with torch.inference_mode():
        expected = [
            math.prod(after(*ids[:t])[token] for t, token in enumerate(ids))
            for ids in every
        ]
    found = language.log_p(every).exp().tolist()
    assert found == pytest.approx(expected, rel=1e-11, abs=0)


def test_probabilities_are_float64_whatever_the_model():
    """A float32 model's rounding is in its logits, not in sums over tokens."""
    language = CausalLanguage(gpt2(torch.float32), 0.7, 0, 1)
    [total], [exact] = (each.log_p([[2, 3, 1]]) for each in (language, causal(0.7)))
    assert total.dtype == torch.float64
    assert 1e-9 < abs(total - exact) < 1e-4, "premise: it does round"
    with torch.inference_mode():
        logits = language.model(torch.tensor([[0, 2, 3]])).logits[0].double()
    steps = (logits / 0.7).log_softmax(-1)[range(3), [2, 3, 1]]
    assert total.item() == pytest.approx(steps.sum().item(), rel=1e-14)


def test_settings_tell_languages_apart():
    other = gpt2()
    with torch.no_grad():
        other.transformer.h[1].ln_1.bias[3] += 1e-9
    found = [
        causal(0.7).settings(),
        causal(0.8).settings(),
        causal(0.7, end_id=2).settings(),
        CausalLanguage(other, 0.7, 0, 1).settings(),
        CausalLanguage(gpt2(torch.float32), 0.7, 0, 1).settings(),
    ]
    assert causal(0.7, batch_size=3).settings() == found[0]
    assert all(found.count(settings) == 1 for settings in found)


def test_bad_input(tmp_path):
    for arguments, message in (
        ((0.0, 0, 1), "temperature=0.0: expected a positive number"),
        ((1.0, 4, 1), r"begin_id=4: expected an id of 0 .. 3"),
        ((1.0, 0, -1), "end_id=-1"),
    ):
        with pytest.raises(ValueError, match=message):
            CausalLanguage(gpt2(), *arguments)
    for ask, given in (
        (causal().sample, (0, [0], 13)),
        (causal().log_p, ([[2] * 13],)),
    ):
        with pytest.raises(ValueError, match=r"12 positions, but .* up to 13"):
            ask(*given)
    (tmp_path / "config.json").write_text('{"model_type": "gpt2", "n_embd": "wide"}')
    with pytest.raises(ValueError, match=r"not a causal language model .*'n_embd'"):
        load_language(tmp_path)
    model = gpt2()
    model.config.eos_token_id = None
    model.generation_config.eos_token_id = None
    model.save_pretrained(tmp_path / "endless")
    with pytest.raises(ValueError, match=r"configuration: None, tokenizer: None"):
        load_language(tmp_path / "endless")
    gpt2().save_pretrained(tmp_path / "two")
    tokenizer = word_tokenizer(["a", "b"])
    tokenizer.eos_token = "a"
    tokenizer.save_pretrained(tmp_path / "two")
    with pytest.raises(ValueError, match=r"\(configuration: 1, tokenizer: 2\): say"):
        load_language(tmp_path / "two")
    language = load_language(tmp_path / "two", end_id=3, device="cpu")
    assert (language.begin_id, language.end_id) == (0, 3)
    with torch.no_grad():
        model.lm_head.weight[0] = torch.nan
    with pytest.raises(ValueError, match="no probabilities"):
        CausalLanguage(model, 1.0, 0, 1).sample(0, [0], 3)
