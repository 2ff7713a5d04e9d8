"""Noise over strings: what is cut, what stays in its place, and whole data sets."""

import json

import pytest
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import normalizers

from lm_latent_eval.contrastive.noise import (
    TextNoise,
    Tokens,
    WhiteSpaceWords,
    distinct_words,
    read_vocabulary,
)
from lm_latent_eval.text.noise import NoiseChannel
from tests import tiny_checkpoint
from tests.harness.test_tokens import byte_level

CHANNEL = NoiseChannel.preset(0.3, ["plum", "river", "tower"])
TEXTS = [
    "She sold  her house.\n",
    "",
    " \t ",
    "one",
    "The river runs past the old tower and into the sea.",
] * 6


# -- words at white space --------------------------------------------------------------


@given(
    st.one_of(
        st.text(alphabet=st.characters(codec="utf-8")),
        st.lists(st.sampled_from(["a", "bc", " ", "\n", "\u2003"])).map("".join),
    ),
    st.data(),
)
def test_white_space_stays_where_it_is(text, data):
    words = WhiteSpaceWords()
    cut = words.cut(text)
    assert cut == text.split() and words.paste(cut, text) == text
    other = st.lists(st.sampled_from(["x", "yz"]), min_size=len(cut), max_size=len(cut))
    others = data.draw(other)
    pasted = words.paste(others, text)
    assert words.cut(pasted) == others
    assert [c for c in pasted if c.isspace()] == [c for c in text if c.isspace()]
    with pytest.raises(ValueError, match=f"has {len(cut)} words; got {len(cut) + 1}"):
        words.paste([*others, "z"], text)


# -- tokens ----------------------------------------------------------------------------


def test_as_many_tokens_leave_as_enter():
    tokenizer = byte_level()
    tokens = Tokens(tokenizer)
    special = tokenizer.eos_token_id
    assert special not in tokens.vocabulary
    assert sorted([special, *tokens.vocabulary]) == list(range(len(tokenizer)))
    channel = NoiseChannel.preset(0.3, tokens.vocabulary)
    changed = 0
    for n, text in enumerate(TEXTS):
        ids = tokens.cut(text)
        assert tokens.paste(ids, text) == text
        noisy = channel.distort(ids, seed=4, name=n)
        assert len(noisy) == len(ids)
        assert special not in noisy
        spelled = TextNoise(channel, tokens, seed=4).distort(text, n)
        assert spelled == tokenizer.decode(noisy)
        changed += spelled != text
    assert changed > len(TEXTS) / 3
    tokenizer.backend_tokenizer.normalizer = normalizers.Lowercase()
    with pytest.raises(ValueError, match=r"turn 'She sold .*' into 'she sold"):
        Tokens(tokenizer).cut("She sold her house.")


# -- data sets -------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [1, 4, 1000])
def test_batches_change_nothing(batch_size):
    noise = TextNoise(CHANNEL, WhiteSpaceWords(), seed=4)
    data = Dataset.from_dict({"text": TEXTS, "other": list(range(len(TEXTS)))})
    mapped = data.map(noise, batched=True, with_indices=True, batch_size=batch_size)
    assert mapped["text"] == [noise.distort(text, n) for n, text in enumerate(TEXTS)]
    assert mapped["other"] == data["other"]
    assert mapped["text"][4] != TEXTS[4]
    page = TextNoise(CHANNEL, WhiteSpaceWords(), replicate=2, column="page")
    found = page.process_docs(Dataset.from_dict({"page": TEXTS}))["page"]
    assert found[4] == page.distort(TEXTS[4], 4, 2) != page.distort(TEXTS[4], 4)
    order = list(reversed(range(len(TEXTS))))
    backwards = noise({"text": [TEXTS[n] for n in order]}, order)["text"]
    assert backwards[::-1] == mapped["text"]


# -- vocabularies ----------------------------------------------------------------------


def test_a_vocabulary_is_read_from_a_training_text(tmp_path, lstm_directory):
    assert distinct_words(["b  a", "", "c b\n"]) == ["a", "b", "c"]
    plain, lines = tmp_path / "train.txt", tmp_path / "train.jsonl"
    plain.write_text("b a\nc b\n")
    lines.write_text(json.dumps({"text": "b a"}) + "\n" + json.dumps({"text": "c"}))
    assert read_vocabulary(plain) == read_vocabulary(lines) == ["a", "b", "c"]
    assert sorted(read_vocabulary(lstm_directory)) == sorted(tiny_checkpoint.UTTERED)


def test_a_vocabulary_that_is_not_there(tmp_path):
    with pytest.raises(ValueError, match=r"none\.txt: no such file"):
        read_vocabulary(tmp_path / "none.txt")
    with pytest.raises(ValueError, match="is not a checkpoint of words"):
        read_vocabulary(tmp_path)
    byte_level().save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"vocab_size": 5}')
    with pytest.raises(ValueError, match="its tokens are pieces of words"):
        read_vocabulary(tmp_path)
