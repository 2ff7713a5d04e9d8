"""Any string has a number, in any company and order, and any request an answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lm_latent_eval.harness.backends import LatentKGLM
from lm_latent_eval.harness.tasks import request
from tests.fuzz.law import Refused, finite, outcome, same, share
from tests.fuzz.models import PROBABILITIES, WRITE
from tests.fuzz.strategies import SCALARS, TEXTS, VALUES
from tests.tiny_checkpoint import conditional, generation, rolling

FEW = {"num_samples": 3}
MODELS = [name for name in WRITE if f"{name}_spelled" not in WRITE]


@pytest.mark.parametrize("name", MODELS)
@share(0.2)
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


@pytest.mark.parametrize("name", [name for name in MODELS if name in PROBABILITIES])
@share(0.2)
@given(context=TEXTS, text=TEXTS)
def test_a_continuation_is_a_number(opened, name, context, text):
    score = opened[name].log_likelihood
    found = outcome(lambda: score([text], contexts=[context], **FEW)[0])
    if not isinstance(found, Refused):
        finite("a continuation", found.log_evidence, found.draws_stderr)


@pytest.mark.parametrize("name", ["kglm_spelled", "lstm", "rnng"])
@share(0.2)
@given(text=TEXTS)
def test_texts_are_written_and_bounded(opened, name, text):
    """A bound, by a beam or exactly, is a log-probability."""
    written = outcome(lambda: opened[name].generate([text], max_tokens=3, **FEW)[0])
    assert isinstance(written, str | Refused)
    options = {"num_samples": 5, "estimator": "exact" if name == "lstm" else "beam"}
    found = outcome(lambda: opened[name].log_likelihood([text], **options)[0])
    if not isinstance(found, Refused):
        finite("a bound", found.log_evidence)
        assert found.log_evidence <= 1e-9


# -- requests of lm-eval ---------------------------------------------------------------


@pytest.fixture(scope="module")
def backend(folders):
    """Return a backend over a tiny model."""
    folder = str(folders["kglm_spelled"])
    return LatentKGLM(pretrained=folder, num_samples=3, device="cpu")


@share(0.2)
@given(pairs=st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=2))
def test_requests_are_answered_alike_in_any_order(backend, pairs):
    for ask, requests in (
        (backend.loglikelihood, conditional(*pairs)),
        (backend.loglikelihood_rolling, rolling(*(text for _, text in pairs))),
    ):
        found = outcome(lambda ask=ask, asked=requests: ask(asked))
        again = outcome(lambda ask=ask, asked=requests[::-1]: ask(asked))
        if isinstance(found, Refused):
            assert isinstance(again, Refused)
            continue
        for one, other in zip(found, again[::-1], strict=True):
            (one, *greedy), (other, *also) = (
                answer if isinstance(answer, tuple) else (answer,)
                for answer in (one, other)
            )
            finite("an answer", float(one))
            same("an answer in another order", float(other), float(one))
            assert greedy == also


LENGTHS = st.one_of(
    st.integers(-2, 20),
    st.sampled_from(
        (0.5, 2.0, 1e1, float("inf"), float("nan"), "3", "many", None, [2])
    ),
    st.booleans(),
)
NAMES = ("until", "max_gen_toks", "do_sample", "temperature", "top_p")


@share(1)
@given(
    context=TEXTS,
    arguments=st.dictionaries(
        st.sampled_from(NAMES),
        st.one_of(VALUES, st.lists(TEXTS, max_size=2)),
        max_size=4,
    ),
    most=LENGTHS,
)
def test_any_generation_arguments(backend, context, arguments, most):
    (asked,) = generation(context)
    asked.arguments = (context, arguments | {"max_gen_toks": most})
    found = outcome(lambda: backend.generate_until([asked]))
    assert isinstance(found, Refused) or isinstance(found[0], str)


@share(0.5)
@given(arguments=st.one_of(SCALARS, st.lists(SCALARS, max_size=2)))
def test_generation_arguments_that_are_no_dictionary(backend, arguments):
    asked = request("generate_until", ("the", arguments), {}, 0, ("task", 0, 1))
    found = outcome(lambda: backend.generate_until([asked]))
    assert isinstance(found, Refused), "what was asked for was ignored"
