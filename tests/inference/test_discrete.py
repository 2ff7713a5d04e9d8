"""Discrete particle filters: unbiased whatever the ranks, exact where all fits."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from lm_latent_eval.estimators import (
    Bound,
    MissedSupportError,
    stderr_of_log_normal,
)
from lm_latent_eval.inference import BeamMarginalization, particles
from lm_latent_eval.inference import steps as engine
from lm_latent_eval.inference.cuts import thinned
from lm_latent_eval.inference.discrete import LIKELY, PASSES, DiscreteFilter, Weights
from lm_latent_eval.inference.particles import Particles
from lm_latent_eval.models.kglm.listing import Unlisted
from lm_latent_eval.testing.case import keys
from lm_latent_eval.text.batch import TokenBatch
from tests.inference.test_mixed import example
from tests.means import weights_are_of
from tests.test_laws import TINY_MODELS, opened
from tests.tiny_steps import NUM_STATES, log_p, tiny

TEXT = [4, 5, 1, 4]
BAD = torch.tensor([[-3.0, 2.0, 0.0], [5.0, -4.0, 1.0], [0.0, 0.0, -6.0], [1.0, -1, 3]])
"""A look-ahead that is wrong: nats by the state before."""


def chances(rank: torch.Tensor, number: int) -> dict[tuple[int, ...], float]:
    """Return the probability of every outcome of a cut of one row, by its columns.

    An outcome depends on where the random number lies between the points at which
    another choice is met, so between each two of them one number stands for all.
    """
    points = {0.0, 1.0}
    for grain in range(1, 4000):
        points.add(grain / 4000)
    found: dict[tuple[int, ...], float] = {}
    ordered = sorted(points)
    for low, high in itertools.pairwise(ordered):
        u = torch.tensor([(low + high) / 2], dtype=torch.float64)
        column, _ = thinned(rank[None], number, u)
        kept = tuple(sorted(column[0].tolist()))
        found[kept] = found.get(kept, 0.0) + high - low
    return found


RANKS = [
    [0.0, -1.0, -1.0, -3.0, -0.2],
    [0.0, -30.0, -31.0, -29.0, -60.0],
    [-2.0, -2.0, -2.0, -2.0, -2.0, -2.0],
    [1.0, -math.inf, 0.5, 0.4, -1.0],
]


@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("row", RANKS)
def test_a_cut_keeps_sums_on_average(row, number):
    rank = torch.tensor(row, dtype=torch.float64)
    kept = chances(rank, number)
    assert abs(sum(kept.values()) - 1) < 1e-9
    u = torch.rand(2000, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    column, log_f = thinned(rank.expand(2000, -1), number, u)
    for choice, value in enumerate(row):
        chance = sum(p for columns, p in kept.items() if choice in columns)
        if value == -math.inf:
            assert chance == 0
            continue
        factor = log_f[column == choice].unique()
        if chance > 2 / 4000:  # else it may fall between two points
            assert len(factor) == 1
            assert abs(chance * factor.exp().item() - 1) < 2 / 4000 / chance
    total = rank.logsumexp(-1)
    weighed = (rank[column] + log_f).logsumexp(-1)
    torch.testing.assert_close(weighed, total.expand(2000))
    for columns in column:
        assert len({*columns.tolist()}) == number


def test_a_cut_of_few_keeps_all():
    rank = torch.tensor([[0.0, -math.inf, -5.0, -math.inf]], dtype=torch.float64)
    column, log_f = thinned(rank, 3, torch.tensor([0.9], dtype=torch.float64))
    kept = rank[0, column[0]] > -torch.inf
    assert {*column[0, kept].tolist()} == {0, 2}
    assert log_f[0, kept].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("name", ["adapted", "prior"])
def test_it_is_exact_where_every_latent_fits(name):
    model, width = tiny(BAD.double()), NUM_STATES ** len(TEXT)
    batch = TokenBatch.collate([TEXT], first=2)
    for number, bound in ((width, Bound.EXACT), (width - 1, Bound.STOCHASTIC_LOWER)):
        method = DiscreteFilter(PASSES * number)
        [row] = method.log_weights(model, model.proposal(name), batch, keys(1))
        found = method.estimate(row, len(TEXT))
        assert found.bound is bound
        if bound is Bound.EXACT:
            assert found.stderr == 0
            assert found.log_evidence == pytest.approx(log_p(model, TEXT), abs=1e-12)


@pytest.mark.parametrize(("beam", "width"), [(1, 2), (3, 3), (40, 3), (4, 8)])
def test_passes_and_pilot_are_unbiased(beam, width):
    """By five standard errors, whatever the ranks; what the beam found counts once."""
    model, copies = tiny(BAD.double()), 3000
    batch = TokenBatch.collate([TEXT] * copies, first=2)
    method = DiscreteFilter(beam, thinned=PASSES * width)
    proposal = model.proposal("adapted")
    log_w = method.log_weights(model, proposal, batch, keys(copies))
    bound = BeamMarginalization(beam).log_weights(model, proposal, batch, keys(copies))
    of, bound = Weights.of(log_w), bound.logsumexp(-1, keepdim=True)
    assert bool((of.found == bound).all())
    assert bool((of.summed >= bound).all())
    if beam == 1:
        assert bool((of.summed > bound).any()), "the pilot has met others"
    # A narrower pass of one is too uneven for this.
    several = [of.of_narrow] if method.narrow_width > 1 else []
    for estimates in (of.passes, of.of_pilot, *several):
        weights_are_of(log_p(model, TEXT), estimates)


@pytest.mark.parametrize("name", ["entitynlm", "kglm", "lda", "lrlm", "nklm", "rnng"])
def test_passes_of_models_are_unbiased(name, monkeypatch):
    """Where most choices are thinned, those that stand for others included."""
    drawn, draw = [], Unlisted.draw

    def watching(*arguments):
        drawn.append(arguments)
        return draw(*arguments)

    monkeypatch.setattr(Unlisted, "draw", watching)
    case, model, proposal = opened(name, "adapted")
    text, copies = example(name, case, proposal), 1000
    method = DiscreteFilter(2, thinned=PASSES * 4)
    batch = case.batch([text] * copies)
    of = Weights.of(method.log_weights(model, proposal, batch, keys(copies)))
    assert of.mark.isneginf().all(), "premise: something is thinned"
    if name == "kglm":
        assert drawn, "premise: some of what is not listed survives"
    for estimates in (of.passes, of.of_pilot):
        weights_are_of(case.log_p(text), estimates, 0.02)


def weights(
    outside: list[float], wide: float, narrow: float, pilot: list[float] | None = None
) -> torch.Tensor:
    """Return weights of passes that were cut, narrower ones and a pilot like them."""
    flat = outside if pilot is None else pilot
    row = [*outside, wide, wide, narrow, *outside, *flat, -math.inf]
    return torch.tensor(row, dtype=torch.float64)


def test_the_error_is_of_the_passes_and_of_what_width_still_finds():
    method, spread = DiscreteFilter(20), [-5.0, -5.5, -5.2, -5.1, -5.4]
    same = method.estimate(weights(spread, -3.0, -3.0), 4)
    assert same.stderr == same.draws_stderr > 0
    assert same.draws_degrees == PASSES - 1
    assert same.bound is Bound.STOCHASTIC_LOWER
    grown = method.estimate(weights(spread, -3.0, -3.5), 4)
    assert grown.log_evidence == same.log_evidence
    outside = math.exp(same.log_evidence) - math.exp(-3.0)
    more = same.log_evidence - math.log(math.exp(-3.5) + outside)
    assert grown.missed == pytest.approx(LIKELY * more)
    off = method.estimate(weights(spread, -3.0, -3.0, [-4.5] * PASSES), 4)
    more = math.log(math.exp(-3.0) + math.exp(-4.5)) - off.log_evidence
    assert off.missed == pytest.approx(LIKELY * more)
    little = method.estimate(weights([-3.0] * PASSES, -30.0, -33.0), 4)
    assert little.stderr == pytest.approx(0.0, abs=1e-9), "the passes found nearly all"
    apart = method.estimate(weights([-3.0] * PASSES, -30.0, -30.0, [-4.0] * PASSES), 4)
    assert apart.stderr == pytest.approx(0.0, abs=1e-9), "a pilot judges the search"
    above = method.estimate(weights([-3.0] * PASSES, -30.0, -30.0, [-2.5] * PASSES), 4)
    assert above.missed == pytest.approx(LIKELY * 0.5), "and what it finds counts"
    uneven = method.estimate(weights([-3.0, -2.2, -2.8, -3.9, -3.3], -30.0, -30.0), 4)
    spread_of = torch.tensor([-3.0, -2.2, -2.8, -3.9, -3.3]).var()
    assert uneven.draws_stderr == pytest.approx(
        stderr_of_log_normal(spread_of, PASSES), rel=1e-6
    )


@pytest.mark.parametrize(
    "row",
    [
        weights([-math.inf] * PASSES, -3.0, -4.1),
        weights([-math.inf] * PASSES, -3.0, -math.inf),
        weights([-1.0, -4.0, -4.0, -4.0, -4.0], -9.0, -9.0),
        weights([-9.0] * PASSES, -5.0, -5.0, [-3.0] * PASSES),
    ],
)
def test_no_error_where_width_or_passes_disagree(row):
    estimate = DiscreteFilter(20).estimate(row, 4)
    assert estimate.stderr is None
    assert math.isfinite(estimate.log_evidence)


def test_nothing_found_is_refused():
    with pytest.raises(MissedSupportError):
        DiscreteFilter(20).estimate(weights([-math.inf] * 5, -math.inf, -math.inf), 4)


def test_company_and_pieces_move_nothing(monkeypatch):
    model, method = tiny(), DiscreteFilter(PASSES * 3)
    proposal = model.proposal("adapted")
    texts = [TEXT, [5], [1, 4, 4, 5, 5, 1]]
    batch = TokenBatch.collate(texts, first=2)
    together = method.log_weights(model, proposal, batch, keys(3))
    for n, text in enumerate(texts):
        one = TokenBatch.collate([text], first=2)
        alone = method.log_weights(model, proposal, one, [keys(3)[n]])
        ours, theirs = method.unbiased(together[n]), method.unbiased(alone[0])
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
        assert together[n, -1] == alone[0, -1]
    monkeypatch.setattr(particles, "PIECE", 2)
    pieces = method.log_weights(model, proposal, batch, keys(3))
    for ours, theirs in zip(together, pieces, strict=True):
        torch.testing.assert_close(
            method.unbiased(ours), method.unbiased(theirs), rtol=0, atol=1e-12
        )


def test_a_continuation_is_a_ratio_of_the_same_passes():
    model, method = tiny(), DiscreteFilter(PASSES * NUM_STATES**4)
    proposal = model.proposal("adapted")
    whole = TokenBatch.collate([TEXT], first=2)
    begin = Particles.begin(1, "cpu")
    context = method.extend(model, proposal, whole.piece(0, 2), keys(1), [0], begin)
    after = method.extend(model, proposal, whole.piece(2, 4), keys(1), [2], context)
    found = method.difference(after.log_w[0], context.log_w[0], 2)
    exact = log_p(model, TEXT) - log_p(model, TEXT[:2])
    assert found.log_evidence == pytest.approx(exact, abs=1e-12)
    assert found.bound is Bound.EXACT


def test_a_choice_that_there_is_not_has_no_probability():
    model = tiny()
    batch = TokenBatch.collate([TEXT[:1]], first=2)
    proposal = model.proposal("adapted")
    strange = torch.tensor([[[NUM_STATES], [-1], [0]]])
    found = proposal.log_prob(proposal.encode(batch), strange)[0]
    assert found.isneginf().tolist() == [True, True, False]
    assert list(engine.follow(proposal.drawn_steps(proposal.encode(batch)), (strange,)))


def test_a_proposal_without_steps_is_refused():
    with pytest.raises(ValueError, match="num_samples=12: estimator=dpf needs a multi"):
        DiscreteFilter(12)
    case = TINY_MODELS["rnng"].case()
    with pytest.raises(ValueError, match="does not list its choices step by step"):
        case.log_weights(DiscreteFilter(10), case.proposal("crf"), [[4, 5, 3]])
