"""Choices among answers, from shared draws and from replicates."""

import math
from itertools import product

import numpy as np
import pytest
import torch

from lm_latent_eval.estimators.choices import (
    ROUNDING,
    Margin,
    accuracy_curve,
    first_of_best,
    is_undecided,
    log_mean_gap,
    repeat_stderr,
    tied,
    votes,
)
from tests.means import normal, uniform

LOG_W = uniform(3, 40, seed=0).log()
NONE = torch.zeros(40, dtype=torch.float64)
RIGHT = torch.tensor([0.0, 1.0, 0.0])


def test_one_draw_is_right_as_often_as_draws_are_and_all_choose_as_the_estimate():
    [one, every] = accuracy_curve([LOG_W], [NONE], [RIGHT], [1, 40])
    share = (LOG_W.argmax(0) == 1).double().mean().item()
    assert one.accuracy == one.voted == pytest.approx(share)
    assert every.accuracy == RIGHT[int(LOG_W.logsumexp(-1).argmax())]
    assert every.voted == RIGHT[int(votes(LOG_W, NONE).argmax())]


def test_the_error_of_draws_is_that_of_runs():
    """A question whose two draws disagree: right with probability 3/4 of four pairs."""
    log_w = torch.tensor([[0.9, 0.2], [0.1, 0.3]]).log()
    right = torch.tensor([1.0, 0.0])
    again = [
        float(log_w.exp()[:, list(pair)].sum(-1).argmax() == 0)
        for pair in product(range(2), repeat=2)
    ]
    assert sum(again) / 4 == 0.75
    number = 200
    [_, two] = accuracy_curve(
        [log_w] * number, [torch.zeros(2)] * number, [right] * number, [1, 2]
    )
    assert two.accuracy == 1.0
    spread = math.sqrt(0.75 * 0.25 / number)
    # A standard deviation of 400 values is known to 1 in sqrt(800).
    assert two.draws_stderr == pytest.approx(spread, rel=5 / math.sqrt(800))
    assert two.band == (pytest.approx(1 - 1.96 * two.draws_stderr), 1.0)


def test_draws_without_an_answer_choose_none():
    dead = torch.full((2, 4), -torch.inf)
    [one] = accuracy_curve([dead], [torch.zeros(4)], [torch.ones(2)], [1])
    assert one.accuracy == one.voted == 0
    assert votes(dead, torch.zeros(4)).tolist() == [0, 0]
    half = torch.tensor([[-torch.inf, 0.0], [-torch.inf, -1.0]])
    assert votes(half, torch.zeros(2)).tolist() == [0.5, 0]


def test_the_gap_is_jensen_s():
    log_p = LOG_W - 1
    gap = log_mean_gap(log_p, NONE)
    wanted = log_p.exp().mean(-1).log() - log_p.mean(-1)
    assert gap.tolist() == pytest.approx(wanted.tolist())
    assert (gap > 0).all()
    twice = torch.cat([log_p, log_p[:, :1]], -1)  # a draw that counts twice
    ratios = NONE.clone()
    ratios[0] = math.log(2)
    wanted = log_mean_gap(twice, torch.zeros(41))
    assert log_mean_gap(log_p, ratios).tolist() == pytest.approx(wanted.tolist())


def test_a_margin_is_sure_where_draws_agree():
    """Errors of two answers are not independent: what draws share cancels."""
    shared = normal(50, seed=1)
    margin = Margin.of(torch.stack([shared, shared - 0.1]))
    assert margin.difference == pytest.approx(0.1) and margin.stderr < 1e-12
    assert margin.is_sure
    assert not Margin.of(normal(2, 50, seed=2)).is_sure


def test_what_is_called_decided_seldom_flips():
    """Of equal options one in twenty is called decided, to its standard error.

    What replicates of both have in common is no doubt, however much it is.
    """
    trials, replicates = 4000, 8
    common = normal(trials, 1, replicates, seed=0, sd=5)
    own = normal(trials, 2, replicates, seed=1)
    decided = sum(not is_undecided(each) for each in (common + own).tolist())
    error = math.sqrt(0.05 * 0.95 / trials)
    assert abs(decided / trials - 0.05) < 5 * error


def test_what_is_known_is_compared_with_what_is_drawn():
    drawn = [-3.0, -3.2, -2.8, -3.1, -2.9, -3.0, -3.1, -2.9]
    assert not is_undecided([[-1.0], drawn, [-9.0]])
    assert is_undecided([[-2.99], drawn])
    assert not is_undecided([[-2.99], [-3.0]])
    assert not is_undecided([drawn])


def test_scores_tie_within_a_rounding_that_grows_with_the_length():
    assert tied([-1.0, -1.0 - 3 * ROUNDING], [2, 3]) == [0, 1]
    assert tied([-1.0, -1.0 - 3 * ROUNDING], [2, 2]) == [0]
    assert tied([-torch.inf, -torch.inf], [2, 2]) == [0, 1], "none is better"
    assert tied([-torch.inf, -9.0], [0, 0]) == [1]
    log_p = torch.tensor([-3.0, -1.0, -1.0 + ROUNDING / 2, -2.0])
    assert first_of_best(log_p) == 1
    assert first_of_best(log_p + torch.tensor([0, 0, 1e-3, 0])) == 2
    log_w = torch.tensor([[-1.0, -2.0], [-1.0 - 1e-13, -2.0 - 1e-13]]).double()
    assert not Margin.of(log_w).is_sure
    assert votes(log_w, torch.zeros(2)).tolist() == [0.5, 0.5]


def test_what_more_answers_would_take_away():
    """Questions of which each has a chance of its own."""
    dice = np.random.default_rng(0)
    chances = dice.random(40)
    drawn = (dice.random((2000, 40, 4)) < chances[:, None]).astype(float)
    spread = drawn.mean((1, 2)).std()
    errors = [repeat_stderr([*each]) for each in drawn[:200]]
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(spread, rel=0.08)
    assert repeat_stderr([np.array([1.0])]) == 0
