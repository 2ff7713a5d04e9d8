"""Random numbers, functions of (seed, text, sample, position) alone, and draws by them.

The key is of the seed and the text's identity, the counter is (sample, position). So
the first k samples are the same for any K >= k, a shared context draws the same numbers
under every continuation, and neither batch size, order, number of processes nor device
can change a draw. Distributions are drawn from by inverting them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lm_latent_eval.devices import sent_uniforms, widened
from lm_latent_eval.latent import Uniforms
from lm_latent_eval.uniforms import LANES as LANES
from lm_latent_eval.uniforms import stream_key as stream_key
from lm_latent_eval.uniforms import uniforms_of


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
        counters = [(self.first, start + step) for start in starts]
        return torch.from_numpy(uniforms_of(self.keys, counters, self.num_samples))


MODEL_LANES = 3
"""Random numbers of a decision that are the model's: the last is left to inference."""


def invert_cdf(prob: Tensor, u: Tensor) -> Tensor:
    """Draw from the distribution of each row.

    Args:
        prob: Unnormalised probabilities, (..., N); each row has some that are positive.
        u: A number of (0, 1) each, where they are, (...).

    Returns:
        Columns of positive probability, (...).

    Example:
        >>> prob = torch.tensor([[0.25, 0.75, 0.0], [0.25, 0.75, 0.0]])
        >>> invert_cdf(prob, torch.tensor([0.2, 0.999], dtype=torch.float64))
        tensor([0, 1])
    """
    mass = widened(prob).cumsum(-1)
    # Below the total despite rounding, so that no column after the last is drawn.
    below = torch.nextafter(mass[..., -1], mass.new_zeros(()))
    target = torch.minimum(u * mass[..., -1], below)
    return torch.searchsorted(mass, target[..., None].contiguous(), right=True)[..., 0]


def draw_choice(log_p: Tensor, uniform: Tensor) -> Tensor:
    """Draw from unnormalised log-probabilities, (B, K, N) and (B, K) -> (B, K).

    The uniform numbers are on the host.
    """
    return invert_cdf(log_p.softmax(-1), sent_uniforms(uniform, log_p.device))


def standard_normals(
    uniforms: Uniforms, number: int, device: torch.device | str
) -> Tensor:
    """Draw independent standard normal numbers.

    Args:
        uniforms: Random numbers on the host, step -> (B, K, 4): as many steps are asked
            as it takes, from the first.
        number: D, how many a latent.
        device: Where they are wanted.

    Returns:
        (B, K, D), in the widest type of the device.

    Example:
        >>> half = lambda step: torch.full((1, 2, 4), 0.5, dtype=torch.float64)
        >>> standard_normals(half, 4, "cpu").tolist()
        [[[0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]]
    """
    steps = range(-(-number // MODEL_LANES))
    u = torch.cat([uniforms(step)[..., :MODEL_LANES] for step in steps], -1)
    normal: Tensor = torch.special.ndtri(sent_uniforms(u[..., :number], device))
    return normal
