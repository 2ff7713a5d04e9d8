"""Steps of a walk: latents, conditioning state and choices."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor

from lm_latent_eval.inference.particles import fingerprint


class Mention(IntEnum):
    """What a token does, in the numbering of the original checkpoints."""

    NONE = 0
    NEW = 1
    DERIVED = 2
    CONTINUE = 3


class Walks(NamedTuple):
    """Latents of a batch: B texts, K walks each, T tokens."""

    mention: Tensor
    """Mention types, (B, K, T)."""
    node: Tensor
    """Nodes of the graph, (B, K, T); 0 where nothing is mentioned."""


@dataclass(frozen=True)
class Rows:
    """R independent decisions, each with the place and the past it is taken from.

    On the host.
    """

    position: Tensor
    """Index into the flattened (B * T) positions, (R,)."""
    window: Tensor
    """Nodes of the last ``cutoff`` tokens, the latest last, (R, W)."""

    def pick(self, index: Tensor) -> Rows:
        """Return the rows of an index."""
        return Rows(self.position[index], self.window[index])

    def distinct(self) -> tuple[Rows, Tensor]:
        """Return every place and past once, and which of them each row has, (R,)."""
        code = fingerprint((self.position[None], self.window[None]))[0]
        different, which = torch.unique(code, return_inverse=True)
        every = torch.arange(len(which), device=which.device)
        one = torch.zeros_like(different).scatter(0, which, every)
        return self.pick(one), which

    @property
    def previous(self) -> Tensor:
        """The node of the token before, (R,)."""
        return self.window[:, -1]


class ListedSteps(NamedTuple):
    """Choices of several rows, flat, on the host."""

    row: Tensor
    mention: Tensor
    node: Tensor
    log_p: Tensor
    """What they add to the rank of a walk, nats."""


class Parents(NamedTuple):
    """What a DERIVED mention may be derived from, for every row, flat."""

    row: Tensor
    """Non-decreasing, on the host, (N,)."""
    entity: Tensor
    """Recent entities, each once a row, on the host, (N,)."""
    log_prob: Tensor
    """Nats, (N,)."""
    lift: Tensor
    """Log of what the twist multiplies the mass of DERIVED mentions by, (R,)."""
