r"""The networks of p and q: LSTM states, scores of decisions, and words.

.. math::
    p(x_t = y \mid h, n) = \frac{e^{g_y(h, n)} + \sum_{j : a_{nj} = y} e^{c_j(h, n)}}
        {\sum_{v} e^{g_v(h, n)} + \sum_j e^{c_j(h, n)}}

over V words to generate and the words a_{n1}, a_{n2}, ... of the node's aliases to
copy. The generation scores are a sum of a term of the position and a term of the
entity, g_v(h, n) = P_v(h) + Q_v(n), so the sums over the vocabulary for all positions
and entities of a text are *one* product of two matrices of exponentials.

A word outside the vocabulary is the unknown word, at the price (``unknown_log_prob``)
that the caller puts on it. Where an alias of the node has it, it is copied instead, or,
if the price is that of its own spelling, as well.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lm_latent_eval.devices import sent, widened
from lm_latent_eval.inference.ragged import expand_ranges, segment_logsumexp
from lm_latent_eval.models.kglm.configuration import KGLMConfig
from lm_latent_eval.models.kglm.graph import KnowledgeGraph, words_ahead
from lm_latent_eval.models.kglm.latents import Mention
from lm_latent_eval.models.kglm.scores import EntityScores, StepScores, Twist
from lm_latent_eval.models.recurrent import Carry, RecurrentStack
from lm_latent_eval.text.batch import excluding, known_ids
from lm_latent_eval.text.words import UNKNOWN

HIDDEN_WORDS, HIDDEN_ENTITIES = 0.15, 0.5
"""Shares of words and of entity scores hidden from a smoothing proposal in training: it
must find entities by their names where words and entities are ones it never saw."""

NUMBERS = 1 << 22
"""Numbers (pairs x dim x slots, pairs x words) gathered at a time."""

SPARSE = 16
"""One scalar product alone takes as long as so many in a product of matrices."""


class Words(nn.Module):
    """The distribution of a token given its position's state and its node."""

    def __init__(self, config: KGLMConfig, token_embeddings: nn.Embedding) -> None:
        """Build the layers; the output layer may share the token embeddings."""
        super().__init__()
        dim = config.token_embedding_dim
        self.config = config
        self.tokens = [token_embeddings]  # in a list: owned, and saved, elsewhere
        self.condense = nn.Linear(dim + config.entity_embedding_dim, dim)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        if not config.tie_weights:
            self.weight = nn.Parameter(torch.empty(config.vocab_size, dim))
        self.alias_encoder = nn.LSTM(dim, dim, batch_first=True)
        self.copy = nn.Linear(dim, dim)

    @property
    def output_weight(self) -> Tensor:
        """(V, token_embedding_dim)."""
        return self.tokens[0].weight if self.config.tie_weights else self.weight

    def position_scores(self, hidden: Tensor) -> Tensor:
        """P_v(h): the position's part of the generation scores, (..., V)."""
        weight = self.condense.weight[:, : hidden.shape[-1]]
        condensed = F.linear(hidden, weight, self.condense.bias)
        scores = F.linear(condensed, self.output_weight, self.bias)
        return excluding(scores, self.config.never_uttered)

    def entity_scores(self, entity_embedding: Tensor) -> Tensor:
        """Q_v(n): the entity's part of the generation scores, (..., V)."""
        weight = self.condense.weight[:, -entity_embedding.shape[-1] :]
        # In the order that multiplies least: it depends on how many nodes there are.
        factors = [entity_embedding, weight.T, self.output_weight.T]
        scores: Tensor = torch.linalg.multi_dot(factors)
        return scores

    def encode_aliases(self, aliases: Tensor) -> Tensor:
        """Encode the words of each node's aliases for copying.

        Args:
            aliases: Extended word ids, 0 where there is none, on the host, (n, A, L).

        Returns:
            One vector a word, ready to be multiplied by h, (n, dim, A * L).
        """
        n, num_aliases, length = aliases.shape
        dim, slots = self.config.token_embedding_dim, num_aliases * length
        device = self.copy.weight.device
        forms = aliases.reshape(-1, length).long()
        # Places without a word, most of them, are all the same.
        blank = self.copy(self.copy.weight.new_zeros(1, dim)).tanh()
        keys: Tensor = blank.expand(n * slots, dim).clone()
        (some,) = (forms != 0).any(-1).nonzero(as_tuple=True)
        if len(some):
            longest = 1 + int((forms != 0).any(0).nonzero().max())
            words = forms[some, :longest]
            row, column = (words != 0).nonzero(as_tuple=True)
            words = known_ids(words, self.config.vocab_size)
            there = sent(
                torch.stack([row, column, some[row] * length + column]), device
            )
            states, _ = self.alias_encoder(self.tokens[0](sent(words, device)))
            encoded = self.copy(states[there[0], there[1]]).tanh()
            keys = keys.index_copy(0, there[2], encoded)
        keys = keys.view(n, slots, dim)
        if self.config.copy_scores == "reshaped":
            # What the original checkpoints were trained with: the same numbers read as
            # a (dim, slots) matrix, where a transpose was meant.
            return keys.reshape(n, dim, slots)
        return keys.transpose(1, 2)

    def log_paths(
        self,
        hidden: Tensor,
        target: Tensor,
        unknown_log_prob: Tensor,
        entity_embedding: Tensor,
        alias_keys: Tensor,
        aliases: Tensor,
        position: Tensor,
        node: Tensor,
        *,
        spelled: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Score U (token, node) pairs, each once whatever samples share it.

        Args:
            hidden: h of each position, (B, T, dim).
            target: Extended ids of the tokens, on the host, (B, T).
            unknown_log_prob: What an unknown word costs on top of p(unknown), (B, T),
                float64.
            entity_embedding: Embeddings of n nodes, (n, entity_dim).
            alias_keys: From ``encode_aliases``, (n, dim, slots).
            aliases: Extended word ids of the slots, on the host, (n, slots).
            position: The place of each pair in the flattened (B * T), non-decreasing,
                on the host, (U,).
            node: Which of the n nodes each pair has, on the host, (U,).
            spelled: Whether an unknown word that can be copied can be uttered as well,
                at the price of its spelling.

        Returns:
            Log-probabilities of generating and of copying the token in nats, (U,)
            float64 each; log p(x_t | h_t, node) is their ``log_add``.
        """
        position_scores = self.position_scores(hidden)
        entity_scores = self.entity_scores(entity_embedding)
        target = target.flatten()[position]
        copy, copied, same = self._log_copies(
            hidden, target, alias_keys, aliases, position, node
        )
        log_z = log_add(
            log_sum_product(position_scores, entity_scores, position, node), copy
        )
        unknown = (target >= self.config.vocab_size) | (target == UNKNOWN)
        word = target.masked_fill(unknown, UNKNOWN)
        known, copied_alone = ~unknown, unknown & same
        position, node, word, known, copied_alone = (
            sent(x, hidden.device) for x in (position, node, word, known, copied_alone)
        )
        flat_scores = position_scores.flatten(0, 1)
        generate = widened(flat_scores[position, word]) + entity_scores[node, word]
        cost = unknown_log_prob.flatten()[position]
        generate = generate + cost.masked_fill(known, 0.0)
        if not spelled:
            generate = generate.masked_fill(copied_alone, -torch.inf)
        return generate - log_z, copied - log_z

    @staticmethod
    def _log_copies(
        hidden: Tensor,
        target: Tensor,
        alias_keys: Tensor,
        aliases: Tensor,
        position: Tensor,
        node: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Sum the copies of every pair, over the slots that hold a word.

        Returns:
            Log of the sum of all, and of those of the target, and, on the host, whether
            there is one of the target, each (U,).
        """
        owner, slot = (aliases != 0).nonzero(as_tuple=True)
        count = torch.bincount(owner, minlength=len(aliases))
        end = count.cumsum(0)
        word, pair = expand_ranges((end - count)[node], end[node])
        index = (sent(x, hidden.device) for x in (owner, slot))
        keys = alias_keys.transpose(1, 2)[tuple(index)]
        score = products(hidden, keys, position[pair], word)
        wanted = target[pair]
        same = (aliases[owner, slot][word] == wanted) & (wanted != UNKNOWN)
        (same,) = same.nonzero(as_tuple=True)
        copy = segment_logsumexp(score, pair, len(node))
        of_target = score[sent(same, score.device)]
        copied = segment_logsumexp(of_target, pair[same], len(node))
        there = torch.zeros_like(node, dtype=torch.bool)
        return copy, copied, there.index_fill(0, pair[same], True)

    def next_word(
        self,
        hidden: Tensor,
        weight: Tensor,
        entity_embedding: Tensor,
        alias_keys: Tensor,
        aliases: Tensor,
    ) -> Tensor:
        """Mix the word distributions of n nodes at one position.

        Args:
            hidden: h, (dim,).
            weight: Probabilities of the nodes, (n,).
            entity_embedding: (n, entity_dim).
            alias_keys: (n, dim, slots).
            aliases: On the host, (n, slots).

        Returns:
            Probabilities of the extended words, (num_words,).
        """
        scores = self.position_scores(hidden) + self.entity_scores(entity_embedding)
        copy = torch.einsum("d,nds->ns", hidden, alias_keys)
        aliases = sent(aliases, copy.device)
        copy = copy.masked_fill(aliases == 0, -torch.inf)
        log_z = log_add(scores.logsumexp(-1), logsumexp(copy))
        log_weight = (weight.log() - log_z)[:, None]
        mixed = scores.new_zeros(self.config.num_words)
        mixed[: self.config.vocab_size] = (scores + log_weight).exp().sum(0)
        copied = (copy + log_weight).exp().flatten()
        return mixed.index_add(0, aliases.flatten().long(), copied)


class AliasMemo:
    """Encodes the aliases of each node once, as long as they fit into memory."""

    LIMIT = 1 << 30  # bytes

    def __init__(self, graph: KnowledgeGraph, words: Words) -> None:
        self.graph, self.words = graph, words
        self.weights = self._weights()
        n, num_aliases, length = graph.aliases.shape
        weight = words.copy.weight
        shape = (n, len(weight), num_aliases * length)
        self.fits = math.prod(shape) * weight.element_size() <= self.LIMIT
        if self.fits:
            self.keys = weight.new_empty(shape)
            self.known = torch.zeros(n, dtype=torch.bool)

    @property
    def outdated(self) -> bool:
        """Whether a weight has changed, or another has taken its place, since."""
        pairs = zip(self.weights, self._weights(), strict=True)
        return any(old is not new or n != m for (old, n), (new, m) in pairs)

    def _weights(self) -> list[tuple[Tensor, int]]:
        """The weights, and how often each has been changed in place."""
        weights = [*self.words.parameters(), self.words.tokens[0].weight]
        return [(weight, weight._version) for weight in weights]

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


def logsumexp(value: Tensor) -> Tensor:
    """Reduce the last axis; a row of -inf gives -inf, and no NaN gradient."""
    if value.shape[-1] == 0:
        return value.new_full(value.shape[:-1], -torch.inf)
    empty = value.isneginf().all(-1)
    summed = value.masked_fill(empty[..., None], 0.0).logsumexp(-1)
    return summed.masked_fill(empty, -torch.inf)


def log_add(a: Tensor, b: Tensor) -> Tensor:
    """Log of the sum of two exponentials; two of -inf give -inf, no NaN gradient."""
    return logsumexp(torch.stack([a, b], -1))


def products(a: Tensor, b: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """Return the scalar products of pairs of rows.

    One product of matrices for each text, unless few of its products are asked for.

    Args:
        a: B texts of T positions, (B, T, V).
        b: (n, V).
        row: The position of each pair in the flattened (B * T), non-decreasing, on the
            host, (U,).
        column: Its row of b, on the host, (U,).

    Returns:
        (U,).
    """
    num_positions = a.shape[1]
    count = torch.bincount(row // num_positions, minlength=len(a)).tolist()
    found = []
    for x, t, n in zip(a, row.split(count), column.split(count), strict=True):
        # Each text has its own rows of b.
        needed, which = torch.unique(n, return_inverse=True)
        place = sent(t % num_positions, x.device)
        if SPARSE * len(n) < num_positions * len(needed):
            few = max(1, NUMBERS // SPARSE // a.shape[-1])
            pairs = zip(place.split(few), sent(n, x.device).split(few), strict=True)
            found += [(x[i] * b[j]).sum(-1) for i, j in pairs]
        else:
            needed, which = (sent(index, x.device) for index in (needed, which))
            found.append((x @ b[needed].T)[place, which])
    return torch.cat(found)


def log_sum_product(a: Tensor, b: Tensor, row: Tensor, column: Tensor) -> Tensor:
    r"""Return :math:`\log \sum_v e^{a_{tv} + b_{nv}}` for pairs (t, n).

    One product of matrices of exponentials a text, each row shifted by its maximum.
    What underflows in it is at most V times the smallest normal number; pairs whose
    result is not far above that (their maxima lie at different words) are summed in
    log space, and so are all where a text has one position: a product would save
    little, and a device would be waited for to say which those are.

    Arguments are those of ``products``, nats; the result is (U,) float64.
    """
    if a.shape[1] == 1:
        row, column = (sent(index, a.device) for index in (row, column))
        return _summed(a.flatten(0, 1), b, row, column)
    num_words = a.shape[-1]
    peak_a = a.detach().amax(-1, keepdim=True)
    peak_b = b.detach().amax(-1, keepdim=True)
    product = products((a - peak_a).exp(), (b - peak_b).exp(), row, column)

    row, column = (sent(index, a.device) for index in (row, column))
    limit = torch.finfo(a.dtype)
    (tiny,) = (product.detach() < num_words * limit.tiny / limit.eps).nonzero(
        as_tuple=True
    )
    peaks = widened(peak_a.flatten()[row]) + peak_b.flatten()[column]
    result = widened(product.clamp_min(limit.tiny)).log() + peaks
    again = _summed(a.flatten(0, 1), b, row[tiny], column[tiny])
    return result.index_put((tiny,), again)


def _summed(a: Tensor, b: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """Compute ``log_sum_product`` in log space, pair by pair; a is (N, V)."""
    at_once = max(1, NUMBERS // a.shape[-1])
    pairs = zip(row.split(at_once), column.split(at_once), strict=True)
    return torch.cat([widened((a[t] + b[n]).logsumexp(-1)) for t, n in pairs])


class AliasMatching(nn.Module):
    r"""b_t(n): the evidence for a mention of node n that begins at token t.

    .. math:: b_t(n) = \max_{a \in \mathrm{aliases}(n),\ a_1 = x_t}
        \bigl( w_1 + [a \text{ stands at } t] \, (w_2 + w_3 (|a| - 1)) \bigr)

    and 0 for nodes without an alias that begins like that. The three weights are
    learned from annotation, and may then be fitted to what p says of texts.
    """

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
        inside = torch.arange(targets.shape[1]) < length[:, None]
        text = targets.masked_fill(~inside, -1)
        words, node, position, _ = graph.aliases_with(text.flatten(), 1)
        ahead = words_ahead(text, words.shape[1], position)
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


class Trunk(nn.Module):
    """Reads tokens and scores every decision of a walk; p and each q have their own."""

    def __init__(self, config: KGLMConfig, *, both_ways: bool = False) -> None:
        """Build the layers; ``both_ways`` reads what follows a token as well."""
        super().__init__()
        self.config = config
        dt, de = config.token_embedding_dim, config.entity_embedding_dim
        inner = [config.hidden_size] * (config.num_layers - 1)
        sizes = [dt, *inner, dt + 2 * de]
        self.token_embeddings = nn.Embedding(config.vocab_size, dt)
        self.entity_embeddings = nn.Embedding(config.num_entities, de)
        self.relation_embeddings = nn.Embedding(config.num_relations, de)
        self.rnn = RecurrentStack(sizes, config.dropout)
        self.backward_rnn = RecurrentStack(sizes, config.dropout) if both_ways else None
        self.matching = AliasMatching() if both_ways else None
        self.mention = nn.Linear(dt, len(Mention))
        if not config.entity_shortlist:
            self.new_bias = nn.Parameter(torch.zeros(config.num_entities))
            if not config.tie_weights:
                self.new_weight = nn.Parameter(torch.empty(config.num_entities, de))

    def read(
        self, tokens: Tensor, length: Tensor, carry: Carry | None
    ) -> tuple[Tensor, Tensor, Tensor, Carry]:
        """Run over tokens; return h^t, h^h, h^r, each (B, T, .), and the new state."""
        known = known_ids(tokens, self.config.vocab_size)
        if self.matching is not None and self.training:
            known = known.masked_fill(
                torch.rand(known.shape, device=known.device) < HIDDEN_WORDS, UNKNOWN
            )
        embedded = self.token_embeddings(known)
        hidden, carry = self.rnn(embedded, length, carry)
        if self.backward_rnn is not None:
            # From the end of this piece: what comes after it is not read.
            after, _ = self.backward_rnn(_reversed(embedded, length), length)
            hidden = hidden + _reversed(after, length)
        dt, de = self.config.token_embedding_dim, self.config.entity_embedding_dim
        text, head, relation = hidden.split([dt, de, de], -1)
        return text, head, relation, carry

    def scores(self, text: Tensor, head: Tensor, relation: Tensor) -> StepScores:
        """Score mention types, new entities, parents and relations, P = B * T rows."""
        text, head, relation = (x.flatten(0, -2) for x in (text, head, relation))
        entities = self.entity_embeddings.weight
        if self.config.entity_shortlist:
            new = EntityScores(head + relation, entities)
        else:
            weight = entities if self.config.tie_weights else self.new_weight
            new = EntityScores(head + relation, weight, self.new_bias)
        if self.matching is not None and self.training:
            new = new.scaled(torch.rand_like(head[:, 0]) > HIDDEN_ENTITIES)
        return StepScores(
            self.mention(text),
            new,
            EntityScores(head, entities),
            F.linear(relation, self.relation_embeddings.weight),
        )


def _reversed(value: Tensor, length: Tensor) -> Tensor:
    """Reverse the real places of each sequence, (B, T, .)."""
    place = torch.arange(value.shape[1], device=value.device)
    mirrored = length[:, None] - 1 - place
    index = torch.where(mirrored >= 0, mirrored, place)
    return value.gather(1, index[..., None].expand_as(value))
