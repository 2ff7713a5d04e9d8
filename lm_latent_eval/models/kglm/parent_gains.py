r"""Look-ahead to what entities that a walk has mentioned are worth as parents.

What the chain of ``mention_chain`` expects of the text ahead depends on the last
mention of a walk alone. An entity stays a candidate parent for some tokens after its
mention, and a walk that introduces it early pays for what it saves much later. So a
search adds to what is expected, for every entity e of a walk that stays until u,

.. math::
    \sum_{t'=t}^{u} \log p_{t'}(x \mid e) - \log p_{t'}(x \mid e \text{ perhaps})

with the probabilities of ``parents_worth``, given that e is a parent at t', and that it
is one only if it has been mentioned since t. Parents, and tokens at which they are
used, are taken to be independent; that is a guess, and weights correct it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from lm_latent_eval.inference.ragged import distinct_pairs
from lm_latent_eval.models.kglm.graph import NO_ENTITY


@dataclass(frozen=True)
class Gains:
    """What R walks gain as their entities are parents of the text after a token.

    On the host.
    """

    total: Tensor
    """By the entities that they remember, nats, (R,)."""
    most: Tensor
    """The most that one mention may add, nats, (R,)."""
    key: Tensor
    """row * N + node of the remembered entities, increasing, (M,)."""
    gain: Tensor
    """Of each, nats, (M,)."""
    text: Tensor
    """Of each walk, (R,)."""
    table: ParentGains | None
    """Of mentions at ``t``; None: they gain nothing."""
    t: int

    @classmethod
    def nothing(cls, rows: int) -> Gains:
        """Return those of walks of which nothing is known."""
        zero, none = torch.zeros(rows), torch.zeros(0, dtype=torch.long)
        return cls(zero, zero, none, zero[:0], none, None, 0)

    def mentioned(self, row: Tensor, node: Tensor) -> Tensor:
        """Return what mentions of nodes by some walks add, elementwise, (n,) nats.

        An entity that is remembered already stays for longer.
        """
        if self.table is None:
            return self.total.new_zeros(len(row))
        gain = self.table.mentioned(self.t, self.text[row], node)
        if not len(self.key):
            return gain
        wanted = row * self.table.num_nodes + node
        place = torch.searchsorted(self.key, wanted).clamp_max(len(self.key) - 1)
        return gain - torch.where(self.key[place] == wanted, self.gain[place], 0.0)


@dataclass(frozen=True)
class ParentGains:
    """What entities are worth as parents of the text ahead, in B texts, on the host."""

    log_absent: Tensor
    """Log p that no mention of a state begins before a token, (B, T + 1, S)."""
    without: Tensor
    """The text's probability if a state is no parent at t, relative, (B, T, S)."""
    present: Tensor
    """And if it is one, (B, T, S)."""
    key: Tensor
    """b N + node of the states, increasing, (B S,)."""
    state: Tensor
    """The state of each, (B S,)."""
    cutoff: int
    """W, how many tokens an entity stays a candidate."""
    num_nodes: int
    """N."""
    _tables: dict[int, Tensor] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        log_absent: Tensor,
        without: Tensor,
        present: Tensor,
        nodes: Tensor,
        cutoff: int,
        num_nodes: int,
    ) -> ParentGains:
        """Build them for the nodes of S states, (B, S), 0 of those that are no node."""
        text = torch.arange(len(nodes))[:, None]
        key, order = (text * num_nodes + nodes).flatten().sort(stable=True)
        state = order % nodes.shape[1]
        return cls(log_absent, without, present, key, state, cutoff, num_nodes)

    def at(self, t: int) -> Tensor:
        """Return what a state is worth from t on that stays n tokens, (B, S, W + 1)."""
        if t not in self._tables:
            end = min(t + self.cutoff, self.without.shape[1])
            since = self.log_absent[:, t:end] - self.log_absent[:, t, None]
            without, present = self.without[:, t:end], self.present[:, t:end]
            perhaps = without + (present - without) * -torch.expm1(since)
            gain = present.log() - perhaps.log()
            padding = 0, 0, 1, self.cutoff - gain.shape[1]
            self._tables.clear()
            self._tables[t] = F.pad(gain, padding).cumsum(1).mT
        return self._tables[t]

    def after(self, t: int, text: Tensor, window: Tensor) -> Gains:
        """Return what walks gain after token t.

        Args:
            t: A token.
            text: Of R walks, (R,).
            window: The nodes of the W tokens before t, (R, W).
        """
        row, place = (window != NO_ENTITY).nonzero(as_tuple=True)
        row, node, which = distinct_pairs(row, window[row, place], self.num_nodes)
        last = torch.zeros_like(row).scatter_reduce(0, which, place, "amax")
        table = self.at(t + 1)
        gain = table[text[row], self._states(text[row], node), last]
        nothing = gain.new_zeros(len(text))
        total = nothing.index_add(0, row, gain)
        least = nothing.scatter_reduce(0, row, gain, "amin")
        most = table[..., -1].amax(1).clamp_min(0.0)[text] - least
        key = row * self.num_nodes + node
        return Gains(total, most, key, gain, text, self, t)

    def mentioned(self, t: int, text: Tensor, node: Tensor) -> Tensor:
        """Return what a mention of nodes at t is worth, elementwise, (n,) nats."""
        return self.at(t + 1)[text, self._states(text, node), self.cutoff]

    def _states(self, text: Tensor, node: Tensor) -> Tensor:
        """Return the states of nodes; the first, which gains nothing, of others."""
        wanted = text * self.num_nodes + node
        place = torch.searchsorted(self.key, wanted).clamp_max(len(self.key) - 1)
        return torch.where(self.key[place] == wanted, self.state[place], 0)
