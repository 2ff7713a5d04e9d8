"""Random numbers that are a function of (seed, text, sample, position) alone.

The key is of the seed and the text's identity, the counter is (sample, position). So
the first k samples are the same for any K >= k, a shared context draws the same numbers
under every continuation, and neither batch size, order, number of processes nor device
can change a draw.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lm_latent_eval.uniforms import LANES as LANES
from lm_latent_eval.uniforms import stream_key as stream_key
from lm_latent_eval.uniforms import uniforms


@dataclass(frozen=True)
class Streams:
    """The random numbers of B texts for samples ``first`` .. ``first + K - 1``.

    Calling ``streams(step)`` returns (B, K, 4) float64 numbers in (0, 1), on the host,
    for the decision ``step`` places after each text's ``starts``.
    """

    keys: Sequence[int]
    num_samples: int
    first: int = 0
    starts: Sequence[int] | None = None

    def __call__(self, step: int) -> Tensor:
        """Return uniforms of one step, shape (B, K, 4)."""
        starts = self.starts or [0] * len(self.keys)
        drawn = [
            uniforms(key, (self.first, start + step), self.num_samples)
            for key, start in zip(self.keys, starts, strict=True)
        ]
        return torch.from_numpy(np.stack(drawn))
