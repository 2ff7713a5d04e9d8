"""Coverage of intervals for bounded means, with stopping wherever it hurts most.

"At any time" is the hardest stopping rule: a trial fails if the truth is outside at any
of its draws.
"""

import math

import pytest
import torch

from lm_latent_eval.estimators import Choice, discoveries, probability_interval
from lm_latent_eval.estimators.intervals import log_capital, running_log_capital
from tests.means import uniform

TRIALS, DRAWS = 2000, 128

PROBABILITIES = [1e-6, 1e-4, 1e-2, 0.1, 0.5, 0.9, 0.999, 1.0]

KINDS = ("coin", "spike", "beta", "powers")


def weights(kind, p, *shape, seed):
    """Draw numbers in [0, 1] of mean p, exactly."""
    if p > 0.5:
        rest = weights(kind, 1 - p, *shape, seed=seed) if p < 1 else 0.0
        return torch.ones(shape, dtype=torch.float64) - rest
    u = uniform(*shape, seed=seed)
    if kind == "coin":
        return (u < p).double()
    if kind == "spike":  # hardly ever above what looks like all there is
        often = torch.full_like(u, p / 2)
        return often.masked_fill(u < p / (2 - p), 1.0)
    if kind == "beta":  # u^a has mean 1 / (a + 1)
        return u ** (1 / p - 1)
    # Tiny by far most of the time: 10^-j with chances that give the mean.
    values = torch.tensor([1.0, 1e-2, 1e-4, 1e-8], dtype=torch.float64)
    chances = p * torch.tensor([0.5, 0.2, 0.2, 0.1], dtype=torch.float64)
    mean = (values * chances).sum()
    rest = (p - mean) / (1 - chances.sum())
    place = torch.searchsorted(chances.cumsum(0), u)
    return torch.cat([values, rest.reshape(1)])[place]


def binomial_margin(rate, trials=TRIALS):
    return 5 * math.sqrt(rate * (1 - rate) / trials)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("p", PROBABILITIES)
def test_means_stay_inside_at_all_times(kind, p):
    y = weights(kind, p, TRIALS, DRAWS, seed=7)
    if p in (0.1, 0.5, 0.9):  # the mean is as said, or the test is of something else
        assert y.mean().item() == pytest.approx(p, abs=6 / math.sqrt(TRIALS * DRAWS))
    threshold = math.log(2 / 0.05)
    upper = (p - y) / (1 - p) if p < 1 else (p - y)
    for gain in (y / p - 1, upper):
        ever = (running_log_capital(gain) >= threshold).any(-1).double().mean()
        assert ever <= 0.025 + binomial_margin(0.025)


@pytest.mark.parametrize("b", [1.0, 2.0])
@pytest.mark.parametrize("kind", KINDS)
def test_ends_are_where_the_capital_crosses(kind, b):
    """The ends against the capital itself, and the estimate between them."""
    for p in (1e-4, 0.05, 0.5, 0.99):
        y = weights(kind, p, 20, 64, seed=3)
        log_w = y.log() + math.log(b)
        at_least, at_most = probability_interval(log_w, b)
        found = log_w.logsumexp(-1) - math.log(64)
        assert bool((at_least <= found + 1e-9).all())
        assert bool((found.clamp(max=0) <= at_most + 1e-9).all())
        threshold = math.log(40)
        some = y.sum(-1) > 0
        assert bool(at_least[~some].isneginf().all())
        m = (at_least.exp() / b)[some, None]
        capital = log_capital(y[some] / m - 1)
        assert capital.tolist() == pytest.approx([threshold] * len(m), abs=1e-6)
        inner = at_most < -1e-4
        m = (at_most.exp() / b)[inner, None]
        capital = log_capital((m - y[inner]) / (1 - m))
        assert capital.tolist() == pytest.approx([threshold] * len(m), abs=1e-6)


def test_intervals_of_the_ends_hold_under_stopping():
    """Draw until the interval leaves out a wrong p, or the budget ends."""
    p, wrong, trials = 0.3, 0.25, 500
    y = weights("beta", p, trials, 256, seed=11)
    missed = 0
    going = torch.ones(trials, dtype=torch.bool)
    for number in (8, 16, 32, 64, 128, 256):
        at_least, at_most = probability_interval(y[going, :number].log())
        stops = (at_least > math.log(wrong)) | (at_most < math.log(wrong))
        stops |= number == 256
        outside = (at_least > math.log(p)) | (at_most < math.log(p))
        missed += int((outside & stops).sum())
        going[going.clone()] = ~stops
    assert missed / trials <= 0.05 + binomial_margin(0.05, trials)


def test_nothing_is_said_of_what_was_not_drawn():
    none = torch.full((8,), -torch.inf)
    assert probability_interval(none)[0].item() == -math.inf
    every = torch.zeros(8)
    assert probability_interval(every)[1].item() == 0.0
    assert probability_interval(none[:1], 2.0)[1].item() == 0.0, "p is at most 1"
    assert probability_interval(torch.tensor([1e-6]))[1].item() == 0.0, "rounding"
    # Of K zeros p is known to within log(40) / K at the very best.
    for number in (4, 64, 256):
        best = 1 - 0.025 ** (1 / number)
        zeros = torch.full((number,), -torch.inf)
        assert best < probability_interval(zeros)[1].exp().item() < 1.2 * best


@pytest.mark.parametrize("number", [2, 5])
def test_a_wrong_option_is_hardly_ever_certain(number):
    """Others are nearly as probable; stopped as soon as one is sure."""
    trials, wrong, decided = 1000, 0, 0
    u = uniform(trials, number, 96, seed=number)
    p = torch.tensor([0.52 if number == 2 else 0.7, *[0.5] * (number - 1)])[:, None]
    for row in (u < p).double():
        choice = Choice.of(row.log())
        decided += choice.decided is not None
        wrong += choice.decided is not None and choice.best != 0
    assert wrong / trials <= 0.05 + binomial_margin(0.05, trials)
    assert decided > wrong, "premise: something is decided"


def test_ties_are_not_decided_and_what_is_certain_stays():
    trials = 1000
    u = uniform(trials, 2, 96, seed=4)
    sure = sum(Choice.of((row < 0.5).double().log()).decided is not None for row in u)
    assert sure / trials <= 0.1 + binomial_margin(0.1, trials)
    same = (u[0, :1] < 0.5).double().log().expand(2, 96)
    assert Choice.of(same).decided is None and Choice.of(same).log_e < 0.01
    row = (uniform(3, 64, seed=9) < torch.tensor([[0.9], [0.3], [0.1]])).double().log()
    choice = Choice.of(row)
    assert choice.best == 0 and 5 < choice.decided < 64
    for end, decided in ((0, choice.decided), (-1, None)):
        assert Choice.of(row[:, : choice.decided + end]).decided == decided
    assert Choice.of(row[:1]) == Choice(0, 0, math.inf)


def test_certain_together_are_few_that_are_wrong():
    """All nulls true: then any discovery is wrong, in at most 5 % of runs."""
    trials, questions = 400, 20
    u = uniform(trials * questions, 64, seed=1)
    log_e = log_capital(2 * (u < 0.5).double() - 1).reshape(trials, questions)
    found = sum(any(discoveries(row.tolist())) for row in log_e)
    assert found / trials <= 0.05 + binomial_margin(0.05, trials)
    assert discoveries([math.log(20.1)] * 5) == [True] * 5
    assert discoveries([math.log(20.1), 0.0]) == [False, False]
