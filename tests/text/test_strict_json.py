"""JSON is read in one way or not at all."""

import pytest

from lm_latent_eval.text import strict_json


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
