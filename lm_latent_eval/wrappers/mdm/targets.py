"""Targets of masked diffusion, and passes of the network that they share.

An estimator is a generator: it yields choices of masked tokens, several at a time,
and is sent the network's predictions. So it reads like its equation, and many targets
share batches. Equal choices of masks are read once, and so are masked texts that
targets have in common, such as the fully masked options of a question.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice, pairwise
from typing import Generic, TypeVar

import torch
from torch import Tensor

from lm_latent_eval.inference.ragged import expand_ranges
from lm_latent_eval.networks.masked import MaskedReader
from lm_latent_eval.wrappers.mdm.unmasking import (
    Predicted,
    Requests,
    Unmasking,
    log_beaten,
)

T = TypeVar("T")


@dataclass(frozen=True)
class TargetTokens:
    """L tokens to be predicted among given ones."""

    before: tuple[int, ...]
    tokens: tuple[int, ...]
    after: tuple[int, ...] = ()
    first_read: int = 0
    """First position that is read by a network with a cache."""

    def __post_init__(self) -> None:
        if not self.tokens:
            raise ValueError("an empty target: there is no token to predict")

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def num_places(self) -> int:
        """Number of tokens that the network reads, cached ones included."""
        return len(self.before) + len(self.tokens) + len(self.after)

    @property
    def all_tokens(self) -> Tensor:
        """Given tokens and those to be predicted, (T,)."""
        return torch.tensor([*self.before, *self.tokens, *self.after])

    def placed(self, masked: Tensor) -> Tensor:
        """Masks over all T tokens, (n, L) -> (n, T)."""
        given = (len(self.before), len(self.after))
        return torch.nn.functional.pad(masked, given, value=False)


@dataclass(frozen=True)
class Blocks:
    """Division of a target into blocks, which are written from left to right.

    A bidirectional network reads later blocks as masks, as in generation; one whose
    attention is causal over blocks does not read them.
    """

    length: int | None
    """Number of tokens of a block; None: the target is one block."""
    mask: int
    causal: bool = False
    """Whether attention is causal over blocks. Blocks are then counted from the
    beginning of the text, so the first one of a target completes its context's last;
    otherwise they are counted from the beginning of the target."""

    def of(self, target: TargetTokens) -> list[TargetTokens]:
        """Cut a target.

        Example:
            >>> target = TargetTokens((7, 8, 9), (1, 2, 3))
            >>> [len(block) for block in Blocks(2, mask=0).of(target)]
            [2, 1]
            >>> [len(block) for block in Blocks(2, mask=0, causal=True).of(target)]
            [1, 2]
        """
        blocks = []
        for first, last in self.spans(len(target.before), len(target)):
            before = (*target.before, *target.tokens[:first])
            tokens = target.tokens[first:last]
            if self.causal:
                read = self.first_read(len(before))
                blocks.append(TargetTokens(before, tokens, first_read=read))
            else:
                later = [self.mask] * (len(target) - last)
                blocks.append(TargetTokens(before, tokens, (*later, *target.after)))
        return blocks

    def spans(self, given: int, length: int) -> Iterator[tuple[int, int]]:
        """Begin and end of each block of the tokens after given ones."""
        size = self.length or length
        begun = given % size if self.causal else 0
        return pairwise([0, *range(size - begun, length, size), length])

    def first_read(self, position: int) -> int:
        """First position that a network reads to predict the block with a position."""
        return position - position % self.length if self.causal and self.length else 0


@dataclass(frozen=True)
class Found(Generic[T]):
    value: T
    passes: int
    """Number of masked texts that the network read for it."""


@dataclass
class _Job(Generic[T]):
    index: int
    target: TargetTokens
    requests: Requests[T]
    masked: Tensor
    """Distinct choices of masks."""
    row: Tensor
    """Index among ``masked`` of each requested choice."""
    passes: int = 0


def answer_all(
    denoiser: MaskedReader,
    unmasking: Unmasking,
    jobs: Sequence[tuple[TargetTokens, Requests[T]]],
) -> Iterator[tuple[int, Found[T]]]:
    """Run the network's passes that estimators request, until all have ended.

    Args:
        denoiser: The network.
        unmasking: Rule of certainties and of ``log_beaten``.
        jobs: Targets with their estimators.

    Returns:
        Indices into ``jobs`` with their results, in the order of completion.
    """

    def shape(index: int) -> tuple[int, int]:
        target = jobs[index][0]
        return target.num_places, target.first_read

    for (num_tokens, _), indices in groupby(
        sorted(range(len(jobs)), key=shape), key=shape
    ):
        active: list[_Job[T]] = []
        while True:
            room = denoiser.size(num_tokens) - len(active)
            for index in islice(indices, room):
                target, requests = jobs[index]
                active.append(_Job(index, target, requests, *_distinct(next(requests))))
            if not active:
                break
            going = []
            predictions = _predict(denoiser, unmasking, active)
            for job, predicted in zip(active, predictions, strict=True):
                job.passes += len(job.masked)
                try:
                    new_masks = job.requests.send(predicted.of(job.row))
                except StopIteration as end:
                    yield job.index, Found(end.value, job.passes)
                else:
                    job.masked, job.row = _distinct(new_masks)
                    going.append(job)
            active = going


def _distinct(masked: Tensor) -> tuple[Tensor, Tensor]:
    rows, row = torch.unique(masked, dim=0, return_inverse=True)
    return rows, row


def _predict(
    denoiser: MaskedReader, unmasking: Unmasking, jobs: Iterable[_Job[T]]
) -> Iterator[Predicted]:
    """Compute the predictions that jobs of one shape wait for, in batches."""
    jobs = list(jobs)
    truth = torch.cat(
        [job.target.all_tokens.expand(len(job.masked), -1) for job in jobs]
    )
    masked = torch.cat([job.target.placed(job.masked) for job in jobs])
    tokens = truth.masked_fill(masked, denoiser.mask)
    first_read = jobs[0].target.first_read
    # Distinct inputs: texts that differ in tokens, masks or positions to predict.
    both, reads = _distinct(torch.cat([tokens, masked.long()], 1))
    shown, hidden_in = both[:, : tokens.shape[1]], both[:, tokens.shape[1] :].bool()
    who = reads.argsort(stable=True)
    owners = torch.cat([torch.tensor([0]), reads.bincount().cumsum(0)])
    longest = max(len(job.target) for job in jobs)
    tables = (
        torch.zeros(truth.shape, dtype=torch.float64),
        torch.zeros_like(masked),
        torch.zeros(truth.shape, dtype=torch.float64),
    )
    beaten = torch.zeros(
        (len(truth), longest, longest + 1) if unmasking.draws else (len(truth), 0, 0),
        dtype=torch.float64,
    )

    def read(part: slice) -> None:
        where = hidden_in[part]
        rows = denoiser.log_probs(shown[part], where, first_read)
        # Rows of a text are adjacent; several targets may share a text.
        texts = who[owners[part.start] : owners[part.stop]]
        each = reads[texts] - part.start
        counts = where.sum(1)
        begins, hidden = (counts.cumsum(0) - counts)[each], counts[each]
        at, _ = expand_ranges(begins, begins + hidden)
        at = at.to(rows.device)
        targets = truth[texts][masked[texts]].to(rows.device)
        log_p = rows[at, targets]
        best, sure = rows.argmax(-1), unmasking.certainty(rows)
        hidden_positions = masked[texts]
        for table, values in zip(
            tables, (log_p, best[at] == targets, sure[at]), strict=True
        ):
            part_of = table[texts]
            part_of[hidden_positions] = values.cpu().to(table.dtype)
            table[texts] = part_of
        if unmasking.draws:
            of_texts = log_p.split(hidden.tolist())
            spans = zip(texts.tolist(), begins.tolist(), of_texts, strict=True)
            for text, begin, own in spans:
                h = len(own)
                table = log_beaten(rows[begin : begin + h], own, unmasking.threshold)
                beaten[text, :h, : h + 1] = table.cpu().double()

    def named(row: int, err: ValueError) -> ValueError:
        owners_of = [job for job in jobs for _ in range(len(job.masked))]
        return _throw(owners_of[int(who[owners[row]])], err)

    for _ in denoiser.in_batches(len(shown), tokens.shape[1], read, named):
        pass
    first = 0
    for job in jobs:
        texts = slice(first, first + len(job.masked))
        columns = job.target.placed(torch.ones(1, len(job.target), dtype=torch.bool))[0]
        own = beaten[texts]
        if unmasking.draws:
            own = _spread(own, job.masked)
        log_p, best, sure = (each[texts][:, columns] for each in tables)
        yield Predicted(log_p, best, sure, own)
        first = texts.stop


def _spread(table: Tensor, masked: Tensor) -> Tensor:
    """Scatter values of hidden positions, (n, h, h + 1) -> (n, L, L + 1)."""
    length = masked.shape[1]
    rank = (masked.cumsum(1) - 1).clamp(min=0)
    column = torch.cat([rank, masked.sum(1, keepdim=True)], 1)
    rows = table.gather(1, rank[..., None].expand(-1, -1, table.shape[2]))
    values = rows.gather(2, column[:, None].expand(-1, length, -1))
    return values.masked_fill(~masked[..., None], 0.0)


def _throw(job: _Job[T], err: ValueError) -> ValueError:
    """Raise an error inside an estimator, which adds the name of its query."""
    try:
        job.requests.throw(err)
    except ValueError as named:
        return named
    return err
