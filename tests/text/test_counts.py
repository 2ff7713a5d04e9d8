import pytest

from lm_latent_eval.text.counts import Counts


def test_units_by_hand():
    texts = ["Zoë's 3 cats slept.  They snored!", "日本"]
    assert Counts.of(texts) == Counts(sentences=3, words=7, characters=35, bytes=40)


def test_nothing_has_no_length():
    assert Counts.of([""]) == Counts(sentences=0, words=0, characters=0, bytes=0)


def test_one_string_is_refused():
    with pytest.raises(TypeError, match="not one string"):
        Counts.of("text")
