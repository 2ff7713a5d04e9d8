"""Recurrent layers over texts of different lengths, in one go and in pieces."""

from __future__ import annotations

import pytest
import torch

from lm_latent_eval.models.recurrent import LSTMStack

LENGTHS = [[7, 3, 0, 7, 1], [4, 4, 4], [0, 0], [5]]
EXACTLY = {"rtol": 0, "atol": 1e-12}


@pytest.fixture(scope="module")
def stack():
    torch.manual_seed(0)
    return LSTMStack([3, 5, 4]).double().eval()


def one_by_one(stack, value):
    """One text of its full length through the layers as torch has them."""
    states = []
    for layer in stack.layers:
        value, (h, c) = layer(value[None])
        value = value[0]
        states.append((h[0, 0], c[0, 0]))
    return value, states


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_texts_run_to_their_own_ends(stack, lengths):
    value = torch.randn(len(lengths), max(lengths), 3, dtype=torch.float64)
    outputs, carry = stack(value, torch.tensor(lengths))
    assert outputs.shape == (len(lengths), max(lengths), 4)
    for b, length in enumerate(lengths):
        assert (outputs[b, length:] == 0).all()
        if length == 0:
            assert all((h[b] == 0).all() and (c[b] == 0).all() for h, c in carry.layers)
            continue
        wanted, states = one_by_one(stack, value[b, :length])
        torch.testing.assert_close(outputs[b, :length], wanted, **EXACTLY)
        for (h, c), (h_one, c_one) in zip(carry.layers, states, strict=True):
            torch.testing.assert_close(h[b], h_one, **EXACTLY)
            torch.testing.assert_close(c[b], c_one, **EXACTLY)


@pytest.mark.parametrize("cut", [1, 3, 5])
def test_pieces_are_the_whole(stack, cut):
    length = torch.tensor([7, 3, 0, 7, 1])
    value = torch.randn(5, 7, 3, dtype=torch.float64)
    whole, end = stack(value, length)
    first, carry = stack(value[:, :cut], length.clamp_max(cut))
    rest, after = stack(value[:, cut:], (length - cut).clamp_min(0), carry)
    torch.testing.assert_close(torch.cat([first, rest], 1), whole, **EXACTLY)
    for ours, wanted in zip(after.layers, end.layers, strict=True):
        torch.testing.assert_close(ours, wanted, **EXACTLY)


def test_gradients_are_those_of_the_texts(stack):
    lengths = [4, 2, 0]
    value = torch.randn(3, 4, 3, dtype=torch.float64, requires_grad=True)
    outputs, _ = stack(value, torch.tensor(lengths))
    (together,) = torch.autograd.grad(outputs.square().sum(), value)
    for b, length in enumerate(lengths):
        assert (together[b, length:] == 0).all()
        if length:
            alone, _ = one_by_one(stack, value[b, :length])
            (wanted,) = torch.autograd.grad(alone.square().sum(), value)
            torch.testing.assert_close(together[b], wanted[b], **EXACTLY)
