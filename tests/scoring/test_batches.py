"""Texts of any length share a run, and none pays for another's padding."""

from __future__ import annotations

import pytest
import torch

from lm_latent_eval.inference import particles
from lm_latent_eval.models.recurrent_lm import LSTMLanguageModel
from lm_latent_eval.scoring import evaluation
from lm_latent_eval.scoring.evaluation import Evaluation
from lm_latent_eval.scoring.generation import GenerationOptions
from lm_latent_eval.scoring.model import load
from lm_latent_eval.scoring.options import ScoringOptions
from lm_latent_eval.scoring.scorer import Scorer
from lm_latent_eval.scoring.texts import Query
from tests.rounding import agree

TEXTS = ["the fox " * 30, *["the fox saw", "fox", "the fox saw the fox ."] * 5]


@pytest.mark.parametrize("batch_size", [None, 16])
def test_a_long_text_goes_with_long_ones(lstm_directory, monkeypatch, batch_size):
    for module in (particles, evaluation):
        monkeypatch.setattr(module, "PIECE", 4)
    loaded, batches = load(lstm_directory, device="cpu").checkpoint, []
    collate = Evaluation.collate
    monkeypatch.setattr(
        Evaluation,
        "collate",
        lambda *args, **kw: batches.append(collate(*args, **kw)) or batches[-1],
    )
    queries = [Query(n, str(n), text) for n, text in enumerate(TEXTS)]

    def found(size):
        some = Scorer(loaded, ScoringOptions(), batch_size=size, quiet=True)
        answers = {a.index: a.estimate for a in some.score_texts(queries)}
        return [answers[n].log_evidence for n in range(len(TEXTS))]

    together = found(batch_size)
    for batch in batches:
        padded = batch.targets.numel() - int(batch.length.sum())
        assert padded <= batch.length.sum() + 4 * len(batch.length)
    assert 1 < len(batches) < len(TEXTS) / 2
    assert together == pytest.approx(found(1), rel=1e-12)


def answers(scorer, ask):
    """Ask for whole texts, continuations or words to write; return all that is told."""
    if ask == "generate":
        how = GenerationOptions((), 3, 1.0)
        queries = [(Query(n, str(n), "", text), how) for n, text in enumerate(TEXTS)]
        return [text for _, text in sorted(scorer.generate(queries))]
    if ask == "texts":
        found = scorer.score_texts([Query(n, str(n), t) for n, t in enumerate(TEXTS)])
    else:
        queries = [Query(n, str(n), "fox", text) for n, text in enumerate(TEXTS)]
        found = scorer.score_continuations(queries)
    return sorted(found, key=lambda answer: answer.index)


@pytest.fixture
def small_memory(monkeypatch):
    """A device that holds a number of words at a time; returns what was tried."""

    def limit(words):
        tried, encode = [], LSTMLanguageModel.encode

        def encoding(model, batch, after=None):
            tried.append(batch.targets.numel())
            if tried[-1] > words:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return encode(model, batch, after)

        monkeypatch.setattr(LSTMLanguageModel, "encode", encoding)
        return tried

    return limit


@pytest.mark.parametrize("ask", ["texts", "continuations", "generate"])
def test_out_of_memory_halves_the_batch(lstm_directory, small_memory, ask):
    opened = load(lstm_directory, device="cpu").checkpoint
    expected = answers(Scorer(opened, ScoringOptions(), batch_size=1, quiet=True), ask)
    tried = small_memory(words=70)
    scorer = Scorer(opened, ScoringOptions(), batch_size=16, quiet=True)
    assert agree(answers(scorer, ask), expected)
    failed = sum(words > 70 for words in tried)
    assert 0 < failed <= 4, "16 texts fit after four halvings, and stay halved"
    before = len(tried)
    assert agree(answers(scorer, ask), expected)
    assert max(tried[before:]) <= 70, "what does not fit is not tried again"
