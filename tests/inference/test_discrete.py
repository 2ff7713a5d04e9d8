"""Discrete particle filters: unbiased whatever the ranks, exact where all fits."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import t as student
from torch import nn

from lm_latent_eval.estimators import (
    Bound,
    MissedSupportError,
    log_evidence,
    stderr_of_log_normal,
)
from lm_latent_eval.estimators.choices import is_undecided
from lm_latent_eval.inference import BeamMarginalization, cuts, particles
from lm_latent_eval.inference import steps as engine
from lm_latent_eval.inference.cuts import FEWEST, Thinned
from lm_latent_eval.inference.discrete import (
    CHECKS,
    DEGREES,
    LIKELY,
    OTHERS,
    PASSES,
    DiscreteFilter,
    Weights,
)
from lm_latent_eval.inference.particles import Particles
from lm_latent_eval.inference.pruning import thin_table
from lm_latent_eval.inference.sorted_lists import Places
from lm_latent_eval.inference.step_choices import Ragged
from lm_latent_eval.inference.streams import Streams
from tests.means import weights_are_of
from tests.test_laws import TINY_MODELS
from tests.tiny_steps import NUM_STATES, VOCABULARY, TinyHMM, log_p, scored, tiny

TEXT = [4, 5, 1, 4]
BAD = torch.tensor([[-3.0, 2.0, 0.0], [5.0, -4.0, 1.0], [0.0, 0.0, -6.0], [1.0, -1, 3]])
"""A look-ahead that is wrong: nats by the state before."""


GRID = 4000
"""Random numbers, evenly spread, that stand for all."""
RANKS = [
    [0.0, -1.0, -1.0, -3.0, -0.2],
    [0.0, -30.0, -31.0, -29.0, -60.0],
    [-2.0, -2.0, -2.0, -2.0, -2.0, -2.0],
    [1.0, -math.inf, 0.5, 0.4, -1.0],
    [0.0, -math.inf, -5.0, -math.inf],  # fewer than are to be kept
]


@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("row", RANKS)
def test_a_cut_keeps_sums_on_average(row, number):
    rank = torch.tensor(row, dtype=torch.float64)
    u = (np.arange(GRID) + 0.5) / GRID
    width, nothing = np.full(GRID, number), np.zeros(GRID)
    places = Places(width, width, nothing, nothing > 0)
    kept = thin_table(rank.repeat(GRID, 1).numpy(), places, u)
    column, log_f = map(torch.from_numpy, kept)
    used = log_f > -math.inf
    for choice, value in enumerate(row):
        survives = used & (column == choice)
        chance, factor = survives.sum().item() / GRID, log_f[survives].unique()
        if value == -math.inf:
            assert chance == 0
        elif chance > 2 / GRID:  # else it may fall between two numbers
            assert len(factor) == 1
            assert abs(chance * factor.exp().item() - 1) < 2 / GRID / chance
    weighed = (rank[column] + log_f).logsumexp(-1)
    torch.testing.assert_close(weighed, rank.logsumexp(-1).expand(GRID))
    possible = int((rank > -math.inf).sum())
    for columns, those in zip(column, used, strict=True):
        assert len({*columns[those].tolist()}) == those.sum() == min(number, possible)


def cut_of(widths: tuple[int, int], *shares: float) -> Thinned:
    """Return the cut of two groups a text, given what is worth a place in each text."""
    number = len(shares)
    streams = Streams([*range(number)], 2)
    whole = torch.ones(number, 2, dtype=torch.bool)
    worth = torch.tensor(shares).double()[:, None].expand(-1, 2)
    return Thinned(widths, streams, whole, worth)


class Uneven:
    """Steps of two texts: one of a vague token, one of that and two sure ones."""

    length, num_steps, num_columns = torch.tensor([1, 3]), 3, 1

    def begin(self, num_histories):
        return num_histories or 1

    def num_histories(self, state):
        return state

    def choices(self, state, t, score, cut):
        """List nothing of a text that has ended."""
        alive = (score > -math.inf) & (self.length > t)[:, None]
        groups = alive.unflatten(1, (cut.groups, -1)).flatten(0, 1)
        first = groups.byte().argmax(1) + torch.arange(len(groups)) * groups.shape[1]
        first = first[groups.any(1)]
        share = torch.linspace(0, -900.0 if t else -0.1, 300).double().log_softmax(0)
        columns = (torch.arange(300).repeat(len(first)),)
        history, log_p = first.repeat_interleave(300), share.repeat(len(first))
        return Ragged((2, state), history, columns, log_p)

    def take(self, state, t, choices, origin, choice):
        return engine.Taken(origin.shape[1], choices.decided(choice))


def test_a_text_that_has_ended_keeps_what_it_has_beside_one_that_is_sure():
    """Thinning keeps the total of ranks, which is 1 here."""
    cut = cut_of((64, 64), 1 / 64, 1 / 64)
    found = engine.searched(Uneven(), cut)
    [ended, _] = found.score.unflatten(1, (2, -1)).logsumexp(2)
    torch.testing.assert_close(ended, torch.zeros(2).double())
    used, still = found.score > -math.inf
    assert used.sum() > still.sum()


def test_a_full_beam_is_not_called_complete():
    """What it would not keep may not have been listed."""
    for width, full in ((300, True), (301, False)):
        found = engine.searched(Uneven(), cuts.Best(width))
        assert found.cut.tolist() == [[full], [full]]


def test_what_a_row_keeps_does_not_depend_on_the_others():
    dice = torch.Generator().manual_seed(0)
    counts = torch.tensor([[300], [3], [0], [70], [16], [200]])
    rank = torch.randn(6, 300, generator=dice, dtype=torch.float64)
    rank = rank.masked_fill(torch.arange(300) >= counts, -math.inf)
    shares = 1 / 50, 1 / 100, 1 / 200
    cut = cut_of((50, 20), *shares)
    column, log_f = cut.keep(rank, 0)
    assert cut.whole.tolist() == [[False, True], [True, False], [True, False]]
    used = log_f > -math.inf
    assert used.sum(1).tolist()[1:] == [3, 0, 20, 16, 20]
    assert FEWEST < used[0].sum() < 50
    for row in (0, 3):
        alone = cut_of((50, 20), *shares[: row // 2 + 1])
        some, log_some = alone.keep(rank[: 2 * (row // 2) + 2], 0)
        assert some[row, log_some[row] > -math.inf].equal(column[row, used[row]])


@pytest.mark.parametrize(("share", "number"), [(2e-3, FEWEST), (1e-5, 60), (1e-24, 80)])
def test_a_choice_takes_a_place_if_its_share_is_worth_one(share, number):
    """That of e^-11 is 2e-5."""
    rank = torch.tensor([[0.0, -5.0, *[-11.0] * 58, *[-40.0] * 40], [0.0] * 100])
    column, log_f = cut_of((80, 80), share).keep(rank.double(), 0)
    used = log_f > -math.inf
    assert used.sum(1).tolist() == [number, 80]
    assert {0, 1} < {*column[0, used[0]].tolist()}


def test_it_is_not_called_exact_where_one_latent_does_not_fit():
    """Where all do it is exact, which is a law."""
    method = DiscreteFilter(PASSES * (NUM_STATES ** len(TEXT) - 1))
    [row] = method.log_weights(scored(tiny(BAD.double()), [TEXT], "prior"))
    assert method.estimate(row, len(TEXT)).bound is Bound.STOCHASTIC_LOWER


class Merging(TinyHMM):
    """Says when histories go on alike."""

    futures = torch.arange(NUM_STATES)

    def step(self, read, state, t):
        return super().step(read, state, t)._replace(key=self.futures)


@pytest.mark.parametrize(
    ("kind", "width"),
    [(TinyHMM, 2), (TinyHMM, 8), (Merging, 2)],
)
def test_passes_and_their_checks_are_unbiased(kind, width):
    """By five standard errors, whatever the ranks are, and what is merged."""
    model, copies = tiny(BAD.double() * (1 if kind is TinyHMM else 0.2), kind), 3000
    method = DiscreteFilter(PASSES * width)
    found = method.extend(scored(model, [TEXT] * copies, "adapted"), None)
    passes, checks = found.log_p.split([PASSES, CHECKS], 1)
    weights_are_of(log_p(model, TEXT), passes)
    if width > 2:  # a pass of one is too uneven for this
        weights_are_of(log_p(model, TEXT), checks)
    assert Weights.of(found.log_w).other.isneginf().all(), "no other look-ahead"


def test_as_many_places_as_there_are_futures_are_exact():
    text = [4, 5, 1, 4] * 10
    method = DiscreteFilter(PASSES * NUM_STATES)
    for kind, bound in ((Merging, Bound.EXACT), (TinyHMM, Bound.STOCHASTIC_LOWER)):
        model = tiny(BAD.double(), kind)
        [row] = method.log_weights(scored(model, [text], "adapted"))
        found = method.estimate(row, len(text))
        assert found.bound is bound
        same = found.log_evidence == pytest.approx(log_p(model, text), abs=1e-9)
        assert same == (bound is Bound.EXACT)


def test_beams_add_what_goes_on_alike():
    text = [4, 5, 1, 4] * 10
    truth = log_p(tiny(), text)
    for kind, width in ((Merging, 2), (Merging, 4), (TinyHMM, 4)):
        texts = scored(tiny(kind=kind), [text], "prior")
        [row] = BeamMarginalization(width).log_weights(texts)
        exact = row.logsumexp(0).item() == pytest.approx(truth, abs=1e-9)
        assert exact == (kind is Merging and width > NUM_STATES - 1)
        assert row.logsumexp(0) < truth + 1e-9


def weights(
    passes: list[float], narrow: float | None = None, other: float = -math.inf
) -> torch.Tensor:
    """Return weights of passes that were cut, and of those that check them.

    These differ by no draws, and say ``narrow``, if not the same, and ``other``.
    """
    if narrow is None:
        narrow = log_evidence(torch.tensor(passes, dtype=torch.float64)).item()
    row = [*passes, *[narrow] * CHECKS, *[other] * OTHERS, -math.inf]
    return torch.tensor(row, dtype=torch.float64)


def test_the_error_is_of_the_passes_and_of_what_the_check_differs_by():
    method, spread = DiscreteFilter(80), [-5.0, -5.5, -5.2, -5.1, -5.4]
    same = method.estimate(weights(spread), 4)
    deviation = torch.tensor(spread).std().item() / math.sqrt(PASSES)
    assert same.draws_stderr == pytest.approx(deviation, rel=0.02)
    assert same.missed == pytest.approx(0.0, abs=1e-6)
    assert same.draws_degrees == DEGREES
    assert same.bound is Bound.STOCHASTIC_LOWER
    for nats in (-0.4, 0.4):
        off = method.estimate(weights(spread, same.log_evidence + nats), 4)
        assert off.log_evidence == same.log_evidence
        assert off.missed == pytest.approx(LIKELY * 0.4)
    for nats, found in ((0.4, 0.4), (-0.4, 0.0)):
        off = method.estimate(weights(spread, other=same.log_evidence + nats), 4)
        assert off.log_evidence == same.log_evidence
        assert off.missed == pytest.approx(LIKELY * found, abs=1e-6)
    uneven = weights([-3.0, -2.2, -2.8, -3.9, -3.3])
    assert method.estimate(uneven, 4).draws_stderr == pytest.approx(
        stderr_of_log_normal(uneven[:PASSES].var(), PASSES), rel=1e-6
    )


def test_intervals_of_the_draws_hold_19_times_in_20():
    """Of logarithms that are normal."""
    method, number, spread = DiscreteFilter(80), 4000, 0.05
    dice = torch.Generator().manual_seed(1)
    draws = spread * torch.randn(number, PASSES + CHECKS, generator=dice).double()
    rest = torch.full((number, OTHERS + 1), -math.inf)
    held = 0
    quantile = student.ppf(0.975, DEGREES)
    for row in torch.cat([draws, rest], 1):
        found = method.estimate(row, 4)
        reach = quantile * found.draws_stderr
        held += abs(found.log_evidence - spread**2 / 2) <= reach
    assert abs(held / number - 0.95) < 4 * math.sqrt(0.95 * 0.05 / number)


@pytest.mark.parametrize(
    "row",
    [
        weights([-3.0] * PASSES, -4.1),
        weights([-3.0] * PASSES, -math.inf),
        weights([-3.0] * PASSES, -3.0).index_fill(0, torch.tensor(5), -math.inf),
        weights([-5.0] * PASSES, -3.0),
        weights([-5.0] * PASSES, other=-3.0),
        weights([-1.0, -4.0, -4.0, -4.0, -4.0]),
    ],
)
def test_no_error_where_the_check_or_passes_disagree(row):
    estimate = DiscreteFilter(20).estimate(row, 4)
    assert estimate.stderr is None
    assert math.isfinite(estimate.log_evidence)


def test_nothing_found_is_refused():
    with pytest.raises(MissedSupportError):
        DiscreteFilter(20).estimate(weights([-math.inf] * PASSES), 4)


def test_company_and_pieces_move_nothing(monkeypatch):
    method, texts = DiscreteFilter(PASSES * 3), [TEXT, [5], [1, 4, 4, 5, 5, 1]]
    whole = scored(tiny(), texts, "adapted")
    together = method.log_weights(whole)
    for n, text in enumerate(texts):
        one = whole.select(torch.tensor([n])).piece(0, len(text))
        alone = method.log_weights(one)
        ours, theirs = method.unbiased(together[n]), method.unbiased(alone[0])
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
        assert together[n, -1] == alone[0, -1]
    monkeypatch.setattr(particles, "PIECE", 2)
    pieces = method.log_weights(whole)
    ours, theirs = method.unbiased(together), method.unbiased(pieces)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_a_continuation_is_a_ratio_of_the_same_passes():
    model, method = tiny(), DiscreteFilter(PASSES * NUM_STATES**4)
    whole = scored(model, [TEXT], "adapted")
    context = method.extend(whole.piece(0, 2), Particles.begin(1, "cpu"))
    after = method.extend(whole.piece(2, 4), context)
    found = method.difference(after.log_w[0], context.log_w[0], 2)
    exact = log_p(model, TEXT) - log_p(model, TEXT[:2])
    assert found.log_evidence == pytest.approx(exact, abs=1e-12)
    assert found.bound is Bound.EXACT
    assert found.replicates == (found.log_evidence,)


def test_what_is_found_beyond_text_and_context_alike_moves_no_difference():
    method, context, whole = DiscreteFilter(80), [-1.0] * PASSES, [-5.0] * PASSES
    for beyond_context, beyond_text, missed in ((0.0, 0.4, 0.4), (0.4, 0.4, 0.0)):
        after = weights(whole, other=-5.0 + beyond_text)
        before = weights(context, other=-1.0 + beyond_context)
        found = method.difference(after, before, 4)
        assert found.log_evidence == pytest.approx(-4.0)
        assert found.stderr == pytest.approx(LIKELY * missed, abs=1e-6)


def test_a_choice_that_there_is_not_has_no_probability():
    texts = scored(tiny(), [TEXT[:1]], "adapted")
    encoded = texts.proposal.encode(texts.batch)
    strange = torch.tensor([[[NUM_STATES], [-1], [0]]])
    found = texts.proposal.log_prob(encoded, strange)[0]
    assert found.isneginf().tolist() == [True, True, False]
    assert list(engine.follow(texts.proposal.drawn_steps(encoded), (strange,)))


def test_a_proposal_without_steps_is_refused():
    with pytest.raises(ValueError, match="num_samples=12: estimator=dpf needs a multi"):
        DiscreteFilter(12)
    case = TINY_MODELS["rnng"].case()
    with pytest.raises(ValueError, match="does not list its choices step by step"):
        case.log_weights(DiscreteFilter(10), case.proposal("crf"), [[4, 5, 3]])


# -- questions of which the answers are known: errors of continuations, and decisions --


QUESTIONS, OPTIONS, STATES = 100, 4, 12
CONTEXT, ANSWER = 12, 4
"""Words."""


class Peaked(TinyHMM):
    """A hidden Markov model of more states, each of which nearly decides the next."""

    def __init__(self, config, ahead=None):
        super().__init__(config, ahead)
        generator = torch.Generator().manual_seed(2)
        size = STATES + 1, STATES
        self.transitions = nn.Parameter(3 * torch.randn(size, generator=generator))
        size = STATES, VOCABULARY
        self.emissions = nn.Parameter(2 * torch.randn(size, generator=generator))

    def begin(self, batch):
        return (torch.full_like(batch.length[:, None], STATES),)


@pytest.fixture(scope="module")
def answered():
    """Estimates and truth of every option of questions, (questions, options)."""
    model, method = tiny(kind=Peaked), DiscreteFilter(100)
    generator = torch.Generator().manual_seed(7)

    def words(number):
        size = QUESTIONS, number
        drawn = torch.randint(VOCABULARY, size, generator=generator)
        return drawn.tolist()

    contexts, options = words(CONTEXT), [words(ANSWER) for _ in range(OPTIONS)]
    begin = Particles.begin(QUESTIONS, "cpu")
    before = method.extend(scored(model, contexts, "adapted"), begin)
    found, truth = [], []
    for option in options:
        texts = [[*both[0], *both[1]] for both in zip(contexts, option, strict=True)]
        whole = scored(model, texts, "adapted")
        after = method.extend(whole.piece(CONTEXT, CONTEXT + ANSWER), before)
        rows = zip(after.log_w, before.log_w, strict=True)
        found.append([method.difference(*row, ANSWER) for row in rows])
        both = zip(texts, contexts, strict=True)
        truth.append([log_p(model, a) - log_p(model, b) for a, b in both])
    return [*zip(*found, strict=True)], [*zip(*truth, strict=True)]


def test_printed_errors_hold(answered):
    held = []
    for estimates, truth in zip(*answered, strict=True):
        for estimate, exact in zip(estimates, truth, strict=True):
            if estimate.stderr is None:
                continue
            drawn = student.ppf(0.975, PASSES - 1) * estimate.draws_stderr
            wide = math.hypot(drawn, 1.96 * estimate.missed)
            held.append(abs(estimate.log_evidence - exact) <= wide)
    assert len(held) > 0.8 * QUESTIONS * OPTIONS, "few are withheld"
    # Options of a question share passes: as many trials as there are questions.
    noise = math.sqrt(0.95 * 0.05 / QUESTIONS)
    assert sum(held) / len(held) > 0.95 - 3 * noise


def test_errors_are_as_large_as_other_seeds_say():
    """Of two words that err far less than what precedes them, which cancels."""
    model, method, number = tiny(kind=Peaked), DiscreteFilter(100), 200
    generator = torch.Generator().manual_seed(1)
    size = (CONTEXT + 2,)
    text = torch.randint(VOCABULARY, size, generator=generator).tolist()
    whole = scored(model, [text] * number, "adapted")
    begin = Particles.begin(number, "cpu")
    before = method.extend(whole.piece(0, CONTEXT), begin)
    after = method.extend(whole.piece(CONTEXT, len(text)), before)
    rows = zip(after.log_w, before.log_w, strict=True)
    found = [method.difference(*row, 2) for row in rows]

    truth = log_p(model, text) - log_p(model, text[:CONTEXT])
    said = torch.tensor([each.log_evidence for each in found])
    error = (said - truth).square()
    of_context = method.unbiased(before.log_w).logsumexp(-1).var()
    assert of_context > 4 * error.mean(), "premise: what cancels is most"
    replicates = torch.tensor([each.replicates for each in found])
    torch.testing.assert_close(replicates.mean(1), said)
    drawn = torch.tensor([each.draws_stderr for each in found]).square()
    of_replicates = replicates.var(1) / PASSES
    for printed, expected in ((of_replicates, 1), (drawn, 1)):
        ratio = (printed.mean() / error.mean()).item()
        noise = (printed - ratio * error).std() / math.sqrt(number) / error.mean()
        assert noise < 0.2 * expected, "premise: precise enough to notice others"
        assert abs(ratio - expected) < 4 * noise


def test_what_is_decided_is_right(answered):
    decided = wrong = 0
    for estimates, truth in zip(*answered, strict=True):
        replicates = [estimate.replicates for estimate in estimates]
        if not all(replicates) or is_undecided(replicates):
            continue
        decided += 1
        best = max(range(OPTIONS), key=lambda n: estimates[n].log_evidence)
        wrong += truth[best] < max(truth)
    assert decided > QUESTIONS / 3, "premise: most can be told apart"
    assert wrong / decided < 0.05 + 3 * math.sqrt(0.05 * 0.95 / decided)
