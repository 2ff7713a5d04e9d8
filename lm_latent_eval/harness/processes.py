"""Data parallelism over the processes of lm-eval."""

from __future__ import annotations

import atexit
import os
import time
from dataclasses import dataclass
from typing import Any

import torch

from lm_latent_eval.extras import require


@dataclass(frozen=True)
class Processes:
    """This process among those that ``accelerate launch`` started, or alone."""

    accelerator: Any = None

    @classmethod
    def start(cls) -> Processes:
        """Join the other processes if there are any."""
        if int(os.environ.get("WORLD_SIZE", "1")) < 2:
            return cls()
        accelerate = require("accelerate", extra="distributed")
        accelerator = accelerate.Accelerator(cpu=not torch.cuda.is_available())
        if accelerator.num_processes < 2:
            return cls()
        atexit.unregister(_leave)  # once, however many models a process makes
        atexit.register(_leave)
        return cls(accelerator)

    @property
    def rank(self) -> int:
        """Index of this process."""
        return int(self.accelerator.process_index) if self.accelerator else 0

    @property
    def world_size(self) -> int:
        """Number of processes."""
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

    def gather_object(self, obj: Any, dst: int) -> list[Any] | None:
        """Collect an object of every process on ``dst``; None elsewhere."""
        if not self.accelerator:
            return [obj]
        everything = [None] * self.world_size if self.rank == dst else None
        torch.distributed.gather_object(obj, everything, dst=dst)
        return everything

    def barrier(self) -> None:
        """Wait for every process."""
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
