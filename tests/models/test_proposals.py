"""A proposal is chosen by its name, and what cannot be meant is refused."""

from __future__ import annotations

import math

import pytest

from lm_latent_eval.models.proposals import check_temperature, chosen
from lm_latent_eval.models.rnng.crf import CRFProposal
from lm_latent_eval.models.rnng.modeling import RNNG
from tests.models.rnng import reference


def test_the_first_is_chosen_unless_one_is_named():
    known = ["peeking", "nonpeeking", "prior"]
    assert chosen(None, known) == "peeking"
    assert [chosen(name, known) for name in known] == known
    wrong = r"^proposal='peaking': this checkpoint has nonpeeking, peeking, prior$"
    with pytest.raises(ValueError, match=wrong):
        chosen("peaking", known)


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.inf, -math.inf, math.nan])
def test_a_temperature_must_be_positive_and_finite(temperature):
    with pytest.raises(ValueError, match=rf"^temperature={temperature}: expected a p"):
        check_temperature(temperature)


def test_a_temperature_must_leave_scores_their_digits():
    for temperature in (0.001, 1, 1000):
        check_temperature(temperature)
    for temperature in (5e-324, 1e-30, 0.00099, 1001, 1e308):
        with pytest.raises(ValueError, match=r"expected a positive number from 0\.001"):
            check_temperature(temperature)


def test_proposals_of_a_grammar():
    rnng: RNNG = reference.model("A", "eos")
    assert rnng.proposal().name == "adapted"
    assert isinstance(reference.model("A", "no_eos").proposal(), CRFProposal)
    assert isinstance(rnng.proposal("crf"), CRFProposal)
    for name in ("adapted", "prior"):
        assert rnng.proposal(name, 2.0).name == name
    with pytest.raises(ValueError, match="this checkpoint has adapted, crf, prior"):
        rnng.proposal("peeking")
    with pytest.raises(ValueError, match="expected a positive number"):
        rnng.proposal(None, 0.0)
