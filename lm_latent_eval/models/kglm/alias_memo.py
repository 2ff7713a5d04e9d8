"""Cache of encoded names of nodes."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lm_latent_eval.devices import sent
from lm_latent_eval.models.kglm.graph import KnowledgeGraph
from lm_latent_eval.models.kglm.words import Words


class AliasMemo:
    """Encodes the aliases of each node once, as long as they fit into memory."""

    LIMIT = 1 << 30  # bytes

    def __init__(self, graph: KnowledgeGraph, words: Words) -> None:
        self.graph, self.words = graph, words
        self.version = self._version()
        n, num_aliases, length = graph.aliases.shape
        weight = words.copy.weight
        shape = (n, len(weight), num_aliases * length)
        self.fits = math.prod(shape) * weight.element_size() <= self.LIMIT
        if self.fits:
            self.keys = weight.new_empty(shape)
            self.known = torch.zeros(n, dtype=torch.bool)

    @property
    def outdated(self) -> bool:
        """Whether a weight has changed since."""
        return self._version() != self.version

    def _version(self) -> int:
        weights = [*self.words.parameters(), self.words.tokens[0].weight]
        return sum(weight._version for weight in weights)

    def __call__(self, node: Tensor) -> tuple[Tensor, Tensor]:
        """Return encoded and plain alias words, (n, dim, slots) and (n, slots).

        Nodes and plain words are on the host.
        """
        words = self.graph.alias_words(node)
        if not self.fits:
            return self.words.encode_aliases(words), words.flatten(1)
        new = node[~self.known[node]]
        if len(new):
            encoded = self.words.encode_aliases(self.graph.alias_words(new))
            self.keys[sent(new, encoded.device)] = encoded
            self.known[new] = True
        return self.keys[sent(node, self.keys.device)], words.flatten(1)
