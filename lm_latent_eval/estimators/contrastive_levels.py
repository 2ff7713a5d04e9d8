"""Contrastive entropy at several levels of distortion, with its errors and ratios."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

from torch import Tensor

from lm_latent_eval.estimators.contrastive import (
    contrastive_entropy,
    contrastive_ratio,
    contrastive_ratio_stderr,
    contrastive_stderr,
    mean_stderr,
    ratio_stderr,
)


@dataclass(frozen=True)
class ContrastiveLevel:
    """What one level of distortion says of a model."""

    level: float
    """Of distortion, as the caller calls it."""
    entropy: float
    """Mean contrastive entropy of the replicates, nats per unit."""
    stderr: float
    """Of ``entropy`` over sentences: another text of the kind; ``inf`` for one."""
    replicate_stderr: float
    """Of ``entropy`` over replicates: this text, distorted again; ``inf`` for one."""
    ratio: float
    """``entropy`` over the baseline level's; 1 at the baseline."""
    ratio_stderr: float
    """Of ``ratio`` over sentences."""
    ratio_replicate_stderr: float
    """Of ``ratio`` over replicates."""

    def bits(self) -> Self:
        """Return the same with entropies in bits."""
        return replace(
            self,
            entropy=self.entropy / math.log(2),
            stderr=self.stderr / math.log(2),
            replicate_stderr=self.replicate_stderr / math.log(2),
        )


def contrastive_levels(
    log_scores: Tensor,
    distorted: Mapping[float, Tensor],
    num_units: int | Tensor,
    *,
    baseline: float | None = None,
) -> list[ContrastiveLevel]:
    """Compare a text's scores with those of its copies at every level.

    In the ratio's error the r-th replicates of two levels are a pair, as they must be
    where levels share their random numbers.

    Args:
        log_scores: Log-scores of the sentences in nats, shape ``(N,)``.
        distorted: Level -> log-scores of the distorted sentences, shape ``(N,)``, or
            ``(R, N)`` for R replicates, R the same at every level.
        num_units: In all, or a count a sentence, shape ``(N,)``.
        baseline: The level that ratios are over; the lowest by default.

    Returns:
        One record a level, from the lowest.

    Raises:
        TypeError: If scores are not floating-point tensors.
        ValueError: If there is no level or the baseline is not one, a score is not
            finite, shapes do not fit, or the baseline's entropy is not positive.

    Example:
        >>> import torch
        >>> log_scores = torch.tensor([-10.0, -20.0])
        >>> copies = {
        ...     10: torch.tensor([-11.0, -21.0]),
        ...     30: torch.tensor([-16.0, -22.0]),
        ... }
        >>> levels = contrastive_levels(log_scores, copies, num_units=4)
        >>> [(found.level, found.entropy, found.ratio) for found in levels]
        [(10, 0.5, 1.0), (30, 2.0, 4.0)]
    """
    if not distorted:
        raise ValueError("distorted holds no level")
    baseline = min(distorted) if baseline is None else baseline
    if baseline not in distorted:
        raise ValueError(
            f"the baseline {baseline} is no level; there is {sorted(distorted)}"
        )
    replicates = {
        level: _replicates(scores, level) for level, scores in distorted.items()
    }
    base = replicates[baseline]
    base_entropies = contrastive_entropy(log_scores, base, num_units)
    found = []
    for level in sorted(replicates):
        copies = replicates[level]
        if len(copies) != len(base):
            raise ValueError(
                f"level {level} has {len(copies)} replicates and the baseline "
                f"{len(base)}: give as many at every level"
            )
        entropies = contrastive_entropy(log_scores, copies, num_units)
        mean = copies.mean(0)
        found.append(
            ContrastiveLevel(
                level=level,
                entropy=entropies.mean().item(),
                stderr=contrastive_stderr(log_scores, mean, num_units).item(),
                replicate_stderr=mean_stderr(entropies).item(),
                ratio=contrastive_ratio(entropies.mean(), base_entropies.mean()).item(),
                ratio_stderr=contrastive_ratio_stderr(
                    log_scores, mean, base.mean(0)
                ).item(),
                ratio_replicate_stderr=ratio_stderr(entropies, base_entropies).item(),
            )
        )
    return found


def _replicates(scores: Tensor, level: float) -> Tensor:
    """Return scores as (R, N), float64."""
    if scores.ndim not in (1, 2):
        raise ValueError(
            f"distorted[{level}] has shape {tuple(scores.shape)}; expected (N,) or "
            "(R, N)"
        )
    return scores.double().reshape(-1, scores.shape[-1])
