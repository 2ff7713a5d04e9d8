"""Strings to words and back: nothing lost, nothing invented, bad files refused."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lm_latent_eval.text.words import UNKNOWN, WordTokenizer, split

TRAINING = ["The cat saw the cat .", "The dog saw a dog; the end."]
NAMES = ["The Vorsen cat", "Ünnürup"]


@pytest.fixture(scope="module")
def words() -> WordTokenizer:
    return WordTokenizer.train(TRAINING, min_count=2, copied=NAMES)


@pytest.mark.parametrize("mark", ["<pad>", "<s>", "</s>"])
def test_a_mark_is_no_word_of_a_text(words, mark):
    """Where words are cut at white space, a text could name one."""
    cut = WordTokenizer.at_white_space(["<pad>", "<unk>", "<s>", "</s>", "cat"], 5)
    assert cut("cat <unk> s> <S>").ids == [4, UNKNOWN, UNKNOWN, UNKNOWN]
    with pytest.raises(ValueError, match=f"the text has {mark} as a word.*take it out"):
        cut(f"cat {mark} cat")
    assert min(words(f"cat {mark} cat").ids) == UNKNOWN, "cut into pieces"


# -- vocabulary ---------------------------------------------------------------------


def test_words_are_numbered_by_frequency_and_unknown_types_counted_once(words):
    listed = [words.tokenizer.id_to_token(i) for i in range(words.num_words)]
    assert listed == [
        *("<pad>", "<unk>", "<s>", "</s>"),
        *(".", "The", "cat", "dog", "saw", "the"),  # twice each; "a", "end", ";" once
        *("Vorsen", "Ünnürup"),  # only in names
    ]
    assert words.vocab_size == 10
    assert words.num_words == 12
    counted = words.count_unknown_types(["cat", "zebra", "zebra", "Vorsen", "<unk>"])
    assert counted == 2, "zebra, and Vorsen, which cannot be uttered"


def test_words_that_are_cut_already_are_not_cut_again():
    texts = ["u.s. n't <unk> a-b,c", "a-b,c  n't \n'tis"]
    words = WordTokenizer.train(texts, min_count=1, already_cut=True)
    known = ["a-b,c", "n't", "'tis", "u.s."]  # twice each, then once each
    assert words.vocabulary == known
    assert words("'tis <unk> a-b,c u.s. n't other").ids == [
        *(6, UNKNOWN, 4, 7, 5, UNKNOWN)
    ]
    text = "'tis other <unk>"
    assert words.cut(text) == ["'tis", "other", "<unk>"]
    assert WordTokenizer.train(texts).cut(text) == ["'", "tis", "other", "<unk>"]
    assert words.count_unknown_types(words.cut(text)) == 1


# -- strings to words ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" \t\n\u00a0\u2003", []),
        ("a<unk>b", ["a", "<unk>", "b"]),
        ("hi 🦊\0x\u200by", ["hi", "🦊", "\0", "x", "\u200b", "y"]),
        ("John’s aren't we'll", ["John", "’s", "aren't", "we", "'ll"]),
        ("U.S. 3.14 1,000,000.", ["U.S.", "3.14", "1,000,000", "."]),
        ("10:30 rock-n-roll AT&T 1990–95", ["10:30", "rock-n-roll", "AT&T", "1990–95"]),
        ("(end)...", ["(", "end", ")", ".", ".", "."]),
        ("東京 e\u0301t", ["東京", "e\u0301t"]),
    ],
)
def test_what_counts_as_a_word(text, expected):
    assert split(text) == expected


@given(
    st.text()
    | st.lists(st.sampled_from([*"aé1.,'’-<>()\0 \n", "🦊", "<unk>", "'s"])).map(
        "".join
    )
)
@example("\x1f")
def test_only_whitespace_is_lost(text):
    words = WordTokenizer.train(TRAINING, copied=NAMES)
    result = words(text)
    spans = list(zip(result.starts, result.ends, strict=True))
    assert "".join(text[a:b] for a, b in spans) == "".join(
        c for c in text if not is_space(c)
    )
    assert [b - a for a, b in spans] == [len(word) for word in split(text)]
    assert all(a < b for a, b in spans)
    assert [a for a, _ in spans] == sorted(a for a, _ in spans)
    assert all(0 <= i < words.num_words for i in result.ids)


def is_space(character: str) -> bool:
    """Whether Unicode calls it white space; Python adds four separators to that."""
    return character.isspace() and character not in "\x1c\x1d\x1e\x1f"


# -- words to strings ---------------------------------------------------------------


def test_decoding_attaches_punctuation():
    text = "Anna's cat (a dog), it's 3,000 “old”!"
    words = WordTokenizer.train([text], min_count=1)
    assert words.decode([2, *words("Anna's cat (a dog), it's 3,000!").ids, 3, 0]) == (
        "Anna's cat (a dog), it's 3,000!"
    )
    assert UNKNOWN not in words(text).ids, "a minimum count of one keeps every word"
    assert words(words.decode(words(text).ids)).ids == words(text).ids
    assert words.decode([]) == ""
    assert words.decode([UNKNOWN]) == "<unk>"


@pytest.mark.parametrize("bad", [12, -1, 10**6])
def test_an_id_of_no_word_is_refused(words, bad):
    with pytest.raises(ValueError, match=rf"no word has the id {bad}: there are 12"):
        words.decode([4, bad])


# -- files ------------------------------------------------------------------------


def test_a_file_of_too_few_words_is_named(words, tmp_path):
    """What else may be wrong with it: ``tests/models/test_checkpoint.py``."""
    words.save(tmp_path)
    with pytest.raises(ValueError, match=r"has 12 words but .* 13: .* another check"):
        WordTokenizer.load(tmp_path, 13)
