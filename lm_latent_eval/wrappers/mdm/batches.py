"""Estimators are answered together: passes of many targets share batches.

Choices of masks that are the same are read once, and so are masked texts that targets
have in common, as the options of a question have those of which all is masked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Generic, TypeVar

import torch
from torch import Tensor

from lm_latent_eval.networks.masked import MaskedReader
from lm_latent_eval.wrappers.mdm.predictions import Predicted, Requests, Target
from lm_latent_eval.wrappers.mdm.unmasking import Unmasking, log_beaten

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
    target: Target
    requests: Requests[T]
    masked: Tensor
    """Distinct choices of masks."""
    row: Tensor
    """Which of them each choice is that it asked for."""
    passes: int = 0


def answer_all(
    denoiser: MaskedReader,
    unmasking: Unmasking,
    jobs: Sequence[tuple[Target, Requests[T]]],
) -> Iterator[tuple[int, Found[T]]]:
    """Answer estimators until each has ended.

    Args:
        denoiser: What predicts.
        unmasking: Rule whose certainties, and chances to be beaten, are asked for.
        jobs: Targets with their estimators.

    Returns:
        Places among ``jobs`` with what was found, as they end.
    """

    def shape(number: int) -> tuple[int, int]:
        target = jobs[number][0]
        return target.num_places, target.first_read

    for (places, _), numbers in groupby(sorted(range(len(jobs)), key=shape), key=shape):
        active: list[_Job[T]] = []
        while True:
            room = denoiser.size(places) - len(active)
            for number in islice(numbers, room):
                target, requests = jobs[number]
                active.append(
                    _Job(number, target, requests, *_distinct(next(requests)))
                )
            if not active:
                break
            going = []
            predictions = _predict(denoiser, unmasking, active)
            for job, predicted in zip(active, predictions, strict=True):
                job.passes += len(job.masked)
                try:
                    asked = job.requests.send(predicted.of(job.row))
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
    denoiser: MaskedReader, unmasking: Unmasking, jobs: Iterable[_Job[T]]
) -> Iterator[Predicted]:
    """Answer what jobs of one shape wait for, in batches."""
    jobs = list(jobs)
    truth = torch.cat(
        [job.target.all_tokens.expand(len(job.masked), -1) for job in jobs]
    )
    masked = torch.cat([job.target.placed(job.masked) for job in jobs])
    tokens = truth.masked_fill(masked, denoiser.mask)
    first_read = jobs[0].target.first_read
    # What is read: texts that differ in what they show or in what is asked of them.
    both, reads = _distinct(torch.cat([tokens, masked.long()], 1))
    shown, asked = both[:, : tokens.shape[1]], both[:, tokens.shape[1] :].bool()
    who = reads.argsort(stable=True)
    owners = torch.cat([torch.tensor([0]), reads.bincount().cumsum(0)])
    longest = max(len(job.target) for job in jobs)
    found = (
        torch.zeros(truth.shape, dtype=torch.float64),
        torch.zeros_like(masked),
        torch.zeros(truth.shape, dtype=torch.float64),
    )
    beaten = torch.zeros(
        (len(truth), longest, longest + 1) if unmasking.draws else (len(truth), 0, 0),
        dtype=torch.float64,
    )

    def read(part: slice) -> None:
        where = asked[part]
        rows = denoiser.log_probs(shown[part], where, first_read)
        # Rows of a text stand together; a text may be several targets'.
        texts = who[owners[part.start] : owners[part.stop]]
        each = reads[texts] - part.start
        number = where.sum(1)
        begins, hidden = (number.cumsum(0) - number)[each], number[each]
        ends = hidden.cumsum(0)
        at = torch.arange(int(ends[-1])) + (begins - ends + hidden).repeat_interleave(
            hidden
        )
        at = at.to(rows.device)
        wanted = truth[texts][masked[texts]].to(rows.device)
        log_p = rows[at, wanted]
        best, sure = rows.argmax(-1), unmasking.certainty(rows)
        places = masked[texts]
        for table, values in zip(
            found, (log_p, best[at] == wanted, sure[at]), strict=True
        ):
            part_of = table[texts]
            part_of[places] = values.cpu().to(table.dtype)
            table[texts] = part_of
        if unmasking.draws:
            spans = zip(
                *(x.tolist() for x in (texts, begins, hidden, ends)), strict=True
            )
            for text, begin, h, end in spans:
                table = log_beaten(
                    rows[begin : begin + h], log_p[end - h : end], unmasking.threshold
                )
                beaten[text, :h, : h + 1] = table.cpu().double()

    def named(row: int, err: ValueError) -> ValueError:
        owners_of = [job for job in jobs for _ in range(len(job.masked))]
        return _told(owners_of[int(who[owners[row]])], err)

    for _ in denoiser.in_batches(len(shown), tokens.shape[1], read, named):
        pass
    first = 0
    for job in jobs:
        texts = slice(first, first + len(job.masked))
        columns = job.target.placed(torch.ones(1, len(job.target), dtype=torch.bool))[0]
        own = beaten[texts]
        if unmasking.draws:
            own = _spread(own, job.masked)
        log_p, best, sure = (each[texts][:, columns] for each in found)
        yield Predicted(log_p, best, sure, own)
        first = texts.stop


def _spread(table: Tensor, masked: Tensor) -> Tensor:
    """Put numbers of hidden places at these, (n, h, h + 1) -> (n, L, L + 1)."""
    length = masked.shape[1]
    rank = (masked.cumsum(1) - 1).clamp(min=0)
    column = torch.cat([rank, masked.sum(1, keepdim=True)], 1)
    rows = table.gather(1, rank[..., None].expand(-1, -1, table.shape[2]))
    found = rows.gather(2, column[:, None].expand(-1, length, -1))
    return found.masked_fill(~masked[..., None], 0.0)


def _told(job: _Job[T], err: ValueError) -> ValueError:
    """Tell an estimator that it gets no answer: it knows the name of its query."""
    try:
        job.requests.throw(err)
    except ValueError as named:
        return named
    return err
