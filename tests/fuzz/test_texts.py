"""Any file is texts or refused, any string has a number, or there is a reason."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lm_latent_eval.harness.backends import LatentKGLM
from lm_latent_eval.harness.tasks import request
from lm_latent_eval.text.corpora import read_texts
from tests.fuzz.law import Refused, finite, outcome, same, share
from tests.fuzz.strategies import SCALARS, TEXTS, VALUES

# -- files -----------------------------------------------------------------------------

NAMES = ("a.txt", "a.jsonl", "a.JSONL", "a.ndjson", "a.json", "a.jsonl.txt", "a")


@pytest.mark.parametrize("ascii_only", [True, False])
@share(0.3)
@given(
    texts=st.lists(TEXTS, min_size=1, max_size=3).filter(
        lambda texts: all(text.strip() and "\0" not in text for text in texts)
    ),
    name=st.sampled_from(NAMES),
)
def test_the_form_of_a_file_moves_no_text(tmp_path_factory, ascii_only, texts, name):
    if any(text.encode("utf-8", "ignore").decode() != text for text in texts):
        return  # halves of pairs
    path = tmp_path_factory.getbasetemp() / name
    lines = [json.dumps({"text": text}, ensure_ascii=ascii_only) for text in texts]
    path.write_text("\n".join(lines), encoding="utf-8")
    assert outcome(lambda: read_texts(path)) == texts


JSON = st.recursive(
    VALUES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(("text", "tokens", "id")), inner, max_size=3),
    ),
    max_leaves=5,
)


@share(2)
@given(
    content=st.binary(max_size=80) | JSON.map(lambda v: json.dumps(v).encode() + b"\n"),
    name=st.sampled_from(NAMES),
)
def test_any_bytes_are_texts_or_refused(tmp_path_factory, content, name):
    path = tmp_path_factory.getbasetemp() / name
    path.write_bytes(content)
    found = outcome(lambda: read_texts(path))
    if isinstance(found, Refused):
        return
    assert all(isinstance(text, str) for text in found)
    if name.lower().endswith(("jsonl", "json")):
        assert content.lstrip(b"\xef\xbb\xbf \n\t").startswith(b"{"), "scored as prose"


# -- strings ---------------------------------------------------------------------------


# A model of strings, one of words and one of sentences.
@pytest.mark.parametrize("name", ["kglm_spelled", "lstm", "rnng"])
@share(0.2)
@given(text=TEXTS, other=TEXTS, context=st.none() | TEXTS)
def test_a_text_is_scored_alike_in_any_company(opened, name, text, other, context):
    def score(*texts):
        # Another context: options of the same one are compared, and widened, together.
        contexts = [context, f"{context} {other} the"][: len(texts)]
        given = {} if context is None else {"contexts": contexts}
        scored = opened[name].log_likelihood([*texts], num_samples=3, **given)
        return scored[0].log_evidence, scored[0].draws_stderr

    alone = outcome(lambda: score(text))
    if isinstance(alone, Refused):
        return
    finite("a text", alone[0], alone[1] if alone[1] < math.inf else 0.0)
    together = outcome(lambda: score(text, other))
    if not isinstance(together, Refused):  # the other one was
        same("a text in company", together[0], alone[0])


# -- requests of lm-eval ---------------------------------------------------------------


@pytest.fixture(scope="module")
def backend(folders):
    """Return a backend over a tiny model."""
    folder = folders["kglm_spelled"]
    return LatentKGLM(pretrained=folder, num_samples=3, device="cpu")


LENGTHS = st.integers(-2, 20) | st.sampled_from(
    (0.5, 2.0, 1e1, float("inf"), float("nan"), "3", "many", None, [2], True, False)
)
MOST = st.builds(lambda most: {"max_gen_toks": most}, LENGTHS)
OPTIONS = ("until", "max_gen_toks", "do_sample", "temperature", "top_p")


DICTIONARIES = st.dictionaries(
    st.sampled_from(OPTIONS), VALUES | st.lists(TEXTS, max_size=2), max_size=4
)


@share(1.5)
@given(
    context=TEXTS,
    arguments=st.builds(lambda some, most: some | most, DICTIONARIES, MOST)
    | SCALARS
    | st.lists(SCALARS, max_size=2),
)
def test_any_generation_arguments(backend, context, arguments):
    asked = request("generate_until", (context, arguments), {}, 0, ("task", 0, 1))
    found = outcome(lambda: backend.generate_until([asked]))
    if not isinstance(found, Refused):
        assert isinstance(arguments, dict), "what was asked for was ignored"
        assert isinstance(found[0], str)
