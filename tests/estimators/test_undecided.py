"""Which questions other draws may answer otherwise."""

from __future__ import annotations

import math

import pytest
import torch

from lm_latent_eval.estimators.choices import is_undecided

REPLICATES = 8


def question(gap: float, spread: float, shared: float, generator) -> list[list[float]]:
    """Two options, of which each replicate has a part in common and one of its own."""
    common = torch.randn(REPLICATES, generator=generator) * shared
    own = torch.randn(2, REPLICATES, generator=generator) * spread
    return (common + own + torch.tensor([[gap], [0.0]])).tolist()


def test_what_is_called_decided_seldom_flips():
    """Of equal options one in twenty is called decided, to its standard error."""
    generator, trials = torch.Generator().manual_seed(0), 4000
    decided = sum(
        not is_undecided(question(0.0, 1.0, 5.0, generator)) for _ in range(trials)
    )
    error = math.sqrt(0.05 * 0.95 / trials)
    assert abs(decided / trials - 0.05) < 5 * error


def test_what_options_share_is_no_doubt():
    generator = torch.Generator().manual_seed(1)
    together = [is_undecided(question(1.0, 0.1, 9.0, generator)) for _ in range(50)]
    apart = [is_undecided(question(1.0, 9.0, 0.0, generator)) for _ in range(50)]
    assert not any(together) and sum(apart) > 40


def test_what_is_known_is_compared_with_what_is_drawn():
    drawn = [-3.0, -3.2, -2.8, -3.1, -2.9, -3.0, -3.1, -2.9]
    assert not is_undecided([[-1.0], drawn, [-9.0]])
    assert is_undecided([[-2.99], drawn])
    assert not is_undecided([[-2.99], [-3.0]])
    assert not is_undecided([drawn])


@pytest.mark.parametrize("wrong", [[], [[]], [[1.0, 2.0], [1.0, 2.0, 3.0]]])
def test_replicates_that_do_not_pair_are_refused(wrong):
    with pytest.raises(ValueError, match="as many replicates of every option"):
        is_undecided(wrong)
