r"""Multiple-choice decisions from estimated probabilities with shared draws.

    log w_k(a) = log p(a, z_k | x) - log q(z_k | x),    k = 1..K,    a = 1..A

Symbols: log w_k(a) -> ``log_w[a - 1, k - 1]``, nats, shape ``(A, K)``. All answers of a
question have the same draws z_k, so the errors of two answers are not independent, and
their difference has a smaller one than either.
Source: Wang et al. (2023), "Self-consistency", for votes; Efron (1979) for resamples.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lm_latent_eval.estimators.checks import checked_weights
from lm_latent_eval.estimators.curve import log_grid
from lm_latent_eval.estimators.importance import log_evidence, log_ratio_stderr
from lm_latent_eval.estimators.rounding import ROUNDING

RESAMPLES = 400
APART = 1.96
"""Standard errors between the two best answers, from which on a choice is sure; and on
either side of a band."""


@dataclass(frozen=True)
class Margin:
    """How far the most probable answer is from the next."""

    difference: float
    """Of their log p-hat, nats; ``inf`` where the next has no weight at all."""
    stderr: float
    """Monte Carlo error of the difference, from the shared draws; nats."""

    @classmethod
    def of(cls, log_w: Tensor) -> "Margin":
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
        """Whether draws of the same kind would hardly choose another answer.

        Nor would rounding.
        """
        return self.difference > max(APART * self.stderr, ROUNDING)


def log_mean_gap(log_p: Tensor, log_ratios: Tensor) -> Tensor:
    r"""Return what an average of log-probabilities loses against their average's log.

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
    """Say how many draws a question are worth having.

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
        drawn = torch.randint(most, (len(log_w), RESAMPLES, size), generator=generator)
        credit, voted, again = [], [], []
        for n, (w, b, r) in enumerate(zip(weights, ballots, right, strict=True)):
            credit.append(_credit(_blocks(w, size), r).mean())
            voted.append(_credit(_blocks(b, size), r).mean())
            again.append(_credit(w[:, drawn[n]].sum(-1), r))
        points.append(
            AccuracyPoint(
                size,
                *_mean(torch.stack(credit)),
                torch.stack(again).mean(0).std().item(),
                *_mean(torch.stack(voted)),
            )
        )
    return points


def checked_answers(log_w: Tensor, least: int = 1) -> None:
    """Refuse what are no log-weights of so many answers, shape (A, K)."""
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


def _mean(values: Tensor) -> tuple[float, float]:
    """Return a mean over questions and its standard error."""
    number = len(values)
    error = values.std().item() / math.sqrt(number) if number > 1 else math.inf
    return values.mean().item(), error
