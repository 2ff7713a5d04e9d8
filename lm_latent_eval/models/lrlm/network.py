"""The networks of relation models: words, facts and names."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from itertools import chain, pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lm_latent_eval.devices import sent
from lm_latent_eval.inference.ragged import AT_ONCE, expand_ranges, segment_logsumexp
from lm_latent_eval.models.lrlm.configuration import RelationConfig
from lm_latent_eval.models.lrlm.topics import Topics
from lm_latent_eval.text.batch import excluding, known_ids

ACTIVATIONS = {
    "none": nn.Identity,
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
}


class Words(nn.Module):
    """Embeddings of words, and a softmax or adaptive softmax over them.

    The head of an adaptive softmax holds frequent words and one entry for each cluster
    of rarer ones, whose own softmax divides the entry's probability. The original's
    head lists its clusters the last one first.

    Source: Grave et al. (2017), as in the code of Transformer-XL.
    """

    def __init__(self, config: RelationConfig, inner: int) -> None:
        """Build the layers; ``inner`` is the size of what words are predicted from."""
        super().__init__()
        self.config = config
        size, dim = config.vocab_size, config.predictor_dim
        self.embedding = nn.Embedding(size, config.embedding_dim)
        self.bias = nn.Parameter(torch.zeros(size))
        if not config.tie_weights:
            self.weight = nn.Parameter(torch.zeros(size, dim))
        elif dim != config.embedding_dim:
            raise ValueError(
                f"tie_weights needs predictor_dim={dim} to be embedding_dim="
                f"{config.embedding_dim}"
            )
        if not config.cutoffs:
            self.inner = nn.Linear(inner, dim)
            self.activation = ACTIVATIONS[config.activation]()
            return
        clusters = len(config.cutoffs)
        self.cluster_weight = nn.Parameter(torch.zeros(clusters, dim))
        self.cluster_bias = nn.Parameter(torch.zeros(clusters))
        same = inner == dim
        self.projections = nn.ParameterList(
            torch.zeros(inner, dim) for _ in range(0 if same else clusters + 1)
        )

    def embed(self, words: Tensor) -> Tensor:
        """Embed words; words that can only be copied are unknown."""
        embedded: Tensor = self.embedding(self.known(words))
        if self.config.cutoffs:
            return embedded * math.sqrt(self.config.embedding_dim)
        return embedded

    def known(self, words: Tensor) -> Tensor:
        return known_ids(words, self.config.vocab_size)

    @property
    def output(self) -> Tensor:
        if self.config.tie_weights:
            return self.embedding.weight
        return self.weight

    def log_prob(self, value: Tensor, words: Tensor) -> Tensor:
        """Log p of one word each: (N, inner), (N,) -> (N,) nats."""
        log_p = self.log_probs(value)
        return log_p.gather(-1, self.known(words)[:, None])[:, 0]

    def log_probs(self, value: Tensor) -> Tensor:
        """Log p of every word: (N, inner) -> (N, V) nats."""
        if self.config.cutoffs:
            return self._adaptive(value)
        scores = F.linear(self.activation(self.inner(value)), self.output, self.bias)
        return excluding(scores, self.config.never_uttered).log_softmax(-1)

    def _adaptive(self, value: Tensor) -> Tensor:
        first, *_ = borders = [*self.config.cutoffs, self.config.vocab_size]
        weight = torch.cat([self.output[:first], self.cluster_weight])
        bias = torch.cat([self.bias[:first], self.cluster_bias])
        scores = F.linear(self._projected(value, 0), weight, bias)
        head = excluding(scores, self.config.never_uttered).log_softmax(-1)
        parts = [head[:, :first]]
        for j, (start, end) in enumerate(pairwise(borders)):
            tail = F.linear(
                self._projected(value, j + 1),
                self.output[start:end],
                self.bias[start:end],
            )
            parts.append(head[:, [-1 - j]] + tail.log_softmax(-1))
        return torch.cat(parts, -1)

    def _projected(self, value: Tensor, cluster: int) -> Tensor:
        if not len(self.projections):
            return value
        projected: Tensor = value @ self.projections[cluster]
        return projected


# -- facts and names ----------------------------------------------------------------

GRAMS = (3, 4, 5)
"""Lengths of letter n-grams; whole words are added to them."""


def pieces(alias: str, num_pieces: int) -> list[int]:
    """Hash the letter n-grams of an alias's words to 0 .. num_pieces - 1.

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
    return [zlib.crc32(gram.encode()) % num_pieces for gram in chain(words, grams)]


