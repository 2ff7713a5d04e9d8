"""JSON is read in one way or not at all."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lm_latent_eval.text import strict_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
).filter(lambda value: "Infinity" not in json.dumps(value))


@given(VALUES)
def test_json_is_what_json_says(value):
    assert strict_json.parse(json.dumps(value)) == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": {"b": 1, "c": 2, "b": 1}}', "'b' stands twice"),
        ('{"a": NaN}', "NaN is no JSON"),
        ("[" * 100_000 + "]" * 100_000, "nested too deeply"),
        ("{", "Expecting property name"),
    ],
    ids=["twice", "nan", "deep", "cut"],
)
def test_what_is_not_clear_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        strict_json.parse(text)


def test_types_are_taken_literally():
    assert strict_json.checked(1, int, "n") == 1
    assert strict_json.strings(["a", ""], "tokens") == ["a", ""]
    for value, kind in ((True, int), (1.0, int), (1, str), ("ab", list), (None, dict)):
        with pytest.raises(TypeError, match="n: expected"):
            strict_json.checked(value, kind, "n")
    for value in ("ab", ["a", 1], [["a"]], {"a": 1}):
        with pytest.raises(TypeError, match="tokens: expected"):
            strict_json.strings(value, "tokens")
