"""What a string costs beside its words, under each policy."""

from __future__ import annotations

import math

import pytest

from lm_latent_eval.text.encoder import reader
from lm_latent_eval.text.unknown_words import UnknownWords
from lm_latent_eval.text.words import UNKNOWN
from tests.tiny_checkpoint import UTTERED, orthography, tokenizer

TEXT = "the zebra saw  Ada."
"""Known, unknown, known, copied, known; with one space too many."""


@pytest.fixture(scope="module")
def words():
    return tokenizer()


@pytest.fixture(scope="module")
def writing():
    return orthography()


def test_closed_charges_nothing(words):
    reading = reader(words, "closed", num_unknown_types=7)(TEXT)
    assert reading.log_unknown == [0.0] * 5
    assert reading.log_spacing == [0.0] * 6
    assert reading.unspelled == [False, True, False, True, False]
    # Before Ada are two spaces; the full stop clings to her, as it would.
    assert reading.respaced == [False, False, False, True, False, False]


@pytest.mark.parametrize(
    ("text", "lost"),
    [("", [0]), (" \n", [1]), ("(the fox), saw", [0] * 7), (" a", [1, 0])],
)
def test_what_the_words_cannot_restore_is_counted(words, text, lost):
    assert reader(words, "closed")(text).respaced == [bool(n) for n in lost]


def test_penalized_charges_each_unknown_word_the_same(words):
    reading = reader(words, "penalized", num_unknown_types=7)(TEXT)
    cost = -math.log(7)
    assert reading.log_unknown == pytest.approx([0, cost, 0, cost, 0])
    assert reading.log_spacing == [0.0] * 6
    assert reading.unspelled == [False, True, False, True, False]


def test_spelled_charges_the_string(words, writing):
    reading = reader(words, "spelled", orthography=writing)(TEXT)
    zebra, ada = writing.spelling.log_prob(["zebra", "Ada"])
    assert reading.log_unknown == pytest.approx([0, zebra, 0, ada, 0])
    assert reading.log_spacing == writing.spacing(TEXT, words(TEXT))
    assert reading.log_spacing[3] < reading.log_spacing[2] < 0, "two spaces are rare"
    assert not any(reading.unspelled) and not any(reading.respaced)


def test_every_policy_reads_the_same_words(words, writing):
    readings = [
        reader(words, policy, num_unknown_types=7, orthography=writing)(TEXT)
        for policy in UnknownWords
    ]
    assert len({tuple(r.ids) for r in readings}) == 1
    assert len({tuple(r.ends) for r in readings}) == 1
    assert readings[0].ids[1] == UNKNOWN
    assert [TEXT[:end] for end in readings[0].ends][1] == "the zebra"


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


def test_a_vocabulary_is_excluded_from_spelling(words, writing):
    assert words.vocabulary == sorted(UTTERED, key=words.tokenizer.token_to_id)
    inside = writing.spelling.log_mass(words.vocabulary).exp().sum().item()
    assert writing.spelling.log_outside.item() == pytest.approx(math.log1p(-inside))


@pytest.mark.parametrize(
    ("types", "has_spelling", "policy"),
    [(7, True, "spelled"), (7, False, "penalized"), (0, False, "closed")],
)
def test_the_policy_is_the_strictest_there_is(
    words, writing, types, has_spelling, policy
):
    chosen = reader(
        words,
        num_unknown_types=types,
        orthography=writing if has_spelling else None,
    )
    assert chosen.policy == policy


@pytest.mark.parametrize(
    ("policy", "types", "message"),
    [
        ("spelled", 5, r"unk=spelled needs .* train spelling.* or unk=closed"),
        ("open", 5, r"unk='open': expected one of spelled, penalized, closed"),
        ("speled", 5, r"did you mean spelled"),
        ("", 5, r"unk='': expected one of"),
        ("penalized", 0, r"num_unknown_types .* use unk=closed"),
    ],
)
def test_an_impossible_policy_says_what_to_use(words, policy, types, message):
    with pytest.raises(ValueError, match=message):
        reader(words, policy, num_unknown_types=types)
