r"""Which nodes the text at hand seems to name.

.. math:: b_t(n) = \max_{a \in \mathrm{aliases}(n),\ a_1 = x_t}
    \bigl( w_1 + [a \text{ stands at } t] \, (w_2 + w_3 (|a| - 1)) \bigr)

and 0 for nodes without an alias that begins like that. The three weights are learned.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lm_latent_eval.models.kglm.graph import KnowledgeGraph
from lm_latent_eval.models.kglm.ragged import expand_ranges


class AliasMatching(nn.Module):
    """b_t(n): what speaks for a mention of node n that begins at token t."""

    def __init__(self) -> None:
        """Start from weights that favour whole names, the longer the more."""
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, 2.0, 0.5]))

    def forward(self, targets: Tensor, length: Tensor, graph: KnowledgeGraph) -> Tensor:
        """Match every position with the aliases that begin with its word.

        Args:
            targets: Extended word ids, (B, T).
            length: Words of each text, (B,).
            graph: The nodes and their aliases.

        Returns:
            b, (B * T, N) nats, at least 0.
        """
        batch, num_tokens = targets.shape
        words, owner = graph.aliases_by_first_word
        inside = torch.arange(num_tokens, device=targets.device) < length[:, None]
        text = targets.masked_fill(~inside, -1)
        first = words[:, 0].contiguous()
        alias, position = expand_ranges(
            torch.searchsorted(first, text.flatten()),
            torch.searchsorted(first, text.flatten(), right=True),
        )
        beyond = text.new_full((batch, words.shape[1]), -1)
        ahead = torch.cat([text, beyond], 1).unfold(1, words.shape[1], 1)
        ahead = ahead[:, :num_tokens].flatten(0, 1)[position]
        used = words[alias] != 0
        stands = ((words[alias] == ahead) | ~used).all(-1).to(self.weight.dtype)
        size = used.sum(-1).to(self.weight.dtype)
        start, whole, longer = self.weight
        score = start + stands * (whole + longer * (size - 1))
        nothing = score.new_zeros(targets.numel() * graph.num_nodes)
        best = nothing.scatter_reduce(
            0, position * graph.num_nodes + owner[alias], score, "amax"
        )
        tilt: Tensor = best.view(targets.numel(), graph.num_nodes)
        return tilt
