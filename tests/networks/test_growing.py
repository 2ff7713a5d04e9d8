"""Keys and values that grow in place, against transformers' own copies."""

from __future__ import annotations

import copy

import torch
from transformers.cache_utils import DynamicCache, DynamicLayer

from lm_latent_eval.networks.causal import GrowingLayer, grow_in_place
from tests import tiny_causal


def read(layer, rows, tokens, seed):
    torch.manual_seed(seed)
    keys, values = torch.randn(rows, 2, tokens, 3), torch.randn(rows, 2, tokens, 5)
    return layer.update(keys, values)


def test_what_is_kept_is_what_transformers_keeps():
    plain = DynamicLayer()
    read(plain, 2, 3, seed=0)
    growing = GrowingLayer(copy.deepcopy(plain))
    dice = torch.Generator().manual_seed(1)
    rows = 2
    for step in range(1, 150):
        fewer = torch.randint(1, 9, (), generator=dice).item()
        index = torch.randint(0, rows, (fewer,), generator=dice)
        if step % 3 == 0:  # most rows stay where they are
            index = torch.arange(min(fewer, rows))
            index[-1] = rows - 1
        if step == 70:
            growing = copy.deepcopy(growing)
        if step == 90:
            for layer in (plain, growing):
                layer.crop(-2)
        rows = len(index)
        for layer in (plain, growing):
            layer.reorder_cache(index)
        assert torch.equal(plain.keys, growing.keys)
        more = 1 if step % 5 else 40
        expected = read(plain, rows, more, seed=step)
        found = read(growing, rows, more, seed=step)
        for one, other in zip(expected, found, strict=True):
            assert torch.equal(one, other)
        assert growing.get_seq_length() == plain.get_seq_length()


def test_a_token_copies_its_own_keys_alone():
    """What was read stays where it is, until there is no room."""
    cache = DynamicCache()
    for layer in range(2):
        cache.update(torch.zeros(3, 2, 4, 5), torch.zeros(3, 2, 4, 5), layer)
    grow_in_place(cache)
    places = set()
    for _ in range(60):
        cache.reorder_cache(torch.tensor([0, 1, 1]))
        keys, _ = cache.update(torch.zeros(3, 2, 1, 5), torch.zeros(3, 2, 1, 5), 0)
        places.add(keys.data_ptr())
    assert len(places) == 1


def test_a_reading_branches_into_readings_of_their_own():
    network = tiny_causal.network(tiny_causal.letters())
    reading = network.reader().begin(torch.tensor([[5, 0, 1]]))
    reading.read(torch.tensor([[2]]))
    branch = reading.rows(torch.tensor([0, 0]))
    ours = branch.read(torch.tensor([[3], [1]]))[:, -1]
    reading.read(torch.tensor([[4]]))
    for row, token in enumerate((3, 1)):
        ids = torch.tensor([[5, 0, 1, 2, token]])
        with torch.no_grad():
            truth = network.model(ids).logits[0, -1].log_softmax(-1)
        assert torch.allclose(ours[row], truth, rtol=1e-10)
