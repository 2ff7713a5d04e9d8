"""Batch sizes that fit into device memory, found by trial."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

T = TypeVar("T")
R = TypeVar("R")

SCORES = 1 << 25
"""Scores (rows x tokens x vocabulary) of a network held at a time."""
MOST_ROWS = 64
"""Rows read together where nobody says how many."""

logger = logging.getLogger(__name__)


@dataclass
class MemoryLimit:
    """What the memory of a device was found to hold."""

    most: float = math.inf
    """Items x size of the largest."""

    def holds(self, size: int) -> float:
        """Return how many items of a size are tried, at least one."""
        return max(1.0, self.most / max(1, size))

    def in_batches(
        self,
        items: Sequence[T],
        most: int,
        work: Callable[[Sequence[T]], R],
        size: Callable[[T], int],
        refusal: Callable[[T], ValueError],
    ) -> Iterator[tuple[Sequence[T], R]]:
        """Do work in batches; where memory runs out, in batches of half as many.

        What is found is remembered: later batches are as small from the beginning.

        Args:
            items: What is to be worked on.
            most: Items of a batch.
            work: Does that of a batch, and can be done again.
            size: Of an item, in what memory grows with.
            refusal: What to raise if one item by itself does not fit.

        Yields:
            Batches, in order, and what came of them.

        Raises:
            ValueError: As ``refusal`` says.

        Example:
            >>> def work(items):
            ...     if len(items) > 2:
            ...         raise torch.OutOfMemoryError
            ...     return sum(items)
            >>> memory = MemoryLimit()
            >>> list(memory.in_batches(range(5), 4, work, lambda item: 1, ValueError))
            [(range(0, 2), 1), (range(2, 4), 5), (range(4, 5), 4)]
            >>> memory.holds(1)
            2.0
        """
        failed = 0
        while items:
            batch = items[:most]
            largest = max(map(size, batch))
            batch = batch[: int(min(most, self.holds(largest)))]
            try:
                found = work(batch)
            except torch.OutOfMemoryError as err:
                if len(batch) == 1:
                    raise refusal(batch[0]) from err
            else:
                if failed:
                    logger.warning(
                        "out of memory with %d at a time; %d fit, and are taken at a "
                        "time from here on",
                        failed,
                        len(batch),
                    )
                failed = 0
                yield batch, found
                items = items[len(batch) :]
                continue
            # Out of the handler, which would keep what the batch had taken.
            failed = failed or len(batch)
            self.most = len(batch) // 2 * max(1, largest)


def fitting(num_tokens: int, vocab_size: int, most: int = MOST_ROWS) -> int:
    """Return how many rows of tokens a network is given at first.

    Example:
        >>> fitting(10, 1000), fitting(1024, 50_257), fitting(10**6, 10**6)
        (64, 1, 1)
    """
    return max(1, min(most, SCORES // (num_tokens * vocab_size)))
