"""Generation reads each token once: counted work, never seconds."""

from __future__ import annotations

import pytest
import torch

from lm_latent_eval.inference import estimator_named
from lm_latent_eval.inference.particles import Particles
from lm_latent_eval.latent import ReadsOnce, WholeText
from lm_latent_eval.models.checkpoint import load_checkpoint
from lm_latent_eval.models.recurrent import RecurrentStack
from lm_latent_eval.scoring.generation import GenerationOptions
from lm_latent_eval.scoring.options import ScoringOptions
from lm_latent_eval.scoring.scorer import Scorer
from lm_latent_eval.scoring.texts import Query
from lm_latent_eval.testing.case import keys
from lm_latent_eval.text.words import END
from tests.test_laws import TINY_MODELS, written

CONTEXT, TOKENS = "the the", 8
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
CASES = [
    (name, estimator)
    for name in LAYERS
    for estimator in (("exact",) if name == "lrlm" else ("is", "beam", "smc", "exact"))
    if estimator in TINY_MODELS[name].build().estimators
]


def options(**kwargs) -> GenerationOptions:
    return GenerationOptions.parse({"max_gen_toks": TOKENS, **kwargs})


@pytest.mark.parametrize(("name", "estimator"), CASES)
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
    list(scorer.generate([(Query(0, "text", "", CONTEXT), options())]))
    assert len(predictions) == TOKENS, "premise"
    assert sum(places) == len(CONTEXT.split()) + len(predictions)


@pytest.mark.parametrize("estimator", ["is", "beam", "smc"])
def test_an_nklm_reads_a_written_word_once_for_p_and_once_for_q(
    estimator, tmp_path, monkeypatch
):
    """Both read with one network, and each latent reads its own sources."""
    found, places = load_checkpoint(written("nklm", tmp_path)), []
    forward, next_token = RecurrentStack.forward, type(found.model).next_token

    def reading(self, value, *args):
        places.append(value.shape[1])
        return forward(self, value, *args)

    def going_on(self, *args):
        log_p = next_token(self, *args)
        log_p[:, END] = -torch.inf
        return log_p

    monkeypatch.setattr(RecurrentStack, "forward", reading)
    monkeypatch.setattr(type(found.model), "next_token", going_on)
    chosen = ScoringOptions.parse(estimator=estimator, num_samples=10)
    read = []
    for tokens in (TOKENS, 2 * TOKENS):
        places.clear()
        asked = Query(0, "text", "", CONTEXT), options(max_gen_toks=tokens)
        [(_, text)] = Scorer(found, chosen, quiet=True).generate([asked])
        assert len(text.split()) == tokens, "premise"
        read.append(sum(places))
    assert read[1] - read[0] == 2 * TOKENS


@pytest.mark.parametrize("name", LAYERS)
def test_what_was_read_ahead_changes_nothing(name):
    """Particles that have read ahead go on as those do that have not."""
    case = TINY_MODELS[name].case()
    assert isinstance(case.model, ReadsOnce)
    offered = case.model.estimators
    for estimator in ("is", "mixed", "beam", "smc", "exact"):
        if estimator not in offered:
            continue
        method, proposal = estimator_named(estimator, offered)(10), case.proposal()
        if isinstance(proposal, WholeText):
            proposal = proposal.left_to_right
        ids, whole = keys(3), case.batch([[4, 1, 4, END], [4, 1, 1], [4, 4]])
        begin = Particles.begin(3, "cpu")
        plain = read = method.extend(
            case.model, proposal, whole.piece(0, 1), ids, [0] * 3, begin
        )
        for t in (1, 2, 3):
            piece, starts = whole.piece(t, t + 1), [t] * len(ids)
            read = read.ahead(case.model, piece.inputs[:, 0])
            read, plain = (
                method.extend(case.model, proposal, piece, ids, starts, before)
                for before in (read, plain)
            )
            on = piece.length > 0
            torch.testing.assert_close(
                read.log_w[on], plain.log_w[on], rtol=0, atol=0, equal_nan=True
            )
            (rows,) = on.nonzero(as_tuple=True)
            ids = [ids[row] for row in rows.tolist()]
            whole, read, plain = (x.select(rows) for x in (whole, read, plain))
            if not ids:
                break


def test_a_text_that_ends_moves_no_other(tmp_path):
    found = load_checkpoint(written("kglm", tmp_path))
    chosen = ScoringOptions.parse(estimator="is", num_samples=10)
    scorer = Scorer(found, chosen, quiet=True)
    lengths = (1, 5, 2, 8)
    asked = [
        (Query(n, f"text {n}", "", CONTEXT), options(max_gen_toks=length, until=["."]))
        for n, length in enumerate(lengths)
    ]
    together = dict(scorer.generate(asked))
    for query, how in asked:
        [(_, alone)] = scorer.generate([(query, how)])
        assert together[query.index] == alone
