r"""Choices among the answers to a question: ties, margins, votes, accuracy.

    log w_k(a) = log p(a, z_k | x) - log q(z_k | x),    k = 1..K,    a = 1..A

Symbols: log w_k(a) -> ``log_w[a - 1, k - 1]``, nats, shape ``(A, K)``. All answers of a
question have the same draws z_k, so the errors of two answers are not independent, and
their difference has a smaller one than either.
Source: Wang et al. (2023), "Self-consistency", for votes; Efron (1979) for resamples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import numpy as np
import torch
from scipy.special import stdtrit  # all of scipy.stats takes half a second
from torch import Tensor

from lm_latent_eval.estimators.checks import checked_weights
from lm_latent_eval.estimators.importance import (
    log_evidence,
    log_grid,
    log_ratio_stderr,
)
from lm_latent_eval.estimators.standard_errors import CONFIDENCE

ROUNDING = 2.0**-17
"""Nats a token, 7.6e-6, within which scores tie: four units in the last place of a
float32 from 16 to 32 nats. A score is a sum of one number a token, rounded otherwise in
another batch, which was seen to move a token of the models here by a tenth of it."""


def tied(log_p: Sequence[float], num_tokens: Sequence[int]) -> list[int]:
    """Return the indices of the best scores, those that tie but for rounding included.

    Args:
        log_p: Of each option, nats.
        num_tokens: How many tokens each score is a sum over; the longest one's rounding
            is that of all.

    Example:
        >>> tied([-3.0, -2.0, -2.00001], [5, 5, 5])
        [1, 2]
        >>> tied([-3.0, -2.0, -2.001], [5, 5, 5])
        [1]
    """
    within = ROUNDING * max(1, *num_tokens)
    best = max(log_p)
    return [n for n, one in enumerate(log_p) if one == best or best - one <= within]


def first_of_best(log_p: Tensor) -> Tensor:
    """Return the first place of each row whose score ties with the best.

    Args:
        log_p: Nats of one token, shape ``(..., N)``.

    Example:
        >>> import torch
        >>> first_of_best(torch.tensor([[-2.0, -1.000001, -1.0], [-1.0, -0.5, -3.0]]))
        tensor([1, 1])
    """
    best = log_p.amax(-1, keepdim=True)
    return (log_p >= best - ROUNDING).int().argmax(-1)


RESAMPLES = 400
APART = 1.96
"""Standard errors between the two best answers, from which on a choice is sure; and on
either side of a band."""


@dataclass(frozen=True)
class Margin:
    """Margin between the two most probable answers."""

    difference: float
    """Of their log p-hat, nats; ``inf`` where the next has no weight at all."""
    stderr: float
    """Monte Carlo error of the difference, from the shared draws; nats."""

    @classmethod
    def of(cls, log_w: Tensor) -> Margin:
        """Compare the two most probable answers.

        Args:
            log_w: Log-weights, shape ``(A, K)``, A at least 2.

        Raises:
            ValueError: If there are not two answers, or all weights are zero.

        Example:
            >>> margin = Margin.of(torch.tensor([[0.5, 0.3], [0.1, 0.1]]).log())
            >>> round(margin.difference, 4), margin.is_sure
            (1.3863, True)
        """
        checked_answers(log_w, least=2)
        found = log_evidence(log_w)
        best, other = found.topk(2).indices.tolist()
        if found[best] == -torch.inf:
            raise ValueError("all weights are zero: no answer is the most probable")
        return cls(
            (found[best] - found[other]).item(),
            log_ratio_stderr(log_w[best], log_w[other]).item(),
        )

    @property
    def is_sure(self) -> bool:
        """Whether other draws are unlikely to choose another answer.

        Nor would rounding.
        """
        return self.difference > max(APART * self.stderr, ROUNDING)


def log_mean_gap(log_p: Tensor, log_ratios: Tensor) -> Tensor:
    r"""Return log of the mean probability less the mean log-probability (Jensen gap).

    .. math:: \log \sum_k u_k\, p(a \mid x, z_k) - \sum_k u_k \log p(a \mid x, z_k),
        \qquad u_k \propto \frac{p(z_k \mid x)}{q(z_k \mid x)}

    At least 0 (Jensen). Over the draws after which an answer is possible at all: of the
    others the second sum knows nothing but minus infinity.

    Args:
        log_p: Log p(a | x, z_k), nats, shape ``(A, K)``; ``-inf`` in a whole column
            where no answer follows.
        log_ratios: Log p(z_k | x) - log q(z_k | x), nats, shape ``(K,)``.

    Returns:
        Nats, shape ``(A,)``, float64.

    Raises:
        ValueError: If no answer is possible after any draw.

    Example:
        >>> log_p = torch.tensor([[0.9, 0.1, 0.0], [0.5, 0.5, 0.0]]).log()
        >>> log_mean_gap(log_p, torch.zeros(3))[0]  # log 0.5 - (log 0.9 + log 0.1) / 2
        tensor(0.5108, dtype=torch.float64)
    """
    checked_answers(log_p)
    possible = (log_p > -torch.inf).any(0)
    if not possible.any():
        raise ValueError("no answer is possible after any draw")
    log_p, log_u = log_p[:, possible].double(), log_ratios[possible].double()
    log_u = log_u.log_softmax(-1)
    return (log_u + log_p).logsumexp(-1) - (log_u.exp() * log_p).sum(-1)


def votes(log_w: Tensor, log_ratios: Tensor) -> Tensor:
    """Return the share of draws that find an answer the most probable one.

    Args:
        log_w: Log-weights, nats, shape ``(A, K)``.
        log_ratios: Log p(z_k | x) - log q(z_k | x), nats, shape ``(K,)``: what a draw's
            vote counts.

    Returns:
        Shares, shape ``(A,)``, float64; a tie is shared, and a draw after which no
        answer is possible votes for none.

    Example:
        >>> log_w = torch.tensor([[0.9, 0.1, 0.1], [0.1, 0.2, 0.3]]).log()
        >>> votes(log_w, torch.zeros(3))
        tensor([0.3333, 0.6667], dtype=torch.float64)
    """
    checked_answers(log_w)
    return torch.mv(_ballots(log_w), log_ratios.double().softmax(-1))


@dataclass(frozen=True)
class AccuracyPoint:
    """Share of questions answered rightly with k draws a question."""

    num_samples: int
    """k."""
    accuracy: float
    """By the most probable answer: the mean over as many disjoint k of the K draws as
    there are."""
    stderr: float
    """Over questions; ``inf`` of a single one."""
    draws_stderr: float
    """Of a run with k draws, from the draws alone, on these questions: the standard
    deviation of resamples. Their mean says nothing: they repeat draws, so that it is
    that of fewer."""
    voted: float
    """The same by the votes of the same draws."""
    voted_stderr: float
    """Over questions."""

    @property
    def band(self) -> tuple[float, float]:
        """Where 95 % of runs with k draws have their accuracy, on these questions."""
        spread = APART * self.draws_stderr
        return max(self.accuracy - spread, 0.0), min(self.accuracy + spread, 1.0)


def accuracy_curve(
    log_w: Sequence[Tensor],
    log_ratios: Sequence[Tensor],
    right: Sequence[Tensor],
    sizes: Sequence[int] | None = None,
    *,
    seed: int = 0,
) -> list[AccuracyPoint]:
    """Return accuracies by the number of draws a question, with their errors.

    A question for which no draw has any weight is answered wrongly.

    Args:
        log_w: Of each question, its log-weights, nats, shape ``(A, K)``; K is the same
            of all, A need not be.
        log_ratios: Of each, log p(z_k | x) - log q(z_k | x), nats, shape ``(K,)``: what
            a draw's vote counts.
        right: Of each, what each answer scores, shape ``(A,)``: 1 if right, else 0.
        sizes: The k's, each in 1..K; 1, 2, 5, 10, ... by default.
        seed: Of the resamples.

    Raises:
        ValueError: If there is no question, or K is not the same of all.

    Example:
        >>> log_w = torch.tensor([[0.6, 0.1, 0.6, 0.5], [0.3, 0.5, 0.4, 0.5]]).log()
        >>> right, ratios = torch.tensor([1.0, 0.0]), torch.zeros(4)
        >>> one, two, four = accuracy_curve([log_w], [ratios], [right], [1, 2, 4])
        >>> one.accuracy, two.accuracy, four.accuracy
        (0.625, 0.5, 1.0)
    """
    if not log_w or len({w.shape[-1] for w in log_w}) > 1:
        raise ValueError("expected questions that all have the same number of draws")
    most = log_w[0].shape[-1]
    weights = [_scaled(w) for w in log_w]
    ballots = [
        _ballots(w) * _scaled(r[None]) for w, r in zip(log_w, log_ratios, strict=True)
    ]
    generator = torch.Generator().manual_seed(seed)
    points = []
    for size in log_grid(most) if sizes is None else sizes:
        credit, voted, again = [], [], torch.zeros(RESAMPLES, dtype=torch.float64)
        for w, b, r in zip(weights, ballots, right, strict=True):
            drawn = torch.randint(most, (RESAMPLES, size), generator=generator)
            credit.append(_credit(_blocks(w, size), r).mean().item())
            voted.append(_credit(_blocks(b, size), r).mean().item())
            again += _credit(w[:, drawn].sum(-1), r)
        points.append(
            AccuracyPoint(
                size,
                *_mean(credit),
                (again / len(log_w)).std().item(),
                *_mean(voted),
            )
        )
    return points


def checked_answers(log_w: Tensor, least: int = 1) -> None:
    """Raise unless these are log-weights of enough answers, shape (A, K)."""
    checked_weights(log_w)
    if log_w.ndim != 2 or len(log_w) < least:
        raise ValueError(
            f"expected log-weights of {least} or more answers, shape (A, K); got "
            f"{tuple(log_w.shape)}"
        )


def _scaled(log_w: Tensor) -> Tensor:
    """Return weights over the largest of all, (A, K), 0 where all are zero."""
    log_w = log_w.double()
    largest = log_w.max()
    return (log_w - (largest if largest > -torch.inf else 0)).exp()


def _ballots(log_w: Tensor) -> Tensor:
    """Return which answer each draw is for, (A, K): columns of total 1, or 0."""
    best = (log_w >= log_w.max(0).values - ROUNDING) & (log_w > -torch.inf)
    shared: Tensor = best.double() / best.sum(0).clamp(min=1)
    return shared


def _blocks(weights: Tensor, size: int) -> Tensor:
    """Sum disjoint blocks of draws, (A, K) -> (A, K // size)."""
    number = weights.shape[-1] // size
    return weights[:, : number * size].reshape(-1, number, size).sum(-1)


def _credit(scores: Tensor, right: Tensor) -> Tensor:
    """Return what the best answers score, (A, n) -> (n,); ties share."""
    best = ((scores >= scores.max(0).values * (1 - ROUNDING)) & (scores > 0)).double()
    credit: Tensor = (best * right[:, None]).sum(0) / best.sum(0).clamp(min=1)
    return credit


def _mean(values: list[float]) -> tuple[float, float]:
    """Return a mean over questions and its standard error."""
    number = len(values)
    error = stdev(values) / math.sqrt(number) if number > 1 else math.inf
    return fmean(values), error


def is_undecided(options: Sequence[Sequence[float]]) -> bool:
    r"""Whether the best option is within Monte Carlo error of another one, at 95 %.

    Of the best option's replicates :math:`a_r` and another's :math:`b_r`, from the same
    draws, :math:`\bar d = \mathrm{mean}(a_r - b_r)` is told from 0 if it exceeds its
    standard error times Student's t of R - 1 degrees of freedom.

    Args:
        options: Of each option R replicates of its log-likelihood, nats, or its one
            log-likelihood where nothing was drawn.

    Raises:
        ValueError: If there is no option or one without replicates, or not equally many
            of each that was drawn.

    Example:
        >>> is_undecided([[-1.0, -1.1, -0.9], [-1.2, -1.3, -1.1]])  # the draws agree
        False
        >>> is_undecided([[-1.0, -1.6, -0.4], [-1.2, -0.6, -1.8]])
        True
    """
    sizes = {len(option) for option in options}
    if not sizes or 0 in sizes or len(sizes - {1}) > 1:
        raise ValueError("expected as many replicates of every option, and at least 1")
    if (number := max(sizes)) == 1:
        return False
    wide = stdtrit(number - 1, (1 + CONFIDENCE) / 2)
    rows = [[*option] * (number // len(option)) for option in options]
    best, *others = sorted(rows, key=fmean, reverse=True)
    for other in others:
        gaps = [a - b for a, b in zip(best, other, strict=True)]
        if fmean(gaps) < wide * stdev(gaps) / math.sqrt(number):
            return True
    return False


def repeat_stderr(scores: list[np.ndarray]) -> float:
    """Return the part of the error of a mean over questions that repeats cause.

    It is what more answers to these questions would take away.

    Args:
        scores: Of each question, its answers' scores; questions with one answer tell
            nothing, and are taken to vary as the others do on average.

    Example:
        >>> round(repeat_stderr([np.array([0.0, 1.0]), np.array([1.0, 1.0])]), 4)
        0.25
    """
    sizes = np.array([len(each) for each in scores])
    known = np.array([each.var(ddof=1) for each in scores if len(each) > 1])
    if not len(known):
        return 0.0
    variances = np.full(len(scores), known.mean())
    variances[sizes > 1] = known
    return float(np.sqrt((variances / sizes).sum())) / len(scores)
