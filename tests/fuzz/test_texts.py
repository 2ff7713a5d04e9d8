"""Any string has a number, by itself, in company, after a context and before one."""

from __future__ import annotations

import pytest
from hypothesis import given

from tests.fuzz.law import Refused, finite, outcome, same, share
from tests.fuzz.models import PROBABILITIES, WRITE
from tests.fuzz.strategies import TEXTS

FEW = {"num_samples": 3}


@pytest.mark.parametrize("name", WRITE)
@share(0.3)
@given(text=TEXTS, other=TEXTS)
def test_a_text_is_scored_alike_in_any_company(opened, name, text, other):
    score = opened[name].log_likelihood
    alone = outcome(lambda: score([text], **FEW)[0])
    if isinstance(alone, Refused):
        return
    finite("a text", alone.log_evidence, alone.draws_stderr)
    together = outcome(lambda: score([text, other], **FEW)[0])
    if not isinstance(together, Refused):  # the other one was
        same("a text in company", together.log_evidence, alone.log_evidence)


@pytest.mark.parametrize("name", PROBABILITIES)
@share(0.3)
@given(context=TEXTS, text=TEXTS)
def test_a_continuation_is_a_number(opened, name, context, text):
    score = opened[name].log_likelihood
    found = outcome(lambda: score([text], contexts=[context], **FEW)[0])
    if not isinstance(found, Refused):
        finite("a continuation", found.log_evidence, found.draws_stderr)


@pytest.mark.parametrize("name", ["kglm", "lstm_spelled", "rnng"])
@share(0.2)
@given(text=TEXTS)
def test_a_generation_is_a_string(opened, name, text):
    write = opened[name].generate
    found = outcome(lambda: write([text], max_tokens=3, num_samples=2)[0])
    assert isinstance(found, str | Refused)


@pytest.mark.parametrize("name", ["kglm_spelled", "lstm", "rnng"])
@share(0.2)
@given(text=TEXTS)
def test_a_bound_is_below_what_it_bounds(opened, name, text):
    """A wider beam, a probability: no estimator exceeds what certainty allows."""
    score = opened[name].log_likelihood
    estimator = "exact" if name == "lstm" else "beam"
    found = outcome(lambda: score([text], num_samples=5, estimator=estimator)[0])
    if not isinstance(found, Refused):
        finite("a bound", found.log_evidence)
        assert found.log_evidence <= 1e-9
