"""Noise over strings: what is cut, what stays in its place, and whole data sets."""

from __future__ import annotations

import json

import pytest
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import ByteLevelBPETokenizer, Tokenizer, normalizers

from lm_latent_eval.contrastive.noise import (
    TextNoise,
    Tokens,
    WhiteSpaceWords,
    distinct_words,
    read_vocabulary,
)
from lm_latent_eval.text.noise import NoiseChannel
from tests import tiny_checkpoint
from tests.tiny_causal import fast

CHANNEL = NoiseChannel.preset(0.3, ["plum", "river", "tower"])
TEXTS = [
    "She sold  her house.\n",
    "",
    " \t ",
    "one",
    "The river runs past the old tower and into the sea.",
] * 6


@pytest.fixture
def noise():
    return TextNoise(CHANNEL, WhiteSpaceWords(), seed=4)


# -- words at white space --------------------------------------------------------------


@given(st.text(alphabet=st.characters(codec="utf-8")))
def test_words_are_what_stands_between_white_space(text):
    words = WhiteSpaceWords()
    assert words.cut(text) == text.split()
    assert words.paste(words.cut(text), text) == text


@given(st.lists(st.sampled_from(["a", "bc", " ", "\n", "\u2003"])), st.data())
def test_white_space_stays_where_it_is(pieces, data):
    text, words = "".join(pieces), WhiteSpaceWords()
    others = data.draw(
        st.lists(
            st.sampled_from(["x", "yz"]),
            min_size=len(words.cut(text)),
            max_size=len(words.cut(text)),
        )
    )
    pasted = words.paste(others, text)
    assert words.cut(pasted) == others
    assert [c for c in pasted if c.isspace()] == [c for c in text if c.isspace()]


@pytest.mark.parametrize("words", [["x"], ["x", "y", "z"]])
def test_words_must_fit_their_places(words):
    with pytest.raises(ValueError, match=f"has 2 words; got {len(words)}"):
        WhiteSpaceWords().paste(words, "a b")


def test_a_string_is_distorted_as_its_words_are(noise):
    text = TEXTS[4]
    for replicate in range(3):
        words = CHANNEL.distort(text.split(), seed=4, name=9, replicate=replicate)
        assert noise.distort(text, 9, replicate).split() == words
    assert [noise.distort(text, 9) for text in TEXTS[1:3]] == TEXTS[1:3]


# -- tokens ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bytes_in_pairs():
    """A byte-level tokenizer, which can spell any string."""
    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator(
        TEXTS, vocab_size=280, special_tokens=["<|end|>"], show_progress=False
    )
    return fast(
        Tokenizer.from_str(trained.to_str()), eos_token="<|end|>", name_or_path="pairs"
    )


def test_as_many_tokens_leave_as_enter(bytes_in_pairs):
    tokens = Tokens(bytes_in_pairs)
    special = bytes_in_pairs.convert_tokens_to_ids("<|end|>")
    assert special not in tokens.vocabulary
    assert sorted([special, *tokens.vocabulary]) == list(range(len(bytes_in_pairs)))
    assert tokens.name == "tokens of pairs"
    channel = NoiseChannel.preset(0.3, tokens.vocabulary)
    changed = 0
    for n, text in enumerate(TEXTS):
        ids = tokens.cut(text)
        assert tokens.paste(ids, text) == text
        noisy = channel.distort(ids, seed=4, name=n)
        assert len(noisy) == len(ids)
        assert special not in noisy
        spelled = TextNoise(channel, tokens, seed=4).distort(text, n)
        assert spelled == bytes_in_pairs.decode(noisy)
        changed += spelled != text
    assert changed > len(TEXTS) / 3


def test_tokens_that_lose_something_are_refused(bytes_in_pairs):
    lossy = Tokenizer.from_str(bytes_in_pairs.backend_tokenizer.to_str())
    lossy.normalizer = normalizers.Lowercase()
    with pytest.raises(ValueError, match=r"turn 'She sold .*' into 'she sold"):
        Tokens(fast(lossy)).cut("She sold her house.")


# -- data sets -------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [1, 4, 1000])
def test_batches_change_nothing(noise, batch_size):
    data = Dataset.from_dict({"text": TEXTS, "other": list(range(len(TEXTS)))})
    mapped = data.map(noise, batched=True, with_indices=True, batch_size=batch_size)
    assert mapped["text"] == [noise.distort(text, n) for n, text in enumerate(TEXTS)]
    assert mapped["other"] == data["other"]
    assert mapped["text"][4] != TEXTS[4]


@pytest.mark.nightly
def test_processes_change_nothing(noise):
    data = Dataset.from_dict({"text": TEXTS})
    mapped = data.map(noise, batched=True, with_indices=True, num_proc=2)
    assert mapped["text"] == noise.process_docs(data)["text"]


def test_records_are_distorted_in_any_order(noise):
    order = list(reversed(range(len(TEXTS))))
    backwards = noise({"text": [TEXTS[n] for n in order]}, order)["text"]
    assert backwards[::-1] == noise({"text": TEXTS}, range(len(TEXTS)))["text"]


def test_equal_texts_are_distorted_for_themselves(noise):
    copies = {noise.distort(TEXTS[4], n) for n in range(20)}
    assert len(copies) > 15


def test_column_and_replicate_are_settings():
    noise = TextNoise(CHANNEL, WhiteSpaceWords(), replicate=2, column="page")
    data = Dataset.from_dict({"page": TEXTS})
    assert noise.process_docs(data)["page"][4] == noise.distort(TEXTS[4], 4, 2)


# -- vocabularies ----------------------------------------------------------------------


def test_words_of_texts_come_once_and_in_order():
    assert distinct_words(["b  a", "", "c b\n"]) == ["a", "b", "c"]


def test_a_vocabulary_is_read_from_a_training_text(tmp_path):
    plain, lines = tmp_path / "train.txt", tmp_path / "train.jsonl"
    plain.write_text("b a\nc b\n")
    lines.write_text(json.dumps({"text": "b a"}) + "\n" + json.dumps({"text": "c"}))
    assert read_vocabulary(plain) == read_vocabulary(lines) == ["a", "b", "c"]


def test_a_vocabulary_is_read_from_a_checkpoint(lstm_directory):
    assert sorted(read_vocabulary(lstm_directory)) == sorted(tiny_checkpoint.UTTERED)


def test_tokens_of_other_checkpoints_are_no_words(tmp_path, bytes_in_pairs):
    bytes_in_pairs.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"vocab_size": 5}')
    with pytest.raises(ValueError, match="its tokens are pieces of words"):
        read_vocabulary(tmp_path)


def test_a_vocabulary_that_is_not_there(tmp_path):
    with pytest.raises(ValueError, match=r"none\.txt: no such file"):
        read_vocabulary(tmp_path / "none.txt")
    with pytest.raises(ValueError, match="is not a checkpoint of words"):
        read_vocabulary(tmp_path)
