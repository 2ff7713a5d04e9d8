"""Encoded pieces of text for KGLM's walks, and the state between pieces."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from lm_latent_eval.devices import fetched
from lm_latent_eval.models.kglm.latents import NextStep, Walks
from lm_latent_eval.models.kglm.outlooks import WalkTables
from lm_latent_eval.models.kglm.search import DrawnWalks
from lm_latent_eval.models.recurrent import Carry
from lm_latent_eval.text.batch import TokenBatch


@dataclass(frozen=True)
class KGLMState:
    """State of B texts with K walks each."""

    carry: Carry
    history: Tensor
    """Nodes of the last ``cutoff`` tokens, on the host, (B, K, cutoff)."""

    def select(self, index: Tensor) -> KGLMState:
        return KGLMState(self.carry.select(index), self.history[index])

    def resample(self, index: Tensor) -> KGLMState:
        """Pick walks of each text, (B, K')."""
        at = torch.arange(len(index))[:, None], index
        return KGLMState(self.carry, self.history[at])


@dataclass(frozen=True)
class Encoded:
    """A batch of pieces with everything that no walk changes."""

    batch: TokenBatch
    text: Tensor
    """h^t, (B, T, token_embedding_dim)."""
    walk: NextStep
    """The distribution of the next step at every position, but for look-ahead, which
    reads on."""
    history: Tensor
    """Nodes before the piece, on the host, (B, 1 or K, cutoff)."""
    carry: Carry
    tables: WalkTables | None = None
    """Tables of what is searched and drawn, of a proposal."""
    start: int = 0
    """Index of the piece's first token in its texts."""
    draws: list[DrawnWalks] = field(default_factory=list)
    """Walks that are drawn from, text by text, once there are any."""

    def after(self, walks: Walks) -> KGLMState:
        """Return the state after the piece under the given walks."""
        history, (_, node) = self.on_host(walks)
        _, length = self.batch.on_host
        last = torch.arange(history.shape[-1]) + length[:, None]
        path = torch.cat([history, node], -1)
        return KGLMState(self.carry, path.gather(2, last[:, None].expand_as(history)))

    def on_host(self, walks: Walks) -> tuple[Tensor, Walks]:
        """Return the nodes before the piece of every walk, (B, K, cutoff), and walks.

        Walks that a device has are waited for once.
        """
        walks = Walks(*fetched(*walks))
        return self.history.expand(*walks.node.shape[:2], -1), walks
