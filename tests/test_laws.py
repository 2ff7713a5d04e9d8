"""What every latent LM owes, whatever its latents are.

A model joins by one line in ``TINY_MODELS``: how to build one that is small enough to
list every latent, how to list them, and which texts are all that can happen. What is
true of one model only stands with its own tests.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise, product
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
from lm_latent_eval.inference.streams import Streams, stream_key
from lm_latent_eval.latent import LatentLM, LeftToRight, Mass, Proposal, WholeText
from lm_latent_eval.models import MODELS, model_class
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.words import END, START, UNKNOWN
from tests import tiny_models
from tests.kglm_space import every_walk
from tests.models.entitynlm import tiny as tiny_entitynlm
from tests.models.entitynlm.space import every_chain
from tests.models.lrlm import tiny as tiny_lrlm
from tests.models.nklm import tiny as tiny_nklm
from tests.models.rnng import reference as tiny_rnng
from tests.models.rnng.space import every_prefix

LENGTH = 3
"""Tokens of the texts that are listed."""
LONG, LONG_SENTENCE = 350, 40
"""Words of texts that are not."""


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
        ("adapted", "smoothing", "peeking", "nonpeeking", "prior"),
        copied=tiny_models.COPIED,
    ),
    "lrlm": Tiny(
        tiny_lrlm.lrlm,
        lambda model, text: tiny_lrlm.every_reading(model, len(text)),
        (UNKNOWN, tiny_models.KNOWN, tiny_models.COPIED),
        ("posterior", "adapted"),
        copied=tiny_models.COPIED,
    ),
    "lstm": Tiny(
        tiny_models.lstm,
        lambda model, text: 1,
        (UNKNOWN, tiny_models.KNOWN),
        ("none",),
    ),
    "nklm": Tiny(
        tiny_nklm.nklm,
        tiny_nklm.every_copy,
        (UNKNOWN, tiny_models.KNOWN, tiny_models.COPIED),
        ("adapted", "peeking"),
        copied=tiny_models.COPIED,
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


READ_ON = (
    ("kglm", "adapted"),
    ("kglm", "smoothing"),
    ("lrlm", "posterior"),
    ("lrlm", "adapted"),
    ("nklm", "adapted"),
    ("rnng", "crf"),
)
"""Proposals that read to the end of a text, or of the piece of it at hand."""


def proposals(*but: str | tuple[str, str]) -> Any:
    """Every model with each of its proposals, but some models, proposals or pairs."""
    pairs = [pair for pair in PAIRS if not {*but} & {*pair, pair}]
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
@pytest.mark.parametrize("temperature", [0.001, 0.5, 1.0, 2.0, 1000.0])
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


@proposals("crf", "posterior")
def test_filters_are_unbiased(name, which):
    tiny, model, proposal = opened(name, which)
    text = [4, 4, 4] if name not in ("kglm", "lrlm", "nklm") else [4, 5, 4]
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


@proposals(*READ_ON, *WITHOUT_LATENTS)
@pytest.mark.parametrize("width", [1, 3, 3000])
@pytest.mark.parametrize("borders", [(0, 1, 3), (0, 2, 3), (0, 1, 2, 3)], ids=str)
def test_beams_go_on_where_they_were_cut(name, which, width, borders):
    """Against the beam of the whole text, and where it holds all against a list."""
    tiny, model, proposal = opened(name, which)
    texts = readable(tiny, proposal)[::3]
    whole, names = tiny.batch(texts), keys(len(texts))
    method = BeamMarginalization(width)
    begun = Particles.begin(len(texts), "cpu")
    for start, end in pairwise(borders):
        piece, starts = whole.piece(start, end), [start] * len(texts)
        begun = method.extend(model, proposal, piece, names, starts, begun)
    found = begun.log_w.sort(descending=True).values
    at_once = method.log_weights(model, proposal, whole, names).sort(descending=True)
    torch.testing.assert_close(found, at_once.values, rtol=0, atol=1e-10)
    if width < 3000:
        return
    for row, text in zip(found, texts, strict=True):
        listed = tiny.log_joint(model, text).sort(descending=True).values
        listed = listed[listed > -torch.inf]
        torch.testing.assert_close(row[: len(listed)], listed, rtol=0, atol=1e-10)
        assert row[len(listed) :].isneginf().all()


@proposals(*READ_ON, *WITHOUT_LATENTS)
def test_some_beam_changes_its_mind_at_a_cut(name, which):
    """Premise of the above: what is best so far is not what goes on best."""
    tiny, _, proposal = opened(name, which)
    whole = tiny.batch(readable(tiny, proposal))
    moved = []
    for at in range(1, LENGTH):
        first, rest = whole.piece(0, at), whole.piece(at, LENGTH)
        q = proposal.encode(first)
        begun = proposal.beam(q, 3)
        state = proposal.advance(q, begun.latents)
        origin = proposal.beam(proposal.encode(rest, state), 3, begun.score).origin
        moved.append(bool((origin != torch.arange(3)).any()))
    assert any(moved)


@proposals(*READ_ON, *WITHOUT_LATENTS)
def test_filters_go_on_from_what_they_draw(name, which):
    """One particle of each filter has all the weight, so it is what all become."""
    tiny, model, proposal = opened(name, which)
    text, method = [4, UNKNOWN, 4, 4, UNKNOWN], ParticleFilter(20)
    first, second, third = (tiny.batch([text]).piece(*ends) for ends in BORDERS)
    names, draw = keys(1, "filter"), ImportanceSampling(20)
    begin = Particles.begin(1, "cpu")
    begun = draw.extend(model, proposal, first, names, [0], begin)
    one, other = begun.log_q[0, :10], begun.log_q[0, 10:]
    assert one.min() < other.max() - 0.1, "premise: particles differ"
    chosen = torch.tensor([one.argmin(), 10 + other.argmax()])
    log_w = torch.full_like(begun.log_w, -torch.inf)
    log_w[0, chosen] = begun.log_w[0, chosen]
    begun, start = replace(begun, log_w=log_w), [BORDERS[1][0]]

    # Without drawing anew, the chosen ones alone count.
    plain = draw.extend(model, proposal, second, names, start, begun)
    drawn = method.extend(model, proposal, second, names, start, begun)

    each = chosen.repeat_interleave(10)[None]
    becomes = Particles(
        plain.model_state.resample(each),
        plain.proposal_state.resample(each),
        plain.log_w.gather(1, each) - math.log(10),
        plain.log_q.gather(1, each),
    )
    torch.testing.assert_close(drawn.log_w, becomes.log_w, rtol=0, atol=1e-10)
    torch.testing.assert_close(drawn.log_q, becomes.log_q)
    # The states of both: what p says next, filter by filter, and what q draws.
    last = third.inputs[:, 0]
    for keep in (slice(0, 10), slice(10, 20)):
        log_w = torch.full_like(log_w, -torch.inf)
        log_w[0, keep] = 0.0
        ours, theirs = (
            next_token(model, last, replace(particles, log_w=log_w))
            for particles in (drawn, becomes)
        )
        torch.testing.assert_close(ours, theirs)
    streams = Streams(names, 20, starts=[BORDERS[2][0]])
    ours, theirs = (
        proposal.sample(proposal.encode(third, particles.proposal_state), streams, 20)
        for particles in (drawn, becomes)
    )
    torch.testing.assert_close(ours.log_q, theirs.log_q)


BORDERS = ((0, 3), (3, 4), (4, 5))
"""Where the text of the above is cut: a tree needs three words to have a choice."""


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


@every_normalised_model
def test_company_moves_float32_by_a_walk_of_roundings(name):
    """Relatively by less than sqrt(T) roundings of float32 in texts of T tokens.

    A token's log-probability is rounded, and so is the recurrent state that it is
    predicted from, once a token before it: independent roundings add up like steps of
    a random walk. The sum over tokens is taken in float64 and adds none.
    """
    tiny, model, proposal = opened(name)
    model.float()
    length = LONG if tiny.goes_on else LONG_SENTENCE
    texts = [
        [*(tiny.words[(n + t * t) % 3 % len(tiny.words)] for t in range(length)), END]
        for n in range(5)
    ]
    batch, every = tiny.batch(texts), torch.arange(5)
    stepwise = proposal.left_to_right if _whole(proposal) else proposal
    latents = stepwise.sample(stepwise.encode(batch), Streams(keys(5), 3), 3).latents

    def log_joint(some: torch.Tensor) -> torch.Tensor:
        mine = latents
        if name not in WITHOUT_LATENTS:
            mine = type(latents)(*(part[some] for part in latents))
        return model.log_joint(model.encode(batch.select(some)), mine)

    alone = torch.cat([log_joint(n) for n in every.split(1)])
    limit = math.sqrt(length + 1) * torch.finfo(torch.float32).eps
    torch.testing.assert_close(alone, log_joint(every), rtol=limit, atol=0)


@every_normalised_model
def test_what_an_unknown_word_costs_is_not_rounded(name):
    """Tens of nats a word, hundreds of words: added in float64 by float32 models."""
    tiny, model, _ = opened(name)
    model.float()
    cost, text = -10 * math.pi, [UNKNOWN, 4, UNKNOWN]
    free, dear = (
        model.log_joint(
            model.encode(TokenBatch.collate([text], [[c, 0.0, c]], first=START)),
            tiny.latents(model, text),
        )
        for c in (0.0, cost)
    )
    torch.testing.assert_close(dear, free + 2 * cost, rtol=1e-12, atol=0)


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


@proposals(*READ_ON)
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
