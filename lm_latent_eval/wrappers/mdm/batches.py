"""Estimators are answered together: passes of many targets share batches.

Choices of masks that are the same are read once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Generic, TypeVar

import torch
from torch import Tensor

from lm_latent_eval.networks.masked import MaskedReader
from lm_latent_eval.wrappers.mdm.predictions import (
    Asking,
    Certainty,
    Predicted,
    TargetTokens,
)

T = TypeVar("T")


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
    target: TargetTokens
    asking: Asking[T]
    masked: Tensor
    """Distinct choices of masks."""
    row: Tensor
    """Which of them each choice is that it asked for."""
    passes: int = 0


def answer_all(
    denoiser: MaskedReader,
    certainty: Certainty,
    jobs: Sequence[tuple[TargetTokens, Asking[T]]],
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
    denoiser: MaskedReader, certainty: Certainty, jobs: Iterable[_Job[T]]
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

    def read(part: slice) -> Predicted:
        where = masked[part]
        rows = denoiser.log_probs(tokens[part], where)
        wanted = truth[part][where].to(rows.device)
        return Predicted(
            rows.gather(-1, wanted[:, None])[:, 0].cpu().double(),
            (rows.argmax(-1) == wanted).cpu(),
            certainty(rows).cpu().double(),
        )

    def named(row: int, err: ValueError) -> ValueError:
        owners = [job for job in jobs for _ in range(len(job.masked))]
        return _told(owners[row], err)

    number, length = truth.shape
    for part, predicted in denoiser.in_batches(number, length, read, named):
        for table, values in zip(found, predicted, strict=True):
            table[part][masked[part]] = values
    first = 0
    for job in jobs:
        texts, start = slice(first, first + len(job.masked)), len(job.target.before)
        columns = slice(start, start + len(job.target))
        yield Predicted(*(each[texts, columns] for each in found))
        first = texts.stop


def _told(job: _Job[T], err: ValueError) -> ValueError:
    """Tell an estimator that it gets no answer: it knows the name of its query."""
    try:
        job.asking.throw(err)
    except ValueError as named:
        return named
    return err
