"""Which sequences a learner sees, in which batches."""

from __future__ import annotations

import json
from dataclasses import replace

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
from lm_latent_eval.distortion.learners.options import TrainingOptions
from tests.distortion.languages.tiny import regular
from tests.distortion.learners.tiny import draw


def every(sequences) -> list[list[int]]:
    return [sequences[place].tolist() for place in range(len(sequences))]


def test_sequences_of_training_are_nowhere_else(tmp_path):
    corpus = draw(tmp_path / "corpus", 10)
    fresh = FreshData(corpus, regular(), 10)
    after = draw(tmp_path / "after", 5, first=10)
    check_apart(CorpusData(corpus), 3, {"test": after}, "trained on")
    check_apart(fresh, 1, {"test": after}, "trained on")
    with pytest.raises(ValueError, match=r"test sequences 10 \.\. 14 of .*after"):
        check_apart(fresh, 2, {"test": after}, "trained on")
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
    ids = [TokenIds.read(tmp_path / name) for name in ("bpe", "same", "other")]
    own, same, other = (TextData(path, each, 7).settings() for each in ids)
    assert own == same != other
    for text, ids in zip(texts, found, strict=True):
        assert text.startswith(bpe.decode([i for i in ids if i != 1]))


def test_what_is_no_data_is_refused(tmp_path):
    text, words = tmp_path / "text.txt", tmp_path / "words"
    text.write_text("a plum\n")
    word_tokenizer(["a", "b"]).save_pretrained(words)
    for path, tokenizer, message in (
        (tmp_path, None, "is not a corpus: it has no settings"),
        (text, None, "name the tokenizer"),
        (text, tmp_path, "is not the directory of a tokenizer"),
        (tmp_path / "missing", words, "missing: no such corpus or text"),
    ):
        with pytest.raises(ValueError, match=message):
            open_data(path, tokenizer=tokenizer)
    with pytest.raises(ValueError, match=r"words cannot read .*text\.txt"):
        open_data(text, tokenizer=words).sequences(0)


def test_batches_of_an_epoch_are_all_sequences_once(tmp_path):
    corpus = draw(tmp_path, 1000, shard_size=300)
    data = CorpusData(corpus)
    options = TrainingOptions(epochs=3, learning_rate=1.0, batch_size=16, seed=3)
    batches = Batches(data, options, quiet=True)
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
    other = Batches(data, replace(options, seed=4), epoch=1)
    assert np.concatenate(other.order(lengths)).tolist() != orders[1]
    rows = [row for batch in batches for row in batch["labels"].tolist()]
    read = [[label for label in row if label >= 0] for row in rows]
    assert read == [data.sequences(0)[place].tolist() for place in orders[1]]
