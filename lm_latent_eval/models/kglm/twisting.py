r"""Look-ahead: expected cost of the text ahead, by a hidden Markov model of mentions.

A hidden Markov model stands in for p. Its states s are a mention of one of the
candidates n of the text (nodes with an alias that has a word of it, and nodes that an
edge leads to from these), a mention of any other node, and "no mention" after a last
one c of any of these, or after none:

.. math::
    \psi_t(s) &= p(x_t \mid s, x_{<t}) \, \beta_{t+1}(s), \qquad \beta_{T+1} = 1 \\
    \beta_t(s) &= p(\mathrm{NONE}) \, \psi_t(\emptyset_c)
        + [s = c] \, p(\mathrm{CONTINUE}) \, \psi_t(c) \\
        &\quad + p(\mathrm{NEW}) \sum_n p_{\mathrm{new}}(n) \, \psi_t(n)
        + p(\mathrm{DERIVED}) \sum_n d_t(n \mid c) \, \psi_t(n)

In the last sum n runs over the candidates alone: an edge to any other node leads
nowhere. The words' probabilities are p's own, and so are the mention types', but that
DERIVED keeps its share where all that was mentioned is too long ago. The entity that a
DERIVED mention names, which depends on the walk so far, follows from the last node
alone and from what the text says of others (``ExpectedParents``): first, to find out
who they are, from a chain in which it is any of the C candidates alike, then, some
rounds, from the chain with the parents so far: a mean field. What checks a search
takes all candidates to have just been mentioned instead. So the sums are exact
for these chains, and for p a guess: it is a proposal's to be corrected by weights.

Tilted by log psi, p's conditional of z_t knows what every choice will save or cost in
words to come. Nothing is learned, and no gradient goes through the twist. Source: the
optimal proposals of twisted particle filters, of which this is one step of
approximation (Guarniero, Johansen and Lee, 2017, section 3; Pitt and Shephard, 1999).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from lm_latent_eval.devices import fetched, sent, wide_zeros, widened
from lm_latent_eval.inference.ragged import expand_ranges, ranked_within
from lm_latent_eval.models.kglm.expected_parents import (
    FEWEST_WORDS,
    ExpectedParents,
    parents_of,
)
from lm_latent_eval.models.kglm.graph import NO_ENTITY, KnowledgeGraph, words_ahead
from lm_latent_eval.models.kglm.latents import LookAhead, Mention, NextStep
from lm_latent_eval.models.kglm.mention_chain import (
    Ahead,
    Costs,
    backward,
    beginnings,
    derivable_tokens,
    log_absent,
    recent_mentions,
)
from lm_latent_eval.models.kglm.parent_gains import Derivable, ParentGains
from lm_latent_eval.models.kglm.scores import Twist
from lm_latent_eval.text.batch import TokenBatch

MOST_PAIRS = 1 << 18
"""Words (of a short text ``FEWEST_WORDS``) times candidates. Where there would be more,
the candidates with an alias that stands in the text in whole come first, and long ones
before short ones."""

BEGUN, HELD = 1 << 12, 256
"""A word suggests the aliases that begin with it, or have it further on, where these
are no more than so many."""

LINKED, HUB = 64, 256
"""The most nodes of a text that only an edge suggests, and the most edges of a node
that suggests them."""

ROUNDS = 1
"""How often the expected parents are found again, from the chain that they make. Beams
find as much with 1, 3 and 5, in texts that fit the model badly, and less with none."""

OTHERS = 8
"""Nodes that stand for all others at a position: the most probable NEW entities."""

ROUNDING = 1e-6
"""A sum of probabilities of float32 scores is no further from one than this."""

FURTHEST, FURTHEST_SEARCHED = 20.0, 60.0
"""Nats. A choice that will cost more than this over the best one is twisted as if it
cost just this, so q is never far below p's own conditional. What is searched is told
apart further: names that stand where nobody expects them cost that much."""


class WordScorer(Protocol):
    """The word distribution of p."""

    def __call__(self, position: Tensor, node: Tensor) -> Tensor:
        """Return log p(x_t | node, x_<t) of positions and nodes, nats, elementwise."""
        ...


@dataclass(frozen=True)
class Candidates:
    """The states of each text: no mention, then nodes that its words suggest.

    Last come nodes that share an edge with those, up to ``LINKED`` of them: a walk may
    mention them, at words that do not name them, for what derives from them later. On
    the host.
    """

    node: Tensor
    """(B, 1 + C), the first 0."""
    used: Tensor
    """Whether there is one, (B, 1 + C)."""

    @classmethod
    def of(cls, batch: TokenBatch, graph: KnowledgeGraph) -> Candidates:
        """Find the nodes with an alias that has a word of the text."""
        targets, length = batch.on_host
        num_tokens = targets.shape[1]
        inside = torch.arange(num_tokens) < length[:, None]
        text = targets.masked_fill(~inside, -1)
        word, longest = text.flatten(), graph.aliases.shape[2]
        words, begun, position = graph.aliases_with(word, 0, 1, BEGUN)
        rest, held, midst = graph.aliases_with(word, 1, longest, HELD)
        matches = _matches(words, text, position), _standing(rest, text, midst)
        text_of = torch.cat([position, midst]) // num_tokens
        key, which = torch.unique(
            text_of * graph.num_nodes + torch.cat([begun, held]), return_inverse=True
        )
        best = torch.zeros_like(key)
        best.scatter_reduce_(0, which, torch.cat(matches), "amax")
        order, place = ranked_within(key // graph.num_nodes, best)
        owner = key[order] // graph.num_nodes
        kept = place < MOST_PAIRS // length.clamp_min(FEWEST_WORDS)[owner]
        order = order[kept]
        key, place = _with_linked(key[order], place[kept], best[order], graph)
        owner, column = key // graph.num_nodes, place + 1
        size = int(column.max()) + 1 if len(column) else 1
        nodes = key.new_zeros(len(text), size)
        nodes[owner, column] = key % graph.num_nodes
        used = nodes != NO_ENTITY
        used[:, 0] = True
        return cls(nodes, used)


def _with_linked(
    key: Tensor, place: Tensor, matches: Tensor, graph: KnowledgeGraph
) -> tuple[Tensor, Tensor]:
    """Add the nodes that share edges with most of what a text names, after that.

    Args:
        key: text * N + node, non-decreasing by text, (n,).
        place: Of each among those of its text, (n,).
        matches: How much of a name stands in the text, (n,).
        graph: The graph.
    """
    owner, node = key // graph.num_nodes, key % graph.num_nodes
    start, end = graph.edge_range(node)
    (few,) = (end - start <= HUB).nonzero(as_tuple=True)
    edge, which = expand_ranges(start[few], end[few])
    tail, text = graph.tail(edge), owner[few[which]]
    linked, edge_to = torch.unique(text * graph.num_nodes + tail, return_inverse=True)
    shared = torch.zeros_like(linked).index_add(0, edge_to, matches[few[which]])
    new = (linked % graph.num_nodes != NO_ENTITY) & ~torch.isin(linked, key)
    linked, shared = linked[new], shared[new]
    order, rank = ranked_within(linked // graph.num_nodes, shared)
    linked, rank = linked[order][rank < LINKED], rank[rank < LINKED]
    before = torch.bincount(owner, minlength=int(owner.max()) + 1 if len(owner) else 0)
    rank = rank + before[linked // graph.num_nodes]
    return torch.cat([key, linked]), torch.cat([place, rank])


def _matches(words: Tensor, text: Tensor, position: Tensor) -> Tensor:
    """Count the words of each alias that stand there, and more if all of them do."""
    standing = _standing(words, text, position)
    return standing + words.shape[1] * (standing == (words != 0).sum(-1))


def _standing(words: Tensor, text: Tensor, position: Tensor) -> Tensor:
    """Count the first of some words (M, L) that stand at positions (M,) of texts."""
    ahead = words_ahead(text, words.shape[1], position)
    return ((words == ahead) & (words != 0)).long().cumprod(-1).sum(-1)


@torch.no_grad()
def twisted_walks(
    walk: NextStep,
    batch: TokenBatch,
    words: WordScorer,
    *,
    cutoff: int,
    follows: bool,
    checks: bool = False,
) -> tuple[NextStep, LookAhead]:
    """Twist p's walk by the expected log-probability of the words ahead.

    Args:
        walk: The distribution of p's next step, without a twist, over possible choices.
        batch: B texts of T tokens, all of which are read.
        words: p's words.
        cutoff: Tokens that an entity stays a parent after its mention.
        follows: Whether the texts follow others, whose mentions are not known here.
        checks: Whether to look ahead in a second way as well: with all candidates taken
            to have just been mentioned, r = 1, instead of those that the chain expects.

    Returns:
        The walk with its twist, and what is ``expected`` of the rest of the text, to
        draw from; and what searches look ahead by.
    """
    states = Candidates.of(batch, walk.graph)
    costs = _costs(walk, batch, words, states, cutoff if follows else 0)
    nodes, all_recent = F.pad(states.node, (0, 1)), torch.ones_like(costs.word)
    parents = parents_of(
        walk, nodes, all_recent, batch.on_host[1], cutoff=cutoff, follows=follows
    )
    chain = ExpectedParents.anybody(costs.word)
    for _ in range(1 + ROUNDS):
        psi, beta = backward(costs, batch.length, chain)
        absent = log_absent(beginnings(costs, chain, psi, beta))
        recent = recent_mentions(absent, cutoff)
        chain = parents.given(recent)

    # From here on by outlook.
    number = 2 if checks else 1
    chain = parents.given(recent, all_recent) if checks else chain
    costs, length = costs.repeated(number), batch.length.repeat(number)
    psi, beta = backward(costs, length, chain)
    begun, tokens = derivable_tokens(costs, chain, psi, beta)
    other_word = costs.word[: len(states.node), :, -1]
    log_p = beta.none[: len(states.node), :1, 0].sum(1)
    absent, other_word, log_p, *parts = fetched(
        log_absent(begun), other_word, log_p, *tokens
    )
    inside = torch.arange(batch.targets.shape[1]) < batch.on_host[1][:, None]
    gains = ParentGains.of(
        absent,
        Derivable(*parts).only(inside.repeat(number, 1)),
        nodes.repeat(number, 1),
        cutoff,
        walk.graph.num_nodes,
    )

    def twisted(walk: NextStep, states: Candidates, furthest: float) -> NextStep:
        of_walk = slice(len(states.node))
        twist, expected = (
            _relative(Ahead(*(x[of_walk] for x in ahead)), walk, states, furthest)
            for ahead in (psi, beta)
        )
        return replace(walk, twist=twist, expected=expected)

    drawn = twisted(walk, states, FURTHEST)
    states = Candidates(states.node.repeat(number, 1), states.used.repeat(number, 1))
    walk = walk.select(torch.arange(walk.num_positions).repeat(number))
    searched = twisted(walk, states, FURTHEST_SEARCHED)
    word_cost = -log_p / batch.on_host[1].clamp_min(1)
    return drawn, LookAhead(searched, gains, other_word, word_cost)


def _costs(
    walk: NextStep,
    batch: TokenBatch,
    words: WordScorer,
    states: Candidates,
    known: int,
) -> Costs:
    """Score every state; for ``known`` tokens, something from before may be derived."""
    shape = (*batch.targets.shape, states.node.shape[1])
    position, device = torch.arange(batch.targets.numel()), batch.targets.device
    places = position.view(*shape[:2], 1).expand(shape)
    node, used = (x[:, None].expand(shape) for x in (states.node, states.used))
    inside = torch.arange(shape[1]) < batch.on_host[1][:, None]
    some = (inside[..., None] & used).flatten().nonzero()[:, 0]
    word = wide_zeros(shape, device).masked_fill(sent(~used, device), -torch.inf)
    paid = widened(words(places.flatten()[some], node.flatten()[some]))
    word = word.flatten().index_copy(0, sent(some, device), paid).view(shape)

    log_new, entity = walk.new.top(position, OTHERS)
    typical = walk.graph.node_of_entity[fetched(entity)[0]]
    paid = words(position[:, None].expand_as(typical).flatten(), typical.flatten())
    paid = widened(paid.view_as(typical)) + widened(log_new).log_softmax(-1)
    other_word = paid.logsumexp(-1).view(shape[:2])
    # Another node may have a word that none of these has; or they are none at all.
    least = word.amax(-1) - FURTHEST_SEARCHED
    least = least.masked_fill(least.isneginf(), -FURTHEST_SEARCHED)
    unlikely = other_word.isneginf() | (not walk.new.possible)
    other_word = torch.where(unlikely, least, other_word)

    entity = walk.graph.entity(node)
    own = (walk.graph.node_of_entity[entity] == node) & (node != NO_ENTITY)
    new = widened(walk.new.log_prob(places.flatten(), entity.flatten()).view(shape))
    new = new.masked_fill(sent(~own, device), -torch.inf)
    other_new = float(walk.new.possible) - new.exp().sum(-1)
    # What rounding leaves of one is nobody's.
    other_new = other_new.masked_fill(other_new < ROUNDING, 0.0).log()

    candidate = widened(sent(F.pad(states.used[:, 1:], (1, 1)), device))
    derived = candidate / candidate.sum(-1, keepdim=True).clamp_min(1)
    scores = widened(walk.scores.mention).view(*shape[:2], len(Mention))
    after_none = scores.clone()
    after_none[..., Mention.CONTINUE] = -torch.inf
    first = after_none.clone()
    first[:, known:, Mention.DERIVED] = -torch.inf
    return Costs(
        torch.cat([word, other_word[..., None]], -1),
        torch.cat([new, other_new[..., None]], -1),
        derived.log(),
        scores.log_softmax(-1),
        after_none.log_softmax(-1),
        first.log_softmax(-1),
    )


def _relative(
    ahead: Ahead, walk: NextStep, states: Candidates, furthest: float
) -> Twist:
    """Return values relative to no mention, clamped to ``furthest`` nats."""
    mention, none = ahead
    best = torch.maximum(mention.amax(-1, True), none.amax(-1, True))
    best = best.masked_fill(best.isneginf(), 0.0)
    mention, none = ((x - best).clamp_min(-furthest) for x in (mention, none))
    nothing = none[..., :1]
    return replace(
        _twist(mention - nothing, walk, states),
        none=_twist(none - nothing, walk, states),
    )


def _twist(value: Tensor, walk: NextStep, states: Candidates) -> Twist:
    """Build a twist of the candidates' values and one value for all other nodes."""
    value = value[..., 1:].flatten(0, 1).to(walk.scores.mention)
    num_positions, num_nodes = len(value), walk.graph.num_nodes
    # Every position of a text lists the same nodes.
    node, column = (
        x.repeat_interleave(num_positions // len(x), 0)
        for x in states.node[:, 1:].sort(dim=1)
    )
    (listed,) = (node != NO_ENTITY).flatten().nonzero(as_tuple=True)
    position = torch.arange(num_positions)[:, None]
    end = node.new_tensor([num_positions * num_nodes])
    known = value.gather(1, sent(column, value.device)).flatten()
    return Twist(
        torch.cat([(position * num_nodes + node).flatten()[listed], end]),
        torch.cat([known[sent(listed, value.device)], value.new_zeros(1)]),
        value[:, -1],
        num_nodes,
        continues=True,
    )
