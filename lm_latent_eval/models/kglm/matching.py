r"""String matching of node names against the text.

.. math:: b_t(n) = \max_{a \in \mathrm{aliases}(n),\ a_1 = x_t}
    \bigl( w_1 + [a \text{ stands at } t] \, (w_2 + w_3 (|a| - 1)) \bigr)

and 0 for nodes without an alias that begins like that. The three weights are learned
from annotation, and may then be fitted to what p says of texts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from lm_latent_eval.devices import sent
from lm_latent_eval.inference.ragged import expand_ranges
from lm_latent_eval.models.kglm.graph import NO_ENTITY, KnowledgeGraph


@dataclass(frozen=True)
class Twist:
    """b_t(node) at P positions: of the nodes that are listed, and of all others.

    Which are listed is known on the host, where positions and nodes are.
    """

    key: Tensor
    """position * N + node, increasing, and P * N at the end, on the host, (M + 1,)."""
    value: Tensor
    """Nats, and 0 at the end, (M + 1,)."""
    others: Tensor
    """Nats, of the nodes that a position does not list, (P,)."""
    num_nodes: int
    """N."""
    continues: bool
    """Whether the mass of a CONTINUE is twisted as well, or kept."""
    none: Twist | None = None
    """Of no mention, after a last mention of a node; None is 0 after every node."""

    @classmethod
    def largest(
        cls,
        position: Tensor,
        node: Tensor,
        score: Tensor,
        *,
        num_positions: int,
        num_nodes: int,
    ) -> Twist:
        """Take the largest score of each (position, node), and 0 if all are lower."""
        end = position.new_tensor([num_positions * num_nodes])
        key, which = torch.unique(
            torch.cat([position * num_nodes + node, end]), return_inverse=True
        )
        score, which = torch.cat([score, score.new_zeros(1)]), sent(which, score.device)
        value = score.new_zeros(len(key)).scatter_reduce(0, which, score, "amax")
        others = score.new_zeros(num_positions)
        return cls(key, value, others, num_nodes, continues=False)

    def select(self, position: Tensor) -> Twist:
        row, node, value = self.entries(position)
        end = row.new_tensor([len(position) * self.num_nodes])
        return replace(
            self,
            key=torch.cat([row * self.num_nodes + node, end]),
            value=torch.cat([value, value.new_zeros(1)]),
            others=self.others[sent(position, self.others.device)],
            none=None if self.none is None else self.none.select(position),
        )

    def scaled(self, factor: Tensor | float) -> Twist:
        return replace(
            self,
            value=self.value * factor,
            others=self.others * factor,
            none=None if self.none is None else self.none.scaled(factor),
        )

    def of_none(self, position: Tensor, window: Tensor) -> Tensor:
        """Return b of no mention after which a window (..., W) is left, elementwise.

        It is 0 where the window has no node, and else what the last one makes of it.
        """
        if self.none is None:
            return self.others.new_zeros(position.shape)
        place = torch.arange(window.shape[-1])
        place = (place * (window != NO_ENTITY)).argmax(-1, keepdim=True)
        last = window.gather(-1, place).squeeze(-1)
        nothing = sent(last == NO_ENTITY, self.others.device)
        return self.none.at(position, last).masked_fill(nothing, 0.0)

    def of_continuing(self, position: Tensor, node: Tensor) -> Tensor:
        """Return the twist of going on with a mention, elementwise."""
        if self.continues:
            return self.at(position, node)
        return self.others.new_zeros(len(position))

    def at(self, position: Tensor, node: Tensor) -> Tensor:
        """Return b of positions and nodes, elementwise."""
        key = position * self.num_nodes + node
        place = torch.searchsorted(self.key, key)
        listed = self.key[place] == key
        index = torch.where(listed, place, len(self.key) + position)
        return self._both[sent(index, self.value.device)]

    @cached_property
    def _both(self) -> Tensor:
        return torch.cat([self.value, self.others])

    def entries(self, position: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """List the listed nodes of some positions: index into them, node and value."""
        low = position * self.num_nodes
        entry, row = expand_ranges(
            torch.searchsorted(self.key, low),
            torch.searchsorted(self.key, low + self.num_nodes),
        )
        value = self.value[sent(entry, self.value.device)]
        return row, self.key[entry] % self.num_nodes, value


class AliasMatching(nn.Module):
    """b_t(n): what speaks for a mention of node n that begins at token t."""

    def __init__(self) -> None:
        """Start from weights that favour whole names, the longer the more."""
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, 2.0, 0.5]))

    def forward(self, targets: Tensor, length: Tensor, graph: KnowledgeGraph) -> Twist:
        """Match every position with the aliases that begin with its word.

        Args:
            targets: Extended word ids, on the host, (B, T).
            length: Words of each text, on the host, (B,).
            graph: The nodes and their aliases.

        Returns:
            b at the B * T positions, at least 0.
        """
        batch, num_tokens = targets.shape
        inside = torch.arange(num_tokens) < length[:, None]
        text = targets.masked_fill(~inside, -1)
        words, node, position = graph.aliases_that_begin(text.flatten())
        beyond = text.new_full((batch, words.shape[1]), -1)
        ahead = torch.cat([text, beyond], 1).unfold(1, words.shape[1], 1)
        ahead = ahead[:, :num_tokens].flatten(0, 1)[position]
        used = words != 0
        there = self.weight.device
        stands = sent(((words == ahead) | ~used).all(-1), there).to(self.weight.dtype)
        size = sent(used.sum(-1), there).to(self.weight.dtype)
        start, whole, longer = self.weight
        return Twist.largest(
            position,
            node,
            start + stands * (whole + longer * (size - 1)),
            num_positions=targets.numel(),
            num_nodes=graph.num_nodes,
        )
