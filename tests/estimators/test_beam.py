import itertools
import math

import pytest
import torch

from lm_latent_eval.estimators import log_mass

LOG_JOINT = torch.tensor([0.02, 0.003, 0.11, 0.0, 0.007], dtype=torch.float64).log()


def test_never_exceeds_the_evidence_and_equals_it_with_every_latent():
    exact = LOG_JOINT.logsumexp(0)
    for width in range(1, 6):
        for beam in itertools.combinations(range(5), width):
            assert log_mass(LOG_JOINT[list(beam)]) <= exact + 1e-14

    assert log_mass(LOG_JOINT) == pytest.approx(exact.item(), abs=1e-14)


def test_rows_are_beams_and_places_may_be_empty():
    log_joint = torch.stack([LOG_JOINT, torch.full((5,), -torch.inf).double()])

    found = log_mass(log_joint)

    assert found[0].exp() == pytest.approx(0.14)
    assert found[1] == -math.inf


def test_float32_is_accumulated_in_float64():
    log_joint = torch.tensor([-10_000.0, -10_000.5])

    assert log_mass(log_joint).item() == pytest.approx(
        -10_000 + math.log1p(math.exp(-0.5)), rel=0, abs=1e-11
    )


def test_errors_name_the_place():
    with pytest.raises(ValueError, match=r"\[2\] is nan"):
        log_mass(torch.tensor([0.0, -1.0, math.nan]))
