"""Estimators ask what is predicted under masks; they are answered in shared batches.

An estimator is a generator. It yields which of a target's tokens are masked, as many
choices at a time as it likes, and is sent what a network predicts there. So it reads
like its equation, while passes of many targets share batches, and choices of masks that
are the same are read once.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Generic, NamedTuple, TypeAlias, TypeVar

import torch
from torch import Tensor

from lm_latent_eval.wrappers.mdm.denoiser import Denoiser

T = TypeVar("T")

Certainty: TypeAlias = Callable[[Tensor], Tensor]
"""Log-probabilities of V tokens at M places, (M, V) -> how sure each is, (M,)."""


@dataclass(frozen=True)
class Target:
    """L tokens to be predicted among others that are given."""

    before: tuple[int, ...]
    tokens: tuple[int, ...]
    after: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a target of nothing."""
        if not self.tokens:
            raise ValueError("an empty target: there is no token to predict")

    def __len__(self) -> int:
        """L."""
        return len(self.tokens)

    @property
    def num_places(self) -> int:
        """Tokens that the network reads."""
        return len(self.before) + len(self.tokens) + len(self.after)

    @property
    def all_tokens(self) -> Tensor:
        """Those given and those to be predicted, (T,)."""
        return torch.tensor([*self.before, *self.tokens, *self.after])

    def placed(self, masked: Tensor) -> Tensor:
        """Say of all T tokens which are masked, (n, L) -> (n, T)."""
        given = (len(self.before), len(self.after))
        return torch.nn.functional.pad(masked, given, value=False)


class Predicted(NamedTuple):
    """What is said of a target's tokens under n choices of masks, (n, L) each.

    Only what is said of masked tokens means something; the rest is zero.
    """

    log_p: Tensor
    """Log-probability of the target's token, nats, float64."""
    is_best: Tensor
    """Whether that token is the most probable one."""
    certainty: Tensor
    """How sure the prediction is, by the rule of an order; it never sees the target."""


Asking: TypeAlias = Generator[Tensor, Predicted, T]
"""Yields masks, (n, L) true where a token is masked; returns what it has found."""


@dataclass(frozen=True)
class Found(Generic[T]):
    """What an estimator came to."""

    value: T
    passes: int
    """Masked texts that the network read for it."""


@dataclass
class _Job(Generic[T]):
    """A target whose estimator waits for an answer."""

    number: int
    target: Target
    asking: Asking[T]
    masked: Tensor
    """Distinct choices of masks."""
    row: Tensor
    """Which of them each choice is that it asked for."""
    passes: int = 0


def answer_all(
    denoiser: Denoiser,
    certainty: Certainty,
    jobs: Sequence[tuple[Target, Asking[T]]],
) -> Iterator[tuple[int, Found[T]]]:
    """Answer estimators until each has ended.

    Args:
        denoiser: What predicts.
        certainty: Rule by which one prediction is surer than another.
        jobs: Targets with their estimators.

    Returns:
        Places among ``jobs`` with what was found, as they end.
    """

    def length(number: int) -> int:
        return jobs[number][0].num_places

    for places, numbers in groupby(sorted(range(len(jobs)), key=length), key=length):
        active: list[_Job[T]] = []
        while True:
            room = denoiser.size(places) - len(active)
            for number in islice(numbers, room):
                target, asking = jobs[number]
                active.append(_Job(number, target, asking, *_distinct(next(asking))))
            if not active:
                break
            going = []
            predictions = _predict(denoiser, certainty, active)
            for job, predicted in zip(active, predictions, strict=True):
                job.passes += len(job.masked)
                try:
                    asked = job.asking.send(Predicted(*(x[job.row] for x in predicted)))
                except StopIteration as end:
                    yield job.number, Found(end.value, job.passes)
                else:
                    job.masked, job.row = _distinct(asked)
                    going.append(job)
            active = going


def _distinct(masked: Tensor) -> tuple[Tensor, Tensor]:
    """Return distinct rows, and which of them each row is."""
    rows, row = torch.unique(masked, dim=0, return_inverse=True)
    return rows, row


def _predict(
    denoiser: Denoiser, certainty: Certainty, jobs: Iterable[_Job[T]]
) -> Iterator[Predicted]:
    """Answer what jobs of one length wait for, in batches."""
    jobs = list(jobs)
    truth = torch.cat(
        [job.target.all_tokens.expand(len(job.masked), -1) for job in jobs]
    )
    masked = torch.cat([job.target.placed(job.masked) for job in jobs])
    tokens = truth.masked_fill(masked, denoiser.mask)
    found = Predicted(
        torch.zeros(truth.shape, dtype=torch.float64),
        torch.zeros_like(masked),
        torch.zeros(truth.shape, dtype=torch.float64),
    )
    size = denoiser.size(truth.shape[1])
    for first in range(0, len(truth), size):
        part = slice(first, first + size)
        where = masked[part]
        rows = denoiser.log_probs(tokens[part], where)
        wanted = truth[part][where].to(rows.device)
        found.log_p[part][where] = rows.gather(-1, wanted[:, None])[:, 0].double().cpu()
        found.is_best[part][where] = (rows.argmax(-1) == wanted).cpu()
        found.certainty[part][where] = certainty(rows).double().cpu()
    first = 0
    for job in jobs:
        texts, start = slice(first, first + len(job.masked)), len(job.target.before)
        columns = slice(start, start + len(job.target))
        yield Predicted(*(each[texts, columns] for each in found))
        first = texts.stop
