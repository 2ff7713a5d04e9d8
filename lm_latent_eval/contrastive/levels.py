"""Contrastive entropy at several levels of distortion, with its errors and ratios."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self, TypedDict

import torch
from torch import Tensor

from lm_latent_eval.contrastive.entropy import (
    contrastive_entropy,
    contrastive_ratio,
    contrastive_ratio_stderr,
    contrastive_stderr,
)
from lm_latent_eval.estimators.corpus import total_count
from lm_latent_eval.estimators.standard_errors import mean_stderr, ratio_stderr


@dataclass(frozen=True)
class Rate:
    """A number of a corpus with its standard error.

    Example:
        >>> Rate(value=1.25, stderr=0.01)
        Rate(value=1.25, stderr=0.01)
    """

    value: float
    stderr: float


@dataclass(frozen=True)
class ContrastiveMean:
    """A contrastive entropy or ratio of a text, with both its errors.

    Example:
        >>> ContrastiveMean(2.0, stderr=0.5, replicate_stderr=0.1).rate()
        Rate(value=2.0, stderr=0.1)
    """

    value: float
    """The mean of the replicates."""
    stderr: float
    """Over sentences: another text of the kind; ``inf`` for one."""
    replicate_stderr: float
    """Over replicates: this text, distorted again; ``inf`` for one. Where latents were
    drawn, the error of the sentences' own scores, which replicates share, is in it."""

    def bits(self) -> Self:
        """Return an entropy in nats as one in bits."""
        bit = math.log(2)
        return type(self)(
            self.value / bit, self.stderr / bit, self.replicate_stderr / bit
        )

    def rate(self) -> Rate:
        """Return it with the error over replicates, or with one over sentences."""
        several = math.isfinite(self.replicate_stderr)
        return Rate(self.value, self.replicate_stderr if several else self.stderr)


def check_levels(levels: Iterable[float]) -> None:
    """Refuse levels of no distortion, and one that is given twice.

    Raises:
        ValueError: If one is not a positive finite number, or occurs again.

    Example:
        >>> check_levels([0.1, 0.0])
        Traceback (most recent call last):
        ...
        ValueError: level 0.0: expected a number above 0, each once: a copy without ...
    """
    seen: set[float] = set()
    for level in levels:
        if not 0 < level < math.inf or level in seen:
            raise ValueError(
                f"level {level}: expected a number above 0, each once: a copy without "
                "distortion is the text itself, and has no contrastive entropy"
            )
        seen.add(level)


def mean_entropy(
    log_scores: Tensor,
    copies: Tensor,
    num_units: int | Tensor,
    stderrs: Tensor | None = None,
) -> ContrastiveMean:
    """Return a text's contrastive entropy against replicates of its distorted copy.

    Args:
        log_scores: Log-scores of the sentences in nats, shape ``(N,)``.
        copies: Scores of the copies, shape ``(R, N)``.
        num_units: In all, or a count a sentence, shape ``(N,)``.
        stderrs: Monte Carlo errors of ``log_scores`` in nats, shape ``(N,)``; ``inf``
            where that of a sentence, or of one of its copies, is not known. None is 0.

    Returns:
        Nats per unit.

    Raises:
        TypeError: As :func:`contrastive_entropy`.
        ValueError: As :func:`contrastive_entropy`, or if ``stderrs`` are no errors.

    Example:
        >>> import torch
        >>> log_scores = torch.tensor([-10.0, -20.0])
        >>> copies = torch.tensor([[-11.0, -23.0], [-12.0, -24.0]])
        >>> mean_entropy(log_scores, copies, num_units=4).value
        1.25
    """
    entropies = contrastive_entropy(log_scores, copies, num_units)
    over_sentences = contrastive_stderr(log_scores, copies.double().mean(0), num_units)
    units = total_count(num_units, "num_units", len(log_scores))
    return _with_draws(
        entropies.mean().item(),
        over_sentences.item(),
        mean_stderr(entropies).item(),
        drawn=_drawn(stderrs, len(log_scores)) / units,
    )


