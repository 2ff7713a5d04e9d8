"""What every latent LM owes, whatever its latents are.

A model joins by one line in ``TINY_MODELS``: how to build one that is small enough to
list every latent, how to list them, and which texts are all that can happen. What is
true of one model only stands with its own tests.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest
import torch

from lm_latent_eval.estimators import log_evidence
from lm_latent_eval.inference import (
    BeamMarginalization,
    ImportanceSampling,
    ParticleFilter,
    importance,
    particles,
)
from lm_latent_eval.inference.particles import Particles, next_token
from lm_latent_eval.inference.streams import stream_key
from lm_latent_eval.latent import LatentLM, LeftToRight, Mass, Proposal, WholeText
from lm_latent_eval.models import MODELS, model_class
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.words import END, START, UNKNOWN
from tests import tiny_models
from tests.kglm_space import every_walk
from tests.models.entitynlm import tiny as tiny_entitynlm
from tests.models.entitynlm.space import every_chain
from tests.models.rnng import reference as tiny_rnng
from tests.models.rnng.space import every_prefix

LENGTH = 3
"""Tokens of the texts that are listed."""


@dataclass(frozen=True)
class Tiny:
    """A model with few enough latents to list."""

    build: Callable[[], Any]
    latents: Callable[[Any, list[int]], Any]
    """Every latent of one text, with leading axes (1, K)."""
    words: tuple[int, ...]
    """What the model can write, but for the end of a text."""
    proposals: tuple[str, ...]
    copied: int | None = None
    """A word that has probability zero but where it is copied."""
    goes_on: bool = True
    """Whether words may follow an end, which then is a word like any other."""

    def outcomes(self, length: int) -> list[list[int]]:
        """List texts of which exactly one happens."""
        if self.goes_on:
            words = (*self.words, END)
            return [list(text) for text in product(words, repeat=length)]
        texts = [list(text) for text in product(self.words, repeat=length)]
        for n in range(1, length):
            texts += [[*text, END] for text in product(self.words, repeat=n)]
        return texts

    def batch(self, texts: list[list[int]]) -> TokenBatch:
        """Put texts together."""
        costs = [[-math.inf if i == self.copied else 0.0 for i in t] for t in texts]
        return TokenBatch.collate(texts, costs, first=START)

    def log_joint(self, model: Any, text: list[int]) -> torch.Tensor:
        """Log p of one text under every latent, (K,)."""
        encoded = model.encode(self.batch([text]))
        return model.log_joint(encoded, self.latents(model, text))[0]

    def log_p(self, model: Any, text: list[int]) -> torch.Tensor:
        """Log p of one text, exactly."""
        return self.log_joint(model, text).logsumexp(-1)


TINY_MODELS = {
    "entitynlm": Tiny(
        tiny_entitynlm.entitynlm,
        lambda model, text: every_chain(len(text), tiny_entitynlm.MAX_LENGTH),
        (UNKNOWN, 4, 5),
        ("adapted", "peeking", "nonpeeking", "prior"),
    ),
    "kglm": Tiny(
        lambda: tiny_models.kglm(tiny_models.full_graph(), spread=0.5),
        lambda model, text: every_walk(
            model.knowledge,
            len(text),
            model.config.cutoff,
            model.config.special_entities,
        ),
        (UNKNOWN, tiny_models.KNOWN, tiny_models.COPIED),
        ("smoothing", "peeking", "nonpeeking", "prior"),
        copied=tiny_models.COPIED,
    ),
    "lstm": Tiny(
        tiny_models.lstm,
        lambda model, text: 1,
        (UNKNOWN, tiny_models.KNOWN),
        ("none",),
    ),
    "rnn": Tiny(
        tiny_models.rnn,
        lambda model, text: 1,
        (UNKNOWN, tiny_models.KNOWN),
        ("none",),
    ),
    "rnng": Tiny(
        tiny_rnng.tiny,
        lambda model, text: every_prefix(len(text), end=text[-1] == END),
        (UNKNOWN, 4, 5),
        ("crf", "adapted", "prior"),
        goes_on=False,
    ),
    "srnn": Tiny(
        tiny_models.srnn,
        lambda model, text: 1,
        (UNKNOWN, tiny_models.KNOWN),
        ("none",),
    ),
}
UNNORMALISED = {"srnn"}
"""Whose scores are no log-probabilities, but owe the rest."""
WITHOUT_LATENTS = ("lstm", "rnn", "srnn")

PAIRS = [
    (name, which) for name, tiny in TINY_MODELS.items() for which in tiny.proposals
]


def proposals(*but: str) -> Any:
    """Every model with each of its proposals, some left out."""
    pairs = [pair for pair in PAIRS if not {*but} & {*pair}]
    return pytest.mark.parametrize(("name", "which"), pairs)


every_normalised_model = pytest.mark.parametrize(
    "name", [name for name in TINY_MODELS if name not in UNNORMALISED]
)
every_proposal = proposals()


def opened(name: str, which: str | None = None, temperature: float = 1.0):
    """Return a tiny model, what is known of it, and a proposal."""
    tiny = TINY_MODELS[name]
    model = tiny.build()
    return tiny, model, model.proposal(which, temperature)


def readable(tiny: Tiny, proposal: Any) -> list[list[int]]:
    """Texts that a proposal can read: whole ones, if it reads to the end."""
    texts = tiny.outcomes(LENGTH)
    return [t for t in texts if t[-1] == END] if _whole(proposal) else texts


def _whole(proposal: Any) -> bool:
    return isinstance(proposal, WholeText)


def keys(count: int, purpose: str = "") -> list[int]:
    return [stream_key(0, f"{purpose}/{n}") for n in range(count)]


def test_every_model_keeps_the_laws():
    assert TINY_MODELS.keys() == MODELS.keys()
    for name, tiny in TINY_MODELS.items():
        assert isinstance(tiny.build(), model_class(name))


@every_proposal
def test_the_seam_is_offered(name, which):
    _, model, proposal = opened(name, which)
    assert proposal.name == which
    for method in ("encode", "log_joint"):
        assert callable(getattr(model, method)), f"{method} of {LatentLM}"
    for method in ("encode", "sample", "beam"):
        assert callable(getattr(proposal, method)), f"{method} of {Proposal}"
    assert isinstance(model, LeftToRight)
    stepwise = proposal.left_to_right if _whole(proposal) else proposal
    assert isinstance(stepwise, LeftToRight)
    assert isinstance(proposal, LeftToRight) != _whole(proposal)


@every_normalised_model
def test_all_that_can_happen_totals_one(name):
    tiny, model, _ = opened(name)
    total = sum(tiny.log_p(model, text).exp() for text in tiny.outcomes(LENGTH))
    assert abs(total.item() - 1) < 1e-10


@pytest.mark.parametrize("name", UNNORMALISED)
def test_an_unnormalised_model_says_so(name):
    tiny, model, _ = opened(name)
    assert model.mass is Mass.UNNORMALISED
    total = sum(tiny.log_p(model, text).exp() for text in tiny.outcomes(LENGTH))
    assert abs(total.item() - 1) > 0.1


@every_normalised_model
def test_a_normalised_model_says_so(name):
    _, model, _ = opened(name)
    assert model.mass in (Mass.ONE, Mass.LESS)


@proposals(*WITHOUT_LATENTS)
@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_proposals_total_one_and_cover_the_model(name, which, temperature):
    tiny, model, proposal = opened(name, which, temperature)
    for text in readable(tiny, proposal)[::7]:
        latents, log_p = tiny.latents(model, text), tiny.log_joint(model, text)
        log_q = proposal.log_prob(proposal.encode(tiny.batch([text])), latents)[0]
        assert abs(log_q.logsumexp(-1)) < 1e-10
        assert (log_q > -torch.inf)[log_p > -torch.inf].all()


@every_proposal
def test_importance_sampling_is_unbiased(name, which):
    tiny, model, proposal = opened(name, which)
    text = readable(tiny, proposal)[5]
    copies, num_samples = 40, 100
    log_w = ImportanceSampling(num_samples).log_weights(
        model, proposal, tiny.batch([text] * copies), keys(copies)
    )
    ratio = (log_w - tiny.log_p(model, text)).exp()
    error = ratio.std().item() / math.sqrt(ratio.numel())
    assert error < 0.05, "premise: precise enough to notice a bias"
    assert abs(ratio.mean().item() - 1) <= 5 * error + 1e-10


@proposals("crf")
def test_filters_are_unbiased(name, which):
    tiny, model, proposal = opened(name, which)
    text = [4, 4, 4] if name != "kglm" else [4, 5, 4]
    copies = 400
    log_w = ParticleFilter(4).log_weights(
        model, proposal, tiny.batch([text] * copies), keys(copies)
    )
    ratio = (log_evidence(log_w) - tiny.log_p(model, text)).exp()
    error = ratio.std().item() / math.sqrt(copies)
    assert error < 0.08, "premise: precise enough to notice a bias"
    assert abs(ratio.mean().item() - 1) <= 5 * error + 1e-10


@every_proposal
def test_beams_are_bounds_and_become_exact(name, which):
    tiny, model, proposal = opened(name, which)
    for text in readable(tiny, proposal)[::9]:
        exact = tiny.log_p(model, text).item()
        for width in (1, 3):
            method = BeamMarginalization(width)
            found = method.log_weights(model, proposal, tiny.batch([text]), keys(1))
            assert found.logsumexp(-1).item() <= exact + 1e-12
        wide = BeamMarginalization(3000)
        found = wide.log_weights(model, proposal, tiny.batch([text]), keys(1))
        assert abs(found.logsumexp(-1).item() - exact) < 1e-10


@every_proposal
def test_texts_are_scored_alike_in_any_company(name, which):
    tiny, model, proposal = opened(name, which)
    texts = readable(tiny, proposal)[::4]
    assert len({len(text) for text in texts}) > 1 or tiny.goes_on, "premise: ragged"
    if tiny.goes_on:
        texts = [text[: 1 + n % LENGTH] for n, text in enumerate(texts)]
    method, names = ImportanceSampling(7), keys(len(texts))
    together = method.log_weights(model, proposal, tiny.batch(texts), names)
    for n, text in enumerate(texts):
        alone = method.log_weights(model, proposal, tiny.batch([text]), [names[n]])
        torch.testing.assert_close(together[n], alone[0], rtol=0, atol=1e-10)


@every_proposal
def test_the_first_samples_are_those_of_fewer(name, which, monkeypatch):
    tiny, model, proposal = opened(name, which)
    texts = readable(tiny, proposal)[:3]
    few, many = (
        ImportanceSampling(k).log_weights(
            model, proposal, tiny.batch(texts), keys(len(texts))
        )
        for k in (5, 20)
    )
    torch.testing.assert_close(many[:, :5], few, rtol=0, atol=1e-10)
    monkeypatch.setattr(importance, "DECISIONS", 16)
    rounds = ImportanceSampling(20).log_weights(
        model, proposal, tiny.batch(texts), keys(len(texts))
    )
    torch.testing.assert_close(rounds, many, rtol=0, atol=1e-10)


@proposals("crf", "smoothing")
def test_pieces_are_scored_as_the_whole(name, which, monkeypatch):
    tiny, model, proposal = opened(name, which)
    # Left out are those that read to the end of a text, or of a piece.
    known = [[4, 1, 4, 4], [4], [1, 4]]
    texts = tiny.batch(
        known if name in WITHOUT_LATENTS else [[4, 5, 4, 5], [4], [5, 4]]
    )
    names = keys(len(texts.length))
    whole = ImportanceSampling(6).log_weights(model, proposal, texts, names)
    for module in (importance, particles):
        monkeypatch.setattr(module, "PIECE", 1)
    pieces = ImportanceSampling(6).log_weights(model, proposal, texts, names)
    torch.testing.assert_close(pieces, whole, rtol=0, atol=1e-10)


@every_normalised_model
@pytest.mark.parametrize("context", [[], [4], [4, UNKNOWN]])
def test_predictions_are_ratios_of_prefixes(name, context):
    tiny, model, proposal = opened(name)
    stepwise = proposal.left_to_right if _whole(proposal) else proposal
    state, log_w = None, torch.zeros(1, 1, dtype=torch.float64)
    if context:
        latents = tiny.latents(model, context)
        encoded = model.encode(tiny.batch([context]))
        log_w = model.log_joint(encoded, latents)
        state = model.advance(encoded, latents)
    here = Particles(state, state, log_w, log_w)
    last = torch.tensor([(context or [START])[-1]])
    found = next_token(model, last, here)[0]
    prefix = tiny.log_p(model, context).item() if context else 0.0
    for word in tiny.words if name == "rnng" and not context else (*tiny.words, END):
        exact = tiny.log_p(model, [*context, word]).item() - prefix
        assert found[word].item() == pytest.approx(exact, abs=1e-5)
    assert stepwise.name in tiny.proposals
    assert abs(found.logsumexp(-1).item()) < 1e-5
