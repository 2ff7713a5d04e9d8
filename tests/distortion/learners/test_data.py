"""Which sequences a learner sees, in which batches."""

from __future__ import annotations

import json

import numpy as np
import pytest

from lm_latent_eval.distortion.languages.corpus import TokenIds
from lm_latent_eval.distortion.languages.language import train_bpe, word_tokenizer
from lm_latent_eval.distortion.learners.data import (
    Batches,
    CorpusData,
    FreshData,
    TextData,
    check_apart,
    open_data,
)
from tests.distortion.languages.tiny import regular
from tests.distortion.learners.tiny import MAX_LENGTH, draw


def every(sequences) -> list[list[int]]:
    return [sequences[place].tolist() for place in range(len(sequences))]


def test_corpus_is_read_as_it_was_drawn(tmp_path):
    corpus = draw(tmp_path, 50, first=7)
    sequences = CorpusData(corpus).sequences(3)
    expected = regular().sample(0, range(7, 57), MAX_LENGTH).sequences
    assert every(sequences) == expected
    assert sequences.lengths.tolist() == [*map(len, expected)]


def test_fresh_sequences_have_the_numbers_that_are_promised(tmp_path):
    corpus = draw(tmp_path / "corpus", 3, first=5, seed=2)
    data = FreshData(corpus, regular(), 20, tmp_path / "fresh", quiet=True)
    for epoch in (0, 1, 4):
        first = 5 + 20 * epoch
        expected = regular().sample(2, range(first, first + 20), MAX_LENGTH).sequences
        assert every(data.sequences(epoch)) == expected
        assert [f.name for f in (tmp_path / "fresh").iterdir()] == [f"{epoch:05}"]
    assert data.drawn(3) == (corpus, range(5, 65))
    data.clear()
    assert not (tmp_path / "fresh").exists()


def test_sequences_of_training_are_nowhere_else(tmp_path):
    corpus = draw(tmp_path / "corpus", 10)
    fresh = FreshData(corpus, regular(), 10, tmp_path / "fresh", quiet=True)
    after = draw(tmp_path / "after", 5, first=10)
    check_apart(CorpusData(corpus), 3, {"test": after}, "trained on")
    check_apart(fresh, 1, {"test": after}, "trained on")
    with pytest.raises(ValueError, match=r"test sequences 10 \.\. 14 of .*after"):
        check_apart(fresh, 2, {"test": after}, "trained on")
    with pytest.raises(ValueError, match=r"validation sequences 9 \.\. 9"):
        overlapping = draw(tmp_path / "overlapping", 5, first=9)
        check_apart(CorpusData(corpus), 1, {"validation": overlapping}, "trained on")
    other = draw(tmp_path / "other", 5, first=10, seed=1)
    check_apart(fresh, 2, {"test": other}, "trained on")


def test_text_becomes_its_tokens_and_the_end(tmp_path, capsys):
    texts = ["b a", "a", "a b </s> never", "never", "b b b"]
    path = tmp_path / "text.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    bpe = train_bpe(["a b never"] * 3, 262)
    bpe.save_pretrained(tmp_path / "bpe")
    data = open_data(path, tokenizer=tmp_path / "bpe", max_length=7)
    assert isinstance(data, TextData)
    found = every(data.sequences(1))
    whole = [[*bpe(t, split_special_tokens=True).input_ids, 1] for t in texts]
    assert [len(ids) > 7 for ids in whole] == [False, False, True, False, False]
    assert found == [ids[:7] for ids in whole]
    assert 1 not in found[2]
    said = f"{path}: 1 of 5 texts have more than 7 tokens"
    assert capsys.readouterr().err.startswith(said)
    for name, words in (("other", "plums"), ("same", "a b never")):
        train_bpe([words] * 3, 262).save_pretrained(tmp_path / name)
    settings = [
        TextData(path, TokenIds.read(tmp_path / name), 7).settings()
        for name in ("bpe", "same", "other")
    ]
    assert settings[0] == settings[1] != settings[2]
    for text, ids in zip(texts, found, strict=True):
        assert text.startswith(bpe.decode([i for i in ids if i != 1]))


def test_what_is_no_data_is_refused(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("a plum\n")
    with pytest.raises(ValueError, match="is not a corpus: it has no settings"):
        open_data(tmp_path)
    with pytest.raises(ValueError, match="name the tokenizer"):
        open_data(text)
    with pytest.raises(ValueError, match="is not the directory of a tokenizer"):
        open_data(text, tokenizer=tmp_path)
    word_tokenizer(["a", "b"]).save_pretrained(tmp_path / "words")
    with pytest.raises(ValueError, match="missing: no such corpus or text"):
        open_data(tmp_path / "missing", tokenizer=tmp_path / "words")
    with pytest.raises(ValueError, match="missing: no such file"):
        TextData(tmp_path / "missing", TokenIds.read(tmp_path / "words"))
    unknown = open_data(text, tokenizer=tmp_path / "words")
    with pytest.raises(ValueError, match=r"words cannot read .*text\.txt"):
        unknown.sequences(0)
    with pytest.raises(ValueError, match="max_length=0"):
        TextData(text, TokenIds.read(tmp_path / "words"), 0)


def test_batches_of_an_epoch_are_all_sequences_once(tmp_path):
    corpus = draw(tmp_path, 1000, shard_size=300)
    data = CorpusData(corpus)
    batches = Batches(data.sequences, 1000, 16, 0, seed=3, quiet=True)
    lengths = data.sequences(0).lengths
    orders = []
    for epoch in range(3):
        batches.set_epoch(epoch)
        order = batches.order(lengths)
        assert len(order) == len(batches) == 63
        assert sorted(map(len, order)) == [8] + [16] * 62
        orders.append(np.concatenate(order).tolist())
        assert sorted(orders[-1]) == [*range(1000)]
        # Within a batch lengths are similar, over an epoch they have no order.
        within = np.mean([np.ptp(lengths[some]) for some in order if len(some) == 16])
        assert within < 1 < lengths.std()
        means = [lengths[some].mean() for some in order]
        correlation = np.corrcoef(means, range(63))[0, 1]
        assert abs(correlation) < 4 / np.sqrt(63)
    assert orders[0] != orders[1] != orders[2] != orders[0]
    batches.set_epoch(1)
    assert np.concatenate(batches.order(lengths)).tolist() == orders[1]
    other = Batches(data.sequences, 1000, 16, 0, seed=4, epoch=1)
    assert np.concatenate(other.order(lengths)).tolist() != orders[1]
    read = [
        tuple(label for label in row if label >= 0)
        for batch in batches
        for row in batch["labels"].tolist()
    ]
    assert read == [tuple(data.sequences(0)[place].tolist()) for place in orders[1]]