def mean_ratio(
    log_scores: Tensor,
    copies: Tensor,
    baseline: Tensor,
    stderrs: Tensor | None = None,
) -> ContrastiveMean:
    """Return a text's contrastive ratio: of the mean entropies of two levels.

    In the error over replicates the r-th of both levels are a pair, as they must be
    where levels share their random numbers.

    Args:
        log_scores: Log-scores of the sentences in nats, shape ``(N,)``.
        copies: Scores of the copies, shape ``(R, N)``.
        baseline: Scores of the copies at the baseline level, shape ``(R, N)``.
        stderrs: Monte Carlo errors of ``log_scores``, as ``mean_entropy`` takes them.

    Returns:
        A pure number.

    Raises:
        TypeError: As :func:`contrastive_entropy`.
        ValueError: As :func:`contrastive_entropy`, or if the baseline's entropy is not
            positive.

    Example:
        >>> import torch
        >>> log_scores = torch.tensor([-10.0, -20.0])
        >>> copies = torch.tensor([[-14.0, -24.0]])
        >>> mean_ratio(log_scores, copies, torch.tensor([[-11.0, -23.0]])).value
        2.0
    """
    # Units cancel; per sentence, both.
    entropies = contrastive_entropy(log_scores, copies, len(log_scores))
    base = contrastive_entropy(log_scores, baseline, len(log_scores))
    value = contrastive_ratio(entropies.mean(), base.mean())
    over_sentences = contrastive_ratio_stderr(
        log_scores, copies.double().mean(0), baseline.double().mean(0)
    )
    # d/dc of (c - l) / (c - b) is (1 - ratio) / (c - b), c the clean score.
    slope = abs((1 - value) / base.mean()).item() / len(log_scores)
    return _with_draws(
        value.item(),
        over_sentences.item(),
        ratio_stderr(entropies, base).item(),
        drawn=_drawn(stderrs, len(log_scores)) * slope if slope else 0.0,
    )


def _drawn(stderrs: Tensor | None, number: int) -> float:
    """Return the error of a sum of scores."""
    if stderrs is None:
        return 0.0
    if stderrs.shape != (number,) or not bool((stderrs >= 0).all()):
        raise ValueError(
            f"stderrs: expected {number} numbers of at least 0, one a sentence; got "
            f"{stderrs.tolist()[:10]} of shape {tuple(stderrs.shape)}"
        )
    return float(stderrs.double().norm())


def _with_draws(
    value: float, over_sentences: float, over_replicates: float, *, drawn: float
) -> ContrastiveMean:
    """Add the error of the clean scores where the spread does not include it."""
    return ContrastiveMean(
        value,
        over_sentences if math.isfinite(drawn) else math.inf,
        math.hypot(over_replicates, drawn),
    )


@dataclass(frozen=True)
class ContrastiveLevel:
    """Numbers of a model at one level of distortion."""

    level: float
    """Level of distortion, by the caller's name."""
    entropy: ContrastiveMean
    """Nats per unit."""
    ratio: ContrastiveMean | None
    """Over the baseline's entropy; None where that is not positive, and a model that
    does not notice the mildest distortion has no scale to compare with."""


