"""Encoded batches of pieces, and the state of their walks."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lm_latent_eval.devices import fetched, wide_zeros, widened
from lm_latent_eval.models.kglm.steps import Walks
from lm_latent_eval.models.kglm.walk import NextStep
from lm_latent_eval.models.recurrent import Carry
from lm_latent_eval.text.batch import TokenBatch


@dataclass(frozen=True)
class KGLMState:
    """Where B texts with K walks each stand."""

    carry: Carry
    history: Tensor
    """Nodes of the last ``cutoff`` tokens, on the host, (B, K, cutoff)."""

    def select(self, index: Tensor) -> KGLMState:
        return KGLMState(self.carry.select(index), self.history[index])

    def resample(self, index: Tensor) -> KGLMState:
        """Pick walks of each text, (B, K')."""
        texts = torch.arange(len(index))[:, None]
        return KGLMState(self.carry, self.history[texts, index])


@dataclass(frozen=True)
class Encoded:
    """A batch of pieces with everything that no walk changes."""

    batch: TokenBatch
    text: Tensor
    """h^t, (B, T, token_embedding_dim)."""
    walk: NextStep
    """The distribution of the next step at every position."""
    history: Tensor
    """Nodes before the piece, on the host, (B, 1 or K, cutoff)."""
    carry: Carry
    search: NextStep | None = None
    """What beams go by, where that is not ``walk``."""

    def token(self, t: int, after: KGLMState | None) -> Encoded:
        """Cut out token t, after given walks; where the text stands is of its end."""
        return replace(
            self,
            batch=self.batch.piece(t, t + 1),
            text=self.text[:, t : t + 1],
            walk=self.walk.select(self._positions(t)),
            search=None,
            history=after.history if after else self.history,
        )

    def log_twist(self, t: int, after: KGLMState) -> Tensor:
        """Return what is expected of tokens t and on, (B, K) float64 nats."""
        window = after.history
        if self.walk.expected is None or t == self.text.shape[1]:
            return wide_zeros(window.shape[:2], self.text.device)
        position = self._positions(t)[:, None].expand(window.shape[:2])
        return widened(self.walk.expected_after(position, window))

    def _positions(self, t: int) -> Tensor:
        """Return where token t of each text is in the flattened (B * T), (B,).

        On the host.
        """
        batch, num_tokens = self.text.shape[:2]
        return torch.arange(batch) * num_tokens + t

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
