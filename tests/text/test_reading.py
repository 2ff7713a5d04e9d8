"""What a string costs beside its words, under each policy."""

import math

import pytest

from lm_latent_eval.text.encoder import reader
from lm_latent_eval.text.unknown_words import UnknownWords
from lm_latent_eval.text.words import UNKNOWN
from tests.tiny_checkpoint import orthography, tokenizer

TEXT = "the zebra saw  Ada."
"""Known, unknown, known, copied, known; with one space too many."""


@pytest.fixture(scope="module")
def words():
    return tokenizer()


@pytest.fixture(scope="module")
def writing():
    return orthography()


def test_each_policy_charges_what_it_says(words, writing):
    readings = {
        str(policy): reader(words, policy, num_unknown_types=7, orthography=writing)(
            TEXT
        )
        for policy in UnknownWords
    }
    zebra, ada = writing.spelling.log_prob(["zebra", "Ada"])
    charged = {"closed": (0, 0), "penalized": (-math.log(7),) * 2}
    for policy, reading in readings.items():
        first, second = charged.get(policy, (zebra, ada))
        assert reading.log_unknown == pytest.approx([0, first, 0, second, 0])
        assert reading.ids == readings["closed"].ids, "every policy reads the same"
        assert reading.ids[1] == UNKNOWN
        assert [TEXT[:end] for end in reading.ends][1] == "the zebra"
        if policy == "spelled":
            assert reading.log_spacing == writing.spacing(TEXT, words(TEXT))
            assert reading.log_spacing[3] < reading.log_spacing[2] < 0, "two are rare"
            assert not any(reading.unspelled) and not any(reading.respaced)
        else:
            assert reading.log_spacing == [0.0] * 6
            assert reading.unspelled == [False, True, False, True, False]


@pytest.mark.parametrize(
    ("text", "lost"),
    [
        ("", [0]),
        (" \n", [1]),
        ("(the fox), saw", [0] * 7),
        (" a", [1, 0]),
        (TEXT, [0, 0, 0, 1, 0, 0]),  # the full stop clings to Ada, as it would
    ],
)
def test_what_the_words_cannot_restore_is_counted(words, text, lost):
    assert reader(words, "closed")(text).respaced == [bool(n) for n in lost]


def test_a_literal_unknown_word_has_no_spelling(words, writing):
    reading = reader(words, "spelled", orthography=writing)("the <unk> saw")
    assert reading.ids[1] == UNKNOWN
    assert reading.log_unknown == [0.0] * 3
    assert reading.unspelled == [False, True, False]


def test_words_are_priced_by_their_ids_too(words, writing):
    ids = words("Ada the Bo").ids
    ada, bo = writing.spelling.log_prob(["Ada", "Bo"])
    spelled = reader(words, "spelled", orthography=writing)
    assert spelled.price(ids) == [ada, 0.0, bo]
    penalized = reader(words, "penalized", num_unknown_types=7)
    assert penalized.price(ids) == pytest.approx([-math.log(7), 0, -math.log(7)])


def test_the_policy_is_the_strictest_there_is(words, writing):
    given = {"spelled": (7, writing), "penalized": (7, None), "closed": (0, None)}
    for policy, (types, spelling) in given.items():
        chosen = reader(words, num_unknown_types=types, orthography=spelling)
        assert chosen.policy == policy


@pytest.mark.parametrize(
    ("policy", "types", "message"),
    [
        ("spelled", 5, r"unk=spelled needs .* train spelling.* or unk=closed"),
        ("speled", 5, r"unk='speled': expected one of .*did you mean spelled"),
        ("penalized", 0, r"num_unknown_types .* use unk=closed"),
    ],
)
def test_an_impossible_policy_says_what_to_use(words, policy, types, message):
    with pytest.raises(ValueError, match=message):
        reader(words, policy, num_unknown_types=types)
