"""What rounding tells apart, and what it does not."""

from __future__ import annotations

import torch

from lm_latent_eval.estimators.choices import (
    ROUNDING,
    Margin,
    first_of_best,
    tied,
    votes,
)


def test_the_bound_grows_with_the_length():
    assert tied([-1.0, -1.0 - 3 * ROUNDING], [2, 3]) == [0, 1]
    assert tied([-1.0, -1.0 - 3 * ROUNDING], [2, 2]) == [0]
    assert tied([-torch.inf, -torch.inf], [2, 2]) == [0, 1], "none is better"
    assert tied([-torch.inf, -9.0], [0, 0]) == [1]


def test_the_most_probable_word_is_the_first_that_ties():
    log_p = torch.tensor([-3.0, -1.0, -1.0 + ROUNDING / 2, -2.0])
    assert first_of_best(log_p) == 1
    assert first_of_best(log_p + torch.tensor([0, 0, 1e-3, 0])) == 2


def test_rounding_makes_no_choice_sure():
    log_w = torch.tensor([[-1.0, -2.0], [-1.0 - 1e-13, -2.0 - 1e-13]]).double()
    assert not Margin.of(log_w).is_sure
    assert votes(log_w, torch.zeros(2)).tolist() == [0.5, 0.5]
