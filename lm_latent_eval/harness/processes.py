"""Data parallelism over the processes of lm-eval, and their shares of the requests.

lm-eval gives every process each n-th document, however long it is, and all wait for the
one whose documents are longest. So requests are shared out anew, by length. Random
numbers follow from a request's name, so the shares move no number.
"""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch

from lm_latent_eval.harness.answers import ScoredFloat
from lm_latent_eval.scoring.answer import Answer
from lm_latent_eval.scoring.texts import Query

T = TypeVar("T")


@dataclass(frozen=True)
class Processes:
    """This process among those that ``accelerate launch`` started, or alone."""

    accelerator: Any = None

    @classmethod
    def start(cls) -> Processes:
        """Join the other processes if there are any."""
        if int(os.environ.get("WORLD_SIZE", "1")) < 2:
            return cls()
        import accelerate

        accelerator = accelerate.Accelerator(cpu=not torch.cuda.is_available())
        if accelerator.num_processes < 2:
            return cls()
        atexit.unregister(_leave)  # once, however many models a process makes
        atexit.register(_leave)
        return cls(accelerator)

    @property
    def rank(self) -> int:
        return int(self.accelerator.process_index) if self.accelerator else 0

    @property
    def world_size(self) -> int:
        return int(self.accelerator.num_processes) if self.accelerator else 1

    @property
    def device(self) -> torch.device | None:
        """The device of this process's share, if there are several."""
        return self.accelerator.device if self.accelerator else None

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """Concatenate a tensor over the processes."""
        gathered: torch.Tensor = (
            self.accelerator.gather(tensor) if self.accelerator else tensor
        )
        return gathered

    def gather(self, items: list[Any]) -> list[Any]:
        """Concatenate lists over the processes, for every process."""
        if not self.accelerator:
            return items
        everything: list[Any] = [None] * self.world_size
        torch.distributed.all_gather_object(everything, items)
        return [item for part in everything for item in part]

    def delivered(self, parcels: Sequence[tuple[int, T]]) -> list[T]:
        """Send each object to the process of its rank; return those for this one."""
        received: list[T] = []
        for rank in range(self.world_size):
            own = [item for owner, item in parcels if owner == rank]
            for part in self.gather_object(own, rank) or ():
                received += part
        return received

    def gather_object(self, obj: Any, dst: int) -> list[Any] | None:
        """Collect an object of every process on ``dst``; None elsewhere."""
        if not self.accelerator:
            return [obj]
        everything = [None] * self.world_size if self.rank == dst else None
        torch.distributed.gather_object(obj, everything, dst=dst)
        return everything

    def barrier(self) -> None:
        if self.accelerator:
            self.accelerator.wait_for_everyone()


SETTLED = 0.1
"""Seconds after which the threads of a group have put away what they sent last."""


def _leave() -> None:
    """Leave the group before Python ends, or its threads can abort the process.

    Seen once in many runs, as "terminate called without an active exception" after all
    results were written, which failed the launch.

    A thread may need the interpreter to put tensors away. The end of a group, which has
    the interpreter, waits for that thread: with torch 2.6 it then waits for ever.
    """
    if torch.distributed.is_initialized():
        time.sleep(SETTLED)  # the interpreter is free meanwhile
        torch.distributed.destroy_process_group()


@dataclass(frozen=True)
class Request:
    """A request of lm-eval's as any process can answer it."""

    query: Query
    arguments: tuple[str, ...]
    """Strings of the request: a context and its continuation, or a text, before which
    0.5 puts an empty one."""
    whole: bool
    """Whether it is a whole text."""
    task_name: str | None
    doc_id: int | None
    idx: int
    owner: int = 0
    """Rank of the process that asks."""

    @property
    def group(self) -> tuple[int, str]:
        """Key of requests that share a context."""
        return self.owner, self.query.name

    def answered(self, answer: Answer) -> ScoredFloat:
        """Set the answer of a query."""
        *context, text = self.arguments
        placed = replace(answer, index=self.query.index)
        return ScoredFloat(placed.about(text, *(() if self.whole else context)))


def share(requests: Sequence[Request], processes: Processes) -> list[Request]:
    """Return the requests that this process answers: its own, where it is alone.

    All processes must call, or all wait.
    """
    if processes.world_size == 1:
        return [*requests]
    own = [replace(request, owner=processes.rank) for request in requests]
    return balanced(processes.gather(own), processes.world_size)[processes.rank]


def balanced(requests: Sequence[Request], num_processes: int) -> list[list[Request]]:
    """Assign requests to processes, longest first, each to the least loaded process.

    Those that share a context stay together: it is read once.

    Reference:
        Graham (1969), "Bounds on multiprocessing timing anomalies", theorem 2: the
        largest share is at most 4/3 of what it must be.

    Example:
        >>> def request(n, text):
        ...     return Request(Query(n, f"task/{n}", text), (text,), True, "task", n, 0)
        >>> requests = [request(n, "x" * size) for n, size in enumerate([9, 3, 1, 5])]
        >>> [[r.doc_id for r in share] for share in balanced(requests, 2)]
        [[0], [3, 1, 2]]
    """
    groups: dict[tuple[int, str], list[Request]] = {}
    for request in requests:
        groups.setdefault(request.group, []).append(request)
    shares: list[list[Request]] = [[] for _ in range(num_processes)]
    total = [0] * num_processes
    for group in sorted(groups.values(), key=_length, reverse=True):
        least = total.index(min(total))
        shares[least] += group
        total[least] += _length(group)
    return shares


def _length(group: Sequence[Request]) -> int:
    """Return the characters of a group, a context's once."""
    contexts = {request.query.context for request in group}
    return sum(map(len, contexts)) + sum(len(r.query.text) for r in group)
