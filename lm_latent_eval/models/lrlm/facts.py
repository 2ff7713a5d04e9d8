r"""Embeddings of facts and names.

A fact's vector is its relation's and its object's, side by side. Originals look objects
and aliases up in tables of constants. New models encode names by their letters, so that
what was never seen in training has a vector as well:

.. math::
    a = \frac{1}{n} \sum_{i=1}^{n} e(g_i), \qquad
    o = \frac{1}{m} \sum_{j=1}^{m} a_j

over the letter n-grams g of an alias, hashed into a table, and over the aliases of an
object.

Source: Bojanowski et al. (2017) for the n-grams, whose pre-trained vectors the original
LRLM sums.
"""

from __future__ import annotations

import zlib
from itertools import chain

import torch
from torch import Tensor, nn

from lm_latent_eval.devices import sent
from lm_latent_eval.inference.ragged import expand_ranges
from lm_latent_eval.models.lrlm.configuration import RelationConfig
from lm_latent_eval.models.lrlm.topics import Topics

GRAMS = (3, 4, 5)
"""Letters of a piece; a whole word is one as well."""


def pieces(alias: str, number: int) -> list[int]:
    """Return the letter n-grams of an alias's words, hashed to 0 .. number - 1.

    Example:
        >>> pieces("Ada", 1000) == pieces("Ada", 1000)
        True
        >>> len(pieces("Ada", 1000))  # <Ad Ada da> <Ada Ada> <Ada>, and the last again
        7
    """
    words = [f"<{word}>" for word in alias.split()]
    grams = (
        word[i : i + n]
        for word in words
        for n in GRAMS
        for i in range(len(word) - n + 1)
    )
    return [zlib.crc32(gram.encode()) % number for gram in chain(words, grams)]


class Facts(nn.Module):
    """Vectors of facts and aliases, whose numbers are on the host."""

    def __init__(self, config: RelationConfig) -> None:
        super().__init__()
        self.config = config
        self.relation = nn.Embedding(config.num_relations, config.fact_dim)
        if config.num_objects:
            self.object = nn.Embedding(config.num_objects, config.fact_dim)
        if config.num_pieces:
            self.piece = nn.Embedding(config.num_pieces, config.alias_dim)
        else:
            self.alias = nn.Embedding(config.num_aliases, config.alias_dim)

    def aliases(self, topics: Topics, alias: Tensor) -> Tensor:
        """Return alias vectors, (n,) -> (n, alias_dim)."""
        if not self.config.num_pieces:
            return self.alias(self._sent(alias))  # type: ignore[no-any-return]
        piece, row = expand_ranges(*topics.pieces_of(alias))
        vectors = self.piece(self._sent(topics.alias_pieces[piece]))
        return _mean(vectors, row, len(alias))

    def vectors(self, topics: Topics, fact: Tensor) -> Tensor:
        """Return fact vectors, (n,) -> (n, 2 * fact_dim)."""
        relation = self.relation(self._sent(topics.fact_relation[fact]))
        return torch.cat([relation, self._objects(topics, fact)], -1)

    def _objects(self, topics: Topics, fact: Tensor) -> Tensor:
        if self.config.num_objects:
            objects = self._sent(topics.fact_object[fact])
            return self.object(objects)  # type: ignore[no-any-return]
        naming, row = expand_ranges(*topics.namings_of(fact))
        alias, which = topics.naming_alias[naming].unique(return_inverse=True)
        vectors = self.aliases(topics, alias)[self._sent(which)]
        return _mean(vectors, row, len(fact))

    def _sent(self, index: Tensor) -> Tensor:
        return sent(index, self.relation.weight.device)


def _mean(value: Tensor, row: Tensor, num_rows: int) -> Tensor:
    """Return the mean of each row's values; 0 of none."""
    count = row.bincount(minlength=num_rows).clamp_min(1)[:, None]
    row, count = (sent(x, value.device) for x in (row, count))
    return value.new_zeros(num_rows, value.shape[-1]).index_add(0, row, value) / count
