"""Bounds by search, and their differences."""

from __future__ import annotations

import math

import pytest
import torch

from lm_latent_eval.estimators import Bound
from lm_latent_eval.inference import BeamMarginalization


def test_a_difference_of_bounds_is_no_bound():
    log_w = torch.tensor([0.1, 0.05, 0.0]).double().log()
    prefix = torch.tensor([0.4, 0.2, 0.0]).double().log()
    found = BeamMarginalization(3).difference(log_w, prefix, 2)
    assert math.exp(found.log_evidence) == pytest.approx(0.15 / 0.6)
    assert (found.bound, found.stderr) == (Bound.NONE, None)
    assert (found.num_samples, found.num_tokens, found.estimator) == (3, 2, "beam")
