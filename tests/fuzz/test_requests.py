"""Requests as the harness makes them, and as it should not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lm_latent_eval.harness.backends import LatentKGLM, LatentLSTM, LatentRNNG
from lm_latent_eval.harness.tasks import request
from tests.fuzz.law import Refused, finite, outcome, same, share
from tests.fuzz.strategies import SCALARS, TEXTS, VALUES
from tests.tiny_checkpoint import conditional, generation, rolling

BACKENDS = {"kglm_spelled": LatentKGLM, "lstm": LatentLSTM, "rnng": LatentRNNG}
FEW = 20
"""Words that a test can wait for."""


@pytest.fixture(scope="module")
def backends(folders):
    """Return backends over tiny models, by name."""
    return {
        name: backend(pretrained=str(folders[name]), num_samples=3, device="cpu")
        for name, backend in BACKENDS.items()
    }


every_backend = pytest.mark.parametrize("name", BACKENDS)


@every_backend
@share(0.3)
@given(pairs=st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=3))
def test_continuations_are_scored_alike_in_any_order(backends, name, pairs):
    lm, requests = backends[name], conditional(*pairs)
    found = outcome(lambda: lm.loglikelihood(requests))
    again = outcome(lambda: lm.loglikelihood(requests[::-1]))
    if isinstance(found, Refused):
        assert isinstance(again, Refused)
        return
    for (one, greedy), (other, also) in zip(found, again[::-1], strict=True):
        finite("a continuation", float(one))
        same("a continuation in another order", float(other), float(one))
        assert greedy == also


@every_backend
@share(0.3)
@given(texts=st.lists(TEXTS, min_size=1, max_size=3))
def test_documents_are_scored_alike_in_any_order(backends, name, texts):
    lm, requests = backends[name], rolling(*texts)
    found = outcome(lambda: lm.loglikelihood_rolling(requests))
    again = outcome(lambda: lm.loglikelihood_rolling(requests[::-1]))
    if isinstance(found, Refused):
        assert isinstance(again, Refused)
        return
    for one, other in zip(found, again[::-1], strict=True):
        finite("a document", float(one))
        same("a document in another order", float(other), float(one))


ARGUMENTS = st.dictionaries(
    st.sampled_from(
        ("until", "max_gen_toks", "max_new_tokens", "do_sample", "temperature", "top_p")
    ),
    st.one_of(VALUES, st.lists(TEXTS, max_size=2)),
    max_size=4,
)
LENGTHS = st.one_of(
    st.integers(-2, FEW),
    st.sampled_from(
        (0.5, 2.0, 1e1, float("inf"), float("nan"), "3", "many", None, [2])
    ),
    st.booleans(),
)


@every_backend
@share(1)
@given(context=TEXTS, arguments=ARGUMENTS, most=LENGTHS)
def test_any_generation_arguments(backends, name, context, arguments, most):
    arguments.pop("max_new_tokens", None)
    arguments |= {"max_gen_toks": most}
    (asked,) = generation(context)
    asked.arguments = (context, arguments)
    found = outcome(lambda: backends[name].generate_until([asked]))
    assert isinstance(found, Refused) or isinstance(found[0], str)


@every_backend
@share(0.5)
@given(arguments=st.one_of(SCALARS, st.lists(SCALARS, max_size=2)))
def test_generation_arguments_that_are_no_dictionary(backends, name, arguments):
    asked = request("generate_until", ("the", arguments), {}, 0, ("task", 0, 1))
    found = outcome(lambda: backends[name].generate_until([asked]))
    assert isinstance(found, Refused), "what was asked for was ignored"
