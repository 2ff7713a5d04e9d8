"""Proposal of thoughts, and the stopping times of ``until=decided``."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from lm_latent_eval.uniforms import stream_key, uniforms

PRIOR_SHARE = 0.5
"""Share of hinted draws that are the model's own."""
WEIGHTS_AT_MOST = {"prior": 1.0, "hinted": 1 / PRIOR_SHARE}
"""Upper bound of the weights, by proposal: p(answer | question, z) is at most 1, and
p(z | question) / q(z) of a mixture at most the inverse of the prior's share."""
FIRST, GROWTH = 4, 4
"""Number of thoughts before the first look, and 1 / growth between looks."""


def key_of(seed: int, name: str) -> int:
    """Key of a question's random numbers."""
    return stream_key(seed, f"thoughts/{name}")


def components(key: int, num_samples: int, num_hints: int) -> list[int]:
    r"""Draw the prompt of each of K thoughts, independently.

    .. math:: q(z) = \alpha\, p(z \mid x)
        + \frac{1 - \alpha}{M} \sum_{m=1}^{M} p(z \mid \mathrm{hint}_m)

    Args:
        key: Key of the question's random numbers.
        num_samples: K.
        num_hints: M.

    Returns:
        0 for the question itself, m for the m-th hint.
    """
    if not num_hints:
        return [0] * num_samples
    beyond = (uniforms(key, (0, 0), num_samples)[:, 1] - PRIOR_SHARE) / (
        1 - PRIOR_SHARE
    )
    return [int(u * num_hints) + 1 if u >= 0 else 0 for u in beyond.tolist()]


def log_mixture(log_p: Tensor, hinted: Tensor) -> Tensor:
    """Log q of thoughts by the mixture, nats, (R,).

    Args:
        log_p: Log p given the question, (R,).
        hinted: Log p given each hint, (M, R).
    """
    if not len(hinted):
        return log_p
    own = log_p + math.log(PRIOR_SHARE)
    hints = hinted + math.log((1 - PRIOR_SHARE) / len(hinted))
    return torch.cat([own[None], hints]).logsumexp(0)


def looks(num_samples: int) -> Iterator[int]:
    """Numbers of thoughts after which a question may be decided, up to K.

    Example:
        >>> list(looks(32)), list(looks(3))
        ([4, 8, 12, 16, 20, 25, 31, 32], [3])
    """
    drawn = FIRST
    while drawn < num_samples:
        yield drawn
        drawn += max(FIRST, drawn // GROWTH)
    yield num_samples
