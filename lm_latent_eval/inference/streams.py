"""Random numbers that are a function of (seed, text, sample, position) alone.

A counter-based generator (Philox, from NumPy) is keyed by the seed and the text's
identity; its counter is (sample, position). So the first k samples are the same for any
K >= k, a shared context draws the same numbers under every continuation, and neither
batch size, order, number of processes nor device can change a draw.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

LANES = 4  # 64-bit words in one Philox block: one block a (sample, position)


def stream_key(seed: int, identity: str) -> int:
    """Return the 128-bit key of one text's stream.

    Args:
        seed: The user's seed.
        identity: What tells this text from every other, its repetitions included.
    """
    digest = hashlib.blake2b(f"{seed}\0{identity}".encode(), digest_size=16)
    return int.from_bytes(digest.digest(), "little")


@dataclass(frozen=True)
class Streams:
    """The random numbers of B texts for samples ``first`` .. ``first + K - 1``.

    Calling ``streams(step)`` returns (B, K, 4) float64 numbers in (0, 1) for the
    decision ``step`` places after each text's ``starts``.
    """

    keys: Sequence[int]
    num_samples: int
    first: int = 0
    starts: Sequence[int] | None = None
    device: torch.device | str = "cpu"

    def __call__(self, step: int) -> Tensor:
        """Return uniforms of one step, shape (B, K, 4)."""
        starts = self.starts or [0] * len(self.keys)
        blocks = [
            np.random.Philox(
                key=key, counter=[self.first, start + step, 0, 0]
            ).random_raw(self.num_samples * LANES)
            for key, start in zip(self.keys, starts, strict=True)
        ]
        # 52 random bits, centred in their cell: exactly representable, never 0 or 1.
        words = np.stack(blocks).reshape(len(self.keys), self.num_samples, LANES)
        uniform = ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
        return torch.from_numpy(uniform).to(self.device)
