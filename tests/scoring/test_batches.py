"""Work: no text pays for the padding of another, and each token is read once."""

from __future__ import annotations

import pytest
import torch

from lm_latent_eval.inference import particles
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
from tests.test_laws import TINY_MODELS, written

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


# -- generation reads each token once: counted work, never seconds ---------------------


CONTEXT, WRITTEN = "the the", 8
OWN_NETWORK = {"entitynlm": "nonpeeking", "kglm": "nonpeeking", "lrlm": "posterior"}
"""A proposal that does not read with p's network, but for that of LRLM, whose exact sum
needs none."""
LAYERS = {
    "entitynlm": lambda model: model.generative.trunk.rnn,
    "kglm": lambda model: model.generative.trunk.rnn,
    "lrlm": lambda model: model.trunk,
    "lstm": lambda model: model.rnn,
    "rnn": lambda model: model.rnn,
}
"""What reads the text for p."""
READ_ONCE = [
    (name, estimator)
    for name in LAYERS
    for estimator in (("exact",) if name == "lrlm" else ("is", "beam", "smc", "exact"))
    if estimator in TINY_MODELS[name].build().estimators
]


@pytest.mark.parametrize(("name", "estimator"), READ_ONCE)
def test_every_token_is_read_once(name, estimator, tmp_path, monkeypatch):
    """Those of the context, the one before it, and those that are written."""
    found = load_checkpoint(written(name, tmp_path))
    given = {"proposal": OWN_NETWORK.get(name), "num_samples": 10}
    chosen = ScoringOptions.parse(estimator=estimator, **given)
    scorer = Scorer(found, chosen, quiet=True)
    layers, model = LAYERS[name](found.model), type(found.model)
    places, predictions = [], []
    forward, next_token = RecurrentStack.forward, model.next_token

    def reading(self, value, *args):
        if self is layers:
            places.append(value.shape[1])
        return forward(self, value, *args)

    def predicting(self, *args):
        predictions.append(args)
        log_p = next_token(self, *args)
        log_p[:, END] = -torch.inf  # so that it goes on
        return log_p

    monkeypatch.setattr(RecurrentStack, "forward", reading)
    monkeypatch.setattr(model, "next_token", predicting)
    how = GenerationOptions.parse({"max_gen_toks": WRITTEN})
    list(scorer.generate([(Query(0, "text", "", CONTEXT), how)]))
    assert len(predictions) == WRITTEN, "premise"
    assert sum(places) == len(CONTEXT.split()) + len(predictions)
