"""The networks of relation models: Transformer-XL, words, facts and names."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import chain, pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lm_latent_eval.devices import sent
from lm_latent_eval.inference.ragged import AT_ONCE, expand_ranges, segment_logsumexp
from lm_latent_eval.models.lrlm.configuration import LRLMConfig, RelationConfig
from lm_latent_eval.models.lrlm.topics import Topics
from lm_latent_eval.text.batch import excluding, known_ids

States = tuple[Tensor, ...]
"""Input of every layer, and output of the last one, (words, H) each."""


@dataclass(frozen=True)
class TextMemory:
    """Memory and current chunk of one text."""

    memory: States
    """Of earlier chunks."""
    chunk: States
    """Of this one."""


@dataclass(frozen=True)
class TextMemories:
    """Memories and current chunks of B texts."""

    texts: tuple[TextMemory, ...]

    def select(self, index: Tensor) -> TextMemories:
        return TextMemories(tuple(self.texts[i] for i in index.tolist()))

    def resample(self, index: Tensor) -> TextMemories:
        """Return itself: all latents of a text share what was read."""
        return self


class Layer(nn.Module):
    """Attention and a feed-forward part, each with a residual and a norm."""

    def __init__(self, config: LRLMConfig) -> None:
        super().__init__()
        self.heads, self.pre_norm = config.num_heads, config.pre_norm
        size, inner = config.hidden_size, config.num_heads * config.head_dim
        self.attending = nn.Linear(size, 3 * inner, bias=False)
        self.relative = nn.Linear(size, inner, bias=False)
        self.attended = nn.Linear(inner, size, bias=False)
        self.attention_norm = nn.LayerNorm(size)
        self.inner = nn.Linear(size, config.inner_dim)
        self.outer = nn.Linear(config.inner_dim, size)
        self.feed_norm = nn.LayerNorm(size)

    def forward(
        self, value: Tensor, before: Tensor, distances: Tensor, biases: Tensor
    ) -> Tensor:
        """Read words that follow others.

        Args:
            value: The words, (n, H).
            before: Those before them, (m, H).
            distances: Encodings of the distances 0 .. m + n - 1, (m + n, H).
            biases: b_w and b_r, (2, heads, D).
        """
        every = torch.cat([before, value])
        normed = self.attention_norm(every) if self.pre_norm else every
        query, key, content = (
            part.unflatten(-1, (self.heads, -1))
            for part in self.attending(normed).chunk(3, -1)
        )
        query = query[len(before) :]
        far = self.relative(distances).unflatten(-1, (self.heads, -1))
        place = torch.arange(len(every), device=value.device)
        distance = place[len(before) :, None] - place
        by_word = torch.einsum("ihd,jhd->hij", query + biases[0], key)
        by_distance = torch.einsum("ihd,thd->hit", query + biases[1], far)
        reached = distance.clamp_min(0).expand(self.heads, -1, -1)
        scores = (by_word + by_distance.gather(-1, reached)) / key.shape[-1] ** 0.5
        weight = scores.masked_fill(distance < 0, -torch.inf).softmax(-1)
        seen = torch.einsum("hij,jhd->ihd", weight, content).flatten(1)
        output: Tensor = value + self.attended(seen)
        if self.pre_norm:
            return output + self._feed(self.feed_norm(output))
        output = self.attention_norm(output)
        return self.feed_norm(output + self._feed(output))  # type: ignore[no-any-return]

    def _feed(self, value: Tensor) -> Tensor:
        return self.outer(self.inner(value).relu())  # type: ignore[no-any-return]


class TransformerXL(nn.Module):
    r"""Layers over chunks with a memory, called as ``RecurrentStack`` is.

    It can be stopped and resumed at any position. Texts are read in chunks. A word sees
    the words of its chunk up to itself, and in every layer what that layer was given at
    the last ``memory_size`` words before the chunk. Symbols: distances t = i - j
    between words have keys R_t of their own,

    .. math:: s_{ij} = \frac{(q_i + b_w)^\top k_j + (q_i + b_r)^\top R_{i-j}}{\sqrt D}

    The state holds the chunk as far as it was read, so where a text is cut does not
    matter. Texts differ in what they have read, and are read one by one.

    Departures: none where ``memory_rule`` is ``published``, by which the memory of
    upper layers is stale as soon as a chunk and a memory are twice as long as the
    memory, as the published models were trained and evaluated; ``clean`` remembers the
    last words.

    Source: Dai et al. (2019); the code of Hayashi et al. (2020).
    """

    frequencies: Tensor
    """Of the sinusoids that encode distances, (H / 2,)."""

    def __init__(self, config: LRLMConfig) -> None:
        super().__init__()
        self.config, size = config, config.hidden_size
        if config.embedding_dim != size:
            self.project = nn.Linear(config.embedding_dim, size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_layers))
        self.biases = nn.Parameter(torch.zeros(2, config.num_heads, config.head_dim))
        steps = torch.arange(0, size, 2) / size
        self.register_buffer("frequencies", 10000.0**-steps)

    def forward(
        self, value: Tensor, length: Tensor, carry: TextMemories | None = None
    ) -> tuple[Tensor, TextMemories]:
        """Run over padded texts.

        Args:
            value: (B, T, embedding_dim).
            length: Real places of each text, (B,).
            carry: Where each text stands; None is the beginning.

        Returns:
            The top layer's outputs (B, T, H), and where each text now stands.
        """
        size = self.config.hidden_size
        if self.config.embedding_dim != size:
            value = self.project(value)
        if carry is None:
            nothing = (value.new_zeros(0, size),) * (len(self.layers) + 1)
            carry = TextMemories((TextMemory(nothing, nothing),) * len(value))
        outputs = value.new_zeros(*value.shape[:2], size)
        texts = []
        for b, number in enumerate(length.tolist()):
            output, past = self._read(value[b, :number], carry.texts[b])
            outputs[b, :number] = output
            texts.append(past)
        return outputs, TextMemories(tuple(texts))

    def _read(self, value: Tensor, past: TextMemory) -> tuple[Tensor, TextMemory]:
        """Read words of one text, (n, H), chunk by chunk."""
        outputs = [value[:0]]
        while len(value):
            room = self.config.chunk_size - len(past.chunk[0])
            states = self._states(value[:room], past)
            outputs.append(states[-1])
            chunk = tuple(
                torch.cat(pair) for pair in zip(past.chunk, states, strict=True)
            )
            past = replace(past, chunk=chunk)
            if len(value) >= room:
                nothing = tuple(state[:0] for state in chunk)
                past = TextMemory(self._remembered(past), nothing)
            value = value[room:]
        return torch.cat(outputs), past

    def _states(self, value: Tensor, past: TextMemory) -> States:
        """Return the input of every layer at some words of a chunk, and the output."""
        reach = len(past.memory[0]) + len(past.chunk[0]) + len(value)
        step = torch.arange(reach, device=value.device, dtype=value.dtype)
        angle = step[:, None] * self.frequencies.to(value.dtype)
        distances = torch.cat([angle.sin(), angle.cos()], -1)
        states = [value]
        for layer, memory, chunk in zip(
            self.layers, past.memory, past.chunk, strict=False
        ):
            before = torch.cat([memory, chunk])
            states.append(layer(states[-1], before, distances, self.biases))
        return tuple(states)

    def _remembered(self, past: TextMemory) -> States:
        """Return the memory after a chunk has been read to its end."""
        size, earlier = self.config.memory_size, len(past.memory[0])
        end = earlier + len(past.chunk[0])
        start = max(0, end - size)
        remembered = []
        for memory, chunk in zip(past.memory, past.chunk, strict=True):
            if self.config.memory_rule == "published" and start >= size:
                # As it was written: what is taken off stays off for the other layers.
                start, end = start - size, end - size
                remembered.append(chunk[start:end])
            else:
                remembered.append(torch.cat([memory, chunk])[start:end])
        return tuple(remembered)


# -- words --------------------------------------------------------------------------

ACTIVATIONS = {
    "none": nn.Identity,
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
}


class Words(nn.Module):
    """Embeds words, and predicts them from vectors of a size.

    By one softmax or an adaptive one, which keeps frequent words in its head, with one
    entry for each cluster of rarer ones, whose own softmax divides what the head gave
    the cluster. The original's head lists its clusters the last one first.

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
        """Embed words; those that can only be copied are unknown."""
        embedded: Tensor = self.embedding(self.known(words))
        if self.config.cutoffs:
            return embedded * math.sqrt(self.config.embedding_dim)
        return embedded

    def known(self, words: Tensor) -> Tensor:
        """Map words that can only be copied to the unknown one."""
        return known_ids(words, self.config.vocab_size)

    @property
    def output(self) -> Tensor:
        """The output layer's weight, (V, predictor_dim)."""
        if self.config.tie_weights:
            return self.embedding.weight
        return self.weight

    def log_prob(self, value: Tensor, words: Tensor) -> Tensor:
        """Return log p of one word each: (N, inner), (N,) -> (N,) nats."""
        log_p = self.log_probs(value)
        return log_p.gather(-1, self.known(words)[:, None])[:, 0]

    def log_probs(self, value: Tensor) -> Tensor:
        """Return log p of every word: (N, inner) -> (N, V) nats."""
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
    r"""Vectors of facts and aliases, whose numbers are on the host.

    A fact's vector is its relation's and its object's, side by side. Originals look
    objects and aliases up in tables of constants. New models encode names by their
    letters, so that what was never seen in training has a vector as well:

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


def log_choice(
    query: Tensor,
    row: Tensor,
    group: Tensor,
    chosen: Tensor,
    members: Callable[[Tensor], tuple[Tensor, Tensor]],
    vectors: Callable[[Tensor], Tensor],
) -> Tensor:
    """Return log p(member | its group, a query), each (query, group) normalised once.

    Which queries need which groups is found on the host.

    Args:
        query: Vectors that members' are compared with, (P, D).
        row: Which of them asks, (N,).
        group: The group that is asked, (N,).
        chosen: The member that is chosen, (N,).
        members: Groups -> where their members start and end.
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
    place = first[which] + chosen - start[which]
    place, which = (sent(x, scores.device) for x in (place, which))
    return scores[place] - log_z[which]


def products(query: Tensor, table: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """Return the inner products of rows (non-decreasing) and columns, elementwise."""
    asking, row = row.unique_consecutive(return_inverse=True)
    parts, at_once = [], max(1, AT_ONCE // len(table))
    sizes = (row // at_once).bincount().tolist()
    for some, rows, columns in zip(
        asking.split(at_once), row.split(sizes), column.split(sizes), strict=True
    ):
        index = (some, rows % at_once, columns)
        some, rows, columns = (sent(x, query.device) for x in index)
        parts.append((query[some] @ table.t())[rows, columns])
    return torch.cat(parts)
