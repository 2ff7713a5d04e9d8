"""A mixture against its parts, each scored by transformers' own loss."""

from __future__ import annotations

import pytest
import torch
from latent_mixture import write
from latent_mixture.__main__ import PRIOR, byte_tokenizer, random_gpt2

import lm_latent_eval
from lm_latent_eval.extend import Query

FLOAT32 = 1e-6
"""transformers rounds its losses."""
TEXTS = ["The cat saw the dog.", "", "é"]


@pytest.fixture(scope="module")
def parts():
    tokenizer = byte_tokenizer()
    models = [random_gpt2(seed, len(tokenizer)).double().eval() for seed in (0, 1)]
    return models, tokenizer


@pytest.fixture(scope="module")
def mixture(parts, tmp_path_factory):
    folder = tmp_path_factory.mktemp("mixture")
    write(folder, *parts, PRIOR)
    return lm_latent_eval.load(folder, device="cpu")


def log_p(parts, text: str, *, ended: bool) -> float:
    """Log p of a text, a mixture of products."""
    models, tokenizer = parts
    ids = tokenizer.encode(text, add_special_tokens=False)
    end = tokenizer.eos_token_id
    tokens = torch.tensor([[end, *ids, *[end] * ended]])
    if tokens.shape[1] == 1:
        return 0.0
    losses = torch.stack([model(tokens, labels=tokens).loss for model in models])
    log_prior = torch.tensor(PRIOR, dtype=torch.float64).log()
    return (log_prior - losses * (tokens.shape[1] - 1)).logsumexp(0).item()


def test_texts(mixture, parts):
    estimates = mixture.log_likelihood(TEXTS)
    for text, estimate in zip(TEXTS, estimates, strict=True):
        exact = log_p(parts, text, ended=True)
        assert estimate.log_evidence == pytest.approx(exact, rel=FLOAT32)
        assert str(estimate.bound) == "exact"
        assert estimate.num_tokens == len(text.encode()) + 1


@pytest.mark.parametrize("context", ["", "The c"])
def test_continuations(mixture, parts, context):
    [estimate] = mixture.log_likelihood(["at"], contexts=[context])
    whole = log_p(parts, f"{context}at", ended=False)
    exact = whole - log_p(parts, context, ended=False)
    assert estimate.log_evidence == pytest.approx(exact, rel=FLOAT32)


def test_what_is_written_is_greedy(mixture):
    [written] = mixture.generate(["The"], max_tokens=1, sampling_temperature=0.0)
    assert written.isascii(), "premise: a byte that is a character"
    scorer = mixture.opened.scorer({})
    queries = [Query(n, "a name", chr(n), "The") for n in range(128)]
    answers = {chr(a.index): a for a in scorer.score_continuations(queries)}
    assert [text for text, answer in answers.items() if answer.is_greedy] == [written]
    best = max(answers, key=lambda text: answers[text].estimate.log_evidence)
    assert best == written


def test_there_is_nothing_to_choose(mixture):
    with pytest.raises(ValueError, match="'num_samples' is not an argument"):
        mixture.log_likelihood(["a"], num_samples=5)


def test_a_changed_part_is_refused(mixture, parts, tmp_path):
    write(tmp_path, *parts, PRIOR)
    config = tmp_path / "model_1" / "config.json"
    config.write_text(config.read_text() + " ")
    with pytest.raises(ValueError, match="manifest"):
        lm_latent_eval.load(tmp_path)
