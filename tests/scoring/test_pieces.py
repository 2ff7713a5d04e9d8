"""Work: long texts are read in pieces, each token once, and none pads another."""

from itertools import accumulate

import pytest
import torch
from tqdm import tqdm

from lm_latent_eval.inference import importance, particles
from lm_latent_eval.inference.unfolding import StepProposal
from lm_latent_eval.models.checkpoint import load_checkpoint
from lm_latent_eval.models.recurrent import RecurrentStack
from lm_latent_eval.scoring import evaluation
from lm_latent_eval.scoring.evaluation import Evaluation
from lm_latent_eval.scoring.generation import GenerationOptions
from lm_latent_eval.scoring.model import load
from lm_latent_eval.scoring.options import ScoringOptions
from lm_latent_eval.scoring.scorer import Scorer
from lm_latent_eval.scoring.texts import Query
from lm_latent_eval.text.words import END
from tests.test_laws import written
from tests.watching import watch

PIECE = 4


@pytest.fixture(autouse=True)
def short_pieces(monkeypatch):
    for module in (particles, importance, evaluation):
        monkeypatch.setattr(module, "PIECE", PIECE)
    monkeypatch.setattr(StepProposal, "widening", 1)


@pytest.mark.parametrize("bounds", ["lower", "both"])
@pytest.mark.parametrize("context", ["", "the fox saw"])
def test_a_bar_ends_where_it_says(kglm_directory, monkeypatch, context, bounds):
    seen = watch(monkeypatch, tqdm, "update", lambda _, bar, n: (n, bar.total))
    given = {"estimator": "dpf", "num_samples": 20, "bounds": bounds}
    loaded = load(kglm_directory, device="cpu").checkpoint
    scorer = Scorer(loaded, ScoringOptions(**given), quiet=True)
    asked = [Query(n, str(n), text, context) for n, text in enumerate(TEXTS)]
    score = scorer.score_continuations if context else scorer.score_texts
    assert len([*score(asked)]) == len(TEXTS)
    moved, totals = zip(*seen, strict=True)
    reached = [*accumulate(moved)]
    assert all(n <= total for n, total in zip(reached, totals, strict=True))
    assert reached[-1] == totals[-1] > 0


# -- no text pays for the padding of another -------------------------------------------


TEXTS = ["the fox " * 30, *["the fox saw", "fox", "the fox saw the fox ."] * 5]


@pytest.mark.parametrize("batch_size", [None, 16])
def test_a_long_text_goes_with_long_ones(lstm_directory, monkeypatch, batch_size):
    loaded = load(lstm_directory, device="cpu").checkpoint
    batches = watch(monkeypatch, Evaluation, "collate", lambda batch, *_: batch)
    queries = [Query(n, str(n), text) for n, text in enumerate(TEXTS)]

    def found(size):
        some = Scorer(loaded, ScoringOptions(), batch_size=size, quiet=True)
        answers = {a.index: a.estimate for a in some.score_texts(queries)}
        return [answers[n].log_evidence for n in range(len(TEXTS))]

    together = found(batch_size)
    for batch in batches:
        padded = batch.targets.numel() - int(batch.length.sum())
        assert padded <= batch.length.sum() + PIECE * len(batch.length)
    assert 1 < len(batches) < len(TEXTS) / 2
    assert together == pytest.approx(found(1), rel=1e-12)


# -- generation reads each token once: counted work, never seconds ---------------------


CONTEXT, WRITTEN = "the the", 8
OWN_NETWORK = {"kglm": "nonpeeking", "lstm": "none"}
"""A proposal that does not read with p's network."""


@pytest.mark.parametrize(
    ("name", "estimator"),
    [
        *(("kglm", estimator) for estimator in ("is", "beam", "smc")),
        *(("lstm", estimator) for estimator in ("is", "beam", "exact")),
    ],
)
def test_every_token_is_read_once(name, estimator, tmp_path, monkeypatch):
    """Those of the context, the one before it, and those that are written."""
    found = load_checkpoint(written(name, tmp_path))
    given = {"proposal": OWN_NETWORK[name], "num_samples": 10}
    chosen = ScoringOptions.parse({"estimator": estimator, **given})
    scorer, model = Scorer(found, chosen, quiet=True), found.model
    layers = model.rnn if name == "lstm" else model.generative.trunk.rnn
    predictions, next_token = [], type(model).next_token
    places = watch(
        monkeypatch,
        RecurrentStack,
        "forward",
        lambda _, stack, value, *more: value.shape[1] * (stack is layers),
    )

    def predicting(self, *args):
        predictions.append(args)
        log_p = next_token(self, *args)
        log_p[:, END] = -torch.inf  # so that it goes on
        return log_p

    monkeypatch.setattr(type(model), "next_token", predicting)
    how = GenerationOptions.parse({"max_gen_toks": WRITTEN})
    list(scorer.generate([(Query(0, "text", "", CONTEXT), how)]))
    assert len(predictions) == WRITTEN, "premise"
    assert sum(places) == len(CONTEXT.split()) + len(predictions)