class Facts(nn.Module):
    r"""Vectors of facts and aliases, whose indices are on the host.

    A fact's vector concatenates its relation's and its object's. Originals look objects
    and aliases up in tables of constants. New models encode names by their letters, so
    that names unseen in training have vectors too:

    .. math::
        a = \frac{1}{n} \sum_{i=1}^{n} e(g_i), \qquad
        o = \frac{1}{m} \sum_{j=1}^{m} a_j

    over the letter n-grams g of an alias, hashed into a table, and over the aliases of
    an object.

    Source: Bojanowski et al. (2017) for the n-grams, whose pre-trained vectors the
    original LRLM sums.
    """

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
        """Alias vectors, (n,) -> (n, alias_dim)."""
        if not self.config.num_pieces:
            return self.alias(self._sent(alias))  # type: ignore[no-any-return]
        piece, row = expand_ranges(*topics.pieces_of(alias))
        vectors = self.piece(self._sent(topics.alias_pieces[piece]))
        return _mean(vectors, row, len(alias))

    def vectors(self, topics: Topics, fact: Tensor) -> Tensor:
        """Fact vectors, (n,) -> (n, 2 * fact_dim)."""
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
    """Mean of each row's values; 0 of none."""
    count = row.bincount(minlength=num_rows).clamp_min(1)[:, None]
    row, count = (sent(x, value.device) for x in (row, count))
    return value.new_zeros(num_rows, value.shape[-1]).index_add(0, row, value) / count


def log_choice(
    query: Tensor,
    row: Tensor,
    group: Tensor,
    chosen: Tensor,
    members: Callable[[Tensor], tuple[Tensor, Tensor]],
    vectors: Callable[[Tensor], Tensor],
) -> Tensor:
    """Log p(member | its group, a query), each (query, group) normalised once.

    Args:
        query: Vectors that members' are compared with, (P, D).
        row: Index of each query, (N,).
        group: Group of each choice, (N,).
        chosen: Chosen member, (N,).
        members: Groups -> start and end of their members.
        vectors: Members (U,) -> (U, D).

    Returns:
        Nats, (N,).
    """
    if not len(row):
        return query.new_zeros(0)
    many = int(group.max()) + 1
    pair, which = (row * many + group).unique(return_inverse=True)
    start, end = members(pair % many)
    member, of_pair = expand_ranges(start, end)
    distinct, column = member.unique(return_inverse=True)
    scores = products(query, vectors(distinct), (pair // many)[of_pair], column)
    log_z = segment_logsumexp(scores, of_pair, len(pair))
    first = (end - start).cumsum(0) - (end - start)
    index = first[which] + chosen - start[which]
    index, which = (sent(x, scores.device) for x in (index, which))
    return scores[index] - log_z[which]


def products(query: Tensor, table: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """Inner products of rows (non-decreasing) and columns, elementwise."""
    distinct, row = row.unique_consecutive(return_inverse=True)
    parts, at_once = [], max(1, AT_ONCE // len(table))
    sizes = (row // at_once).bincount().tolist()
    for part, rows, columns in zip(
        distinct.split(at_once), row.split(sizes), column.split(sizes), strict=True
    ):
        indices = (part, rows % at_once, columns)
        part, rows, columns = (sent(x, query.device) for x in indices)
        parts.append((query[part] @ table.t())[rows, columns])
    return torch.cat(parts)