def contrastive_levels(
    log_scores: Tensor,
    distorted: Mapping[float, Tensor],
    num_units: int | Tensor,
    *,
    baseline: float | None = None,
    stderrs: Tensor | None = None,
) -> list[ContrastiveLevel]:
    """Compare a text's scores with those of its copies at every level.

    Args:
        log_scores: Log-scores of the sentences in nats, shape ``(N,)``.
        distorted: Level -> log-scores of the distorted sentences, shape ``(N,)``, or
            ``(R, N)`` for R replicates, R the same at every level.
        num_units: In all, or a count a sentence, shape ``(N,)``.
        baseline: The level that ratios are over; the lowest by default.
        stderrs: Monte Carlo errors of ``log_scores``, as ``mean_entropy`` takes them.

    Returns:
        One record a level, from the lowest.

    Raises:
        TypeError: If scores are not floating-point tensors.
        ValueError: If there is no level, one is not positive or the baseline is none, a
            score is not finite, or shapes do not fit.

    Example:
        >>> import torch
        >>> log_scores = torch.tensor([-10.0, -20.0])
        >>> copies = {
        ...     10: torch.tensor([-11.0, -21.0]),
        ...     30: torch.tensor([-16.0, -22.0]),
        ... }
        >>> levels = contrastive_levels(log_scores, copies, num_units=4)
        >>> [(found.level, found.entropy.value, found.ratio.value) for found in levels]
        [(10, 0.5, 1.0), (30, 2.0, 4.0)]
    """
    if not distorted:
        raise ValueError("distorted is empty: give the scores of at least one level")
    check_levels(distorted)
    baseline = min(distorted) if baseline is None else baseline
    if baseline not in distorted:
        raise ValueError(
            f"the baseline {baseline} is no level; there is {sorted(distorted)}"
        )
    replicates = {
        level: _replicates(scores, level) for level, scores in distorted.items()
    }
    base = replicates[baseline]
    has_ratio = mean_entropy(log_scores, base, num_units).value > 0
    levels = []
    for level, copies in sorted(replicates.items()):
        if len(copies) != len(base):
            raise ValueError(
                f"level {level} has {len(copies)} replicates and the baseline "
                f"{len(base)}: give as many at every level"
            )
        entropy = mean_entropy(log_scores, copies, num_units, stderrs)
        ratio = mean_ratio(log_scores, copies, base, stderrs) if has_ratio else None
        levels.append(ContrastiveLevel(level, entropy, ratio))
    return levels


def _replicates(scores: Tensor, level: float) -> Tensor:
    """Return scores as (R, N), float64."""
    if scores.ndim not in (1, 2):
        raise ValueError(
            f"distorted[{level}] has shape {tuple(scores.shape)}; expected (N,) or "
            "(R, N)"
        )
    return scores.double().reshape(-1, scores.shape[-1])


class Contrast(TypedDict):
    """The log-scores of a sentence and of its copies at one level, in nats."""

    words: int
    """Words of this sentence, for rates per word."""
    clean: float
    """Log-score of the sentence itself."""
    stderr: float
    """Monte Carlo error of ``clean``, nats; ``inf`` if the error of the sentence or of
    one of its copies is not known."""
    distorted: list[float]
    """Log-scores of its copies at this level, one a replicate."""
    baseline: list[float]
    """Log-scores of its copies at the baseline of ratios, one a replicate."""


def bits_per_word(contrasts: Sequence[Contrast]) -> Rate:
    """Return the contrastive entropy per word, the mean of its replicates.

    Its standard error is over replicates of the noise where there are several, so of
    this text; with one it is over sentences, so of texts like this. What the draws of
    latents add is in both, and where it is not known they are infinite.
    """
    return _bits(contrasts, [contrast["words"] for contrast in contrasts])


def bits_per_sentence(contrasts: Sequence[Contrast]) -> Rate:
    """Return the contrastive entropy per sentence, with the error of bits per word."""
    return _bits(contrasts, [1] * len(contrasts))


def ratio(contrasts: Sequence[Contrast]) -> Rate:
    """Return the contrastive ratio: of the mean entropies at a level and the baseline.

    Its standard error is over replicates where there are several, else over sentences.

    Raises:
        ValueError: If the model prefers the baseline's copies to the text.
    """
    clean, stderrs, distorted, baseline = _columns(contrasts)
    return mean_ratio(clean, distorted, baseline, stderrs).rate()


def _bits(contrasts: Sequence[Contrast], units: list[int]) -> Rate:
    clean, stderrs, distorted, _ = _columns(contrasts)
    entropy = mean_entropy(clean, distorted, torch.tensor(units), stderrs)
    return entropy.bits().rate()


def _columns(contrasts: Sequence[Contrast]) -> list[Tensor]:
    """Return scores of N sentences and errors, (N,), then copies, (replicates, N)."""
    columns = (
        [c["clean"] for c in contrasts],
        [c["stderr"] for c in contrasts],
        [c["distorted"] for c in contrasts],
        [c["baseline"] for c in contrasts],
    )
    return [torch.tensor(c, dtype=torch.float64).movedim(0, -1) for c in columns]
