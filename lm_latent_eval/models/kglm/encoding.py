"""Encoded pieces of text for KGLM's walks, and the state between pieces."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from lm_latent_eval.devices import fetched
from lm_latent_eval.models.kglm.latents import NextStep, Walks
from lm_latent_eval.models.kglm.search import LookAhead
from lm_latent_eval.models.kglm.twisting import twisted
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
    """The distribution of the next step at every position, but for look-ahead."""
    history: Tensor
    """Nodes before the piece, on the host, (B, 1 or K, cutoff)."""
    carry: Carry
    ahead: LookAhead | None = None
    """What is expected of the text ahead, which may go on after the piece; None:
    nothing is."""
    temperature: float = 1.0
    """Divides the scores of what is drawn, where there is look-ahead."""

    @cached_property
    def drawn(self) -> NextStep:
        """The distribution of the next step to draw from."""
        if self.ahead is None:
            return self.walk
        whole = self.ahead.scores
        num_tokens = whole.batch.targets.shape[1]
        walk = twisted(whole.walk, self.ahead).scaled(1.0 / self.temperature)
        if num_tokens == self.text.shape[1]:
            return walk
        place = torch.arange(self.text.shape[1])
        position = torch.arange(len(self.text))[:, None] * num_tokens + place
        return walk.select(position.flatten())

    def up_to(self, num_tokens: int) -> Encoded:
        """Return a piece that ends earlier, but for where the text stands."""
        place = torch.arange(num_tokens)
        batch, length = self.text.shape[:2]
        position = (torch.arange(batch)[:, None] * length + place).flatten()
        text, walk = self.text[:, :num_tokens], self.walk.select(position)
        return replace(self, text=text, walk=walk)

    def positions(self, t: int) -> Tensor:
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
