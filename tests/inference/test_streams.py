"""Random numbers: a function of seed, text, sample and position, and uniform."""

from __future__ import annotations

import math

import torch

from lm_latent_eval.inference.streams import LANES, Streams, stream_key


def numbers(num_steps: int, num_samples: int, key: int = 7) -> torch.Tensor:
    """(steps, samples, lanes)."""
    streams = Streams([key], num_samples)
    return torch.stack([streams(step)[0] for step in range(num_steps)])


def test_the_numbers_are_these():
    """A seed means the same numbers next year, in any process."""
    assert stream_key(3, "task/17") == 77219266489186548305561206913140866175
    keys = [stream_key(0, "a"), stream_key(0, "b")]
    streams = Streams(keys, 2, starts=[0, 5])
    assert streams(3).shape == (2, 2, LANES)
    assert streams(3).dtype == torch.float64
    assert streams(3)[..., 0].tolist() == [
        [0.7434221571145684, 0.965802835047909],
        [0.32585556382917014, 0.6145032720144127],
    ]
    assert torch.equal(streams(3)[0], Streams(keys, 2)(3)[0]), "from the beginning on"
    assert torch.equal(streams(3)[1], Streams(keys, 2)(8)[1])
    assert torch.equal(streams(3)[0, 1:], Streams(keys, 1, first=1)(3)[0])


def test_numbers_are_independent():
    """Neighbours in lane, sample, position, text and seed do not correlate."""
    base = numbers(60, 60)
    texts = torch.stack([numbers(60, 60, stream_key(0, str(i))) for i in range(2)])
    seeds = torch.stack([numbers(60, 60, stream_key(i, "0")) for i in range(2)])
    apart = ~torch.eye(60, dtype=torch.bool)
    turned = base.transpose(0, 1)
    pairs = {
        "position": (base[1:], base[:-1]),
        "sample": (base[:, 1:], base[:, :-1]),
        "texts": texts,
        "seeds": seeds,
        "positions and samples": (base[apart][:, 0], turned[apart][:, 0]),
    }
    pairs |= {
        f"lanes {i} and {j}": (base[..., i], base[..., j])
        for i in range(LANES)
        for j in range(i)
    }
    for name, (a, b) in pairs.items():
        stacked = torch.stack([a.flatten(), b.flatten()])
        correlation = stacked.corrcoef()[0, 1].item()
        assert abs(correlation) < 5 / math.sqrt(stacked.shape[1]), name
