"""Choices among answers, from shared draws and from replicates."""

import math

import numpy as np
import pytest
import torch

from lm_latent_eval.estimators.choices import (
    ROUNDING,
    first_of_best,
    is_undecided,
    repeat_stderr,
    tied,
)
from tests.means import normal


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


def test_what_more_answers_would_take_away():
    """Questions of which each has a chance of its own."""
    dice = np.random.default_rng(0)
    chances = dice.random(40)
    drawn = (dice.random((2000, 40, 4)) < chances[:, None]).astype(float)
    spread = drawn.mean((1, 2)).std()
    errors = [repeat_stderr([*each]) for each in drawn[:200]]
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(spread, rel=0.08)
    assert repeat_stderr([np.array([1.0])]) == 0
