"""Counter-based uniform random numbers.

A counter-based generator (Philox, from NumPy) is stateless: a draw for a text depends
on its key alone. So batch size, order, number of processes and device cannot change
it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

LANES = 4  # 64-bit words in one Philox block
LOWER = (1 << 64) - 1  # half of a key
_NOTHING_DRAWN: Any = np.random.Philox(key=0).state


def stream_key(seed: int, identity: str) -> int:
    """Key of one text's stream, 128 bits.

    Args:
        seed: The user's seed.
        identity: Identity of the text, distinct for repetitions.
    """
    digest = hashlib.blake2b(f"{seed}\0{identity}".encode(), digest_size=16)
    return int.from_bytes(digest.digest(), "little")


def uniforms(key: int, counter: Sequence[int], num_blocks: int) -> NDArray[np.float64]:
    """Float64 numbers in (0, 1), shape (num_blocks, 4).

    Args:
        key: 128 bits.
        counter: Up to four 64-bit numbers of the first block; the first counts blocks.
        num_blocks: Number of rows.
    """
    only: NDArray[np.float64] = uniforms_of([key], [counter], num_blocks)[0]
    return only


def uniforms_of(
    keys: Sequence[int], counters: Sequence[Sequence[int]], num_blocks: int
) -> NDArray[np.float64]:
    """Results of ``uniforms`` for several keys, each with its own counter.

    Returns:
        Float64 numbers in (0, 1), shape (keys, num_blocks, 4).
    """
    words = np.empty((len(keys), num_blocks * LANES), np.uint64)
    halves = np.array([(key & LOWER, key >> 64) for key in keys], np.uint64)
    begin = np.array([[*first, 0, 0, 0][:LANES] for first in counters], np.uint64)
    # One generator for all: making one takes several times as long as its numbers.
    generator = np.random.Philox(key=0)
    for row, key, counter in zip(words, halves, begin, strict=True):
        state = {"key": key, "counter": counter}
        generator.state = _NOTHING_DRAWN | {"state": state}
        row[:] = generator.random_raw(num_blocks * LANES)
    # 52 random bits, centred in their cell: exactly representable, never 0 or 1.
    uniform = ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    return uniform.reshape(len(keys), num_blocks, LANES)
