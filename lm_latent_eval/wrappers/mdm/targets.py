"""Targets of masked diffusion, and passes of the network that they share.

An estimator is a generator. It yields which of a target's tokens are masked, as many
choices at a time as it likes, and is sent what the network predicts there. So it reads
like its equation, and passes of many targets share batches: choices of masks that are
the same are read once, and so are masked texts that targets have in common, as the
options of a question have those of which all is masked.
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
    """L tokens to be predicted among others that are given."""

    before: tuple[int, ...]
    tokens: tuple[int, ...]
    after: tuple[int, ...] = ()
    first_read: int = 0
    """Place from which on a network reads that has kept what it read before."""

    def __post_init__(self) -> None:
        """Refuse a target of nothing."""
        if not self.tokens:
            raise ValueError("an empty target: there is no token to predict")

    def __len__(self) -> int:
        """L."""
        return len(self.tokens)

    @property
    def num_places(self) -> int:
        """Tokens that the network reads, those that it has kept among them."""
        return len(self.before) + len(self.tokens) + len(self.after)

    @property
    def all_tokens(self) -> Tensor:
        """Those given and those to be predicted, (T,)."""
        return torch.tensor([*self.before, *self.tokens, *self.after])

    def placed(self, masked: Tensor) -> Tensor:
        """Say of all T tokens which are masked and predicted, (n, L) -> (n, T)."""
        given = (len(self.before), len(self.after))
        return torch.nn.functional.pad(masked, given, value=False)


@dataclass(frozen=True)
class Blocks:
    """How a target is cut into blocks, which are written from the left.

    A bidirectional network reads the later ones as masks, as where it writes; one whose
    attention is causal over blocks does not read them.
    """

    length: int | None
    """Tokens of a block; None: all of the target is one."""
    mask: int
    causal: bool = False
    """Whether attention is causal over blocks: these are counted from the text's
    beginning then, and the first one of a target has what is left of its context's
    last; else from the target's."""

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

    def spans(self, given: int, number: int) -> Iterator[tuple[int, int]]:
        """Yield where each block of so many tokens after given ones begins and ends."""
        size = self.length or number
        begun = given % size if self.causal else 0
        return pairwise([0, *range(size - begun, number, size), number])

    def first_read(self, place: int) -> int:
        """Return from where on a network reads to predict the block with a place."""
        return place - place % self.length if self.causal and self.length else 0


@dataclass(frozen=True)
class Found(Generic[T]):
    """Result of an estimator."""

    value: T
    passes: int
    """Masked texts that the network read for it."""


@dataclass
class _Job(Generic[T]):
    """A target whose estimator waits for an answer."""

    number: int
    target: TargetTokens
    requests: Requests[T]
    masked: Tensor
    """Distinct choices of masks."""
    row: Tensor
    """Index among ``masked`` of each choice that was asked for."""
    passes: int = 0


def answer_all(
    denoiser: MaskedReader,
    unmasking: Unmasking,
    jobs: Sequence[tuple[TargetTokens, Requests[T]]],
) -> Iterator[tuple[int, Found[T]]]:
    """Run the network's passes that estimators request, until each has ended.

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
    """Compute the predictions that jobs of one shape wait for, in batches."""
    jobs = list(jobs)
    truth = torch.cat(
        [job.target.all_tokens.expand(len(job.masked), -1) for job in jobs]
    )
    masked = torch.cat([job.target.placed(job.masked) for job in jobs])
    tokens = truth.masked_fill(masked, denoiser.mask)
    first_read = jobs[0].target.first_read
    # Distinct inputs: texts that differ in tokens, masks or places to predict.
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
        at, _ = expand_ranges(begins, begins + hidden)
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


def _throw(job: _Job[T], err: ValueError) -> ValueError:
    """Raise an error inside an estimator, which adds the name of its query."""
    try:
        job.requests.throw(err)
    except ValueError as named:
        return named
    return err
