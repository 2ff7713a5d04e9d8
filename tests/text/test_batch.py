"""Padding, cutting and picking texts."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from lm_latent_eval.text.batch import TokenBatch

TEXTS = st.lists(st.lists(st.integers(1, 9), max_size=6), min_size=1, max_size=4)


def rows(batch: TokenBatch) -> list[list[tuple[int, int, float]]]:
    """(input, target, price) of every real token of every text."""
    columns = (batch.inputs, batch.targets, batch.unknown_log_prob)
    return [
        list(zip(*(x[b, :length].tolist() for x in columns), strict=True))
        for b, length in enumerate(batch.length.tolist())
    ]


@given(TEXTS, st.integers(0, 7), st.integers(0, 7), st.data())
def test_each_token_is_predicted_from_the_one_before(texts, start, size, data):
    prices = [[-i / 3 for i in text] for text in texts]
    batch, whole = TokenBatch.collate(texts, prices, first=2), []
    for text, price in zip(texts, prices, strict=True):
        whole.append(list(zip([2, *text][: len(text)], text, price, strict=True)))
    assert rows(batch) == whole, "prices are float64"
    assert not TokenBatch.collate(texts, first=2).unknown_log_prob.any()
    piece = batch.piece(start, start + size)
    assert rows(piece) == [row[start : start + size] for row in whole]
    assert torch.equal(piece.inside, batch.inside[:, start : start + size])

    index = data.draw(st.lists(st.integers(0, len(texts) - 1), min_size=1, max_size=5))
    picked = batch.select(torch.tensor(index))
    assert rows(picked) == [whole[i] for i in index]
    for part in (batch, piece, picked):
        assert part.inside.sum(1).tolist() == part.length.tolist()
        assert not part.targets[~part.inside].any(), "padding holds nothing"
        assert not part.unknown_log_prob[~part.inside].any()
        targets, length = part.on_host
        assert torch.equal(targets, part.targets)
        assert torch.equal(length, part.length)


def test_what_is_given_goes_along():
    batch = TokenBatch.collate([[5, 6, 7], [8]], first=2, given=[[4], [5, 6]])
    for part, expected in (
        (batch.piece(1, 3), [[4, 0], [5, 6]]),
        (batch.select(torch.tensor([1, 0, 1])), [[5, 6], [4, 0], [5, 6]]),
    ):
        assert part.given.targets.tolist() == expected
    assert batch.given.length.tolist() == [1, 2]
    assert TokenBatch.collate([[5]], first=2).given is None
