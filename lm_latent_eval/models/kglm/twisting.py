r"""Look-ahead: expected cost of the text ahead, by a hidden Markov model of mentions.

A hidden Markov model stands in for p. Its states s are a mention of one of the
candidates n of the text (nodes with an alias that begins with a word of it), a mention
of any other node, and "no mention" after a last one c of any of these, or after none:

.. math::
    \psi_t(s) &= p(x_t \mid s, x_{<t}) \, \beta_{t+1}(s), \qquad \beta_{T+1} = 1 \\
    \beta_t(s) &= p(\mathrm{NONE}) \, \psi_t(\emptyset_c)
        + [s = c] \, p(\mathrm{CONTINUE}) \, \psi_t(c) \\
        &\quad + p(\mathrm{NEW}) \sum_n p_{\mathrm{new}}(n) \, \psi_t(n)
        + p(\mathrm{DERIVED}) \sum_n d_t(n \mid c) \, \psi_t(n)

In the last sum n runs over the candidates alone: an edge to any other node leads
nowhere. The words' probabilities are p's own, and so are the mention types', but that
DERIVED keeps its share where p has nobody to derive from, as before any mention. The
entity that a DERIVED mention names, which depends on the walk so far, follows from the
last node alone and from what the text says of others (``ExpectedParents``): first, to
find out who they are, from a chain in which it is any of the C candidates alike. So the
sums are exact for these chains, and for p a guess: it is a proposal's to be corrected
by weights.

Tilted by log psi, p's conditional of z_t knows what every choice will save or cost in
words to come. Nothing is learned, and no gradient goes through the twist. Source: the
optimal proposals of twisted particle filters, of which this is one step of
approximation (Guarniero, Johansen and Lee, 2017, section 3; Pitt and Shephard, 1999).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from lm_latent_eval.devices import fetched, sent, wide_zeros, widened
from lm_latent_eval.inference.ragged import (
    distinct_pairs,
    expand_ranges,
    ranked_within,
    segment_logsumexp,
)
from lm_latent_eval.models.kglm.graph import NO_ENTITY, KnowledgeGraph
from lm_latent_eval.models.kglm.latents import Mention, NextStep
from lm_latent_eval.models.kglm.scores import Twist
from lm_latent_eval.text.batch import TokenBatch

MOST_EDGES = 1 << 20
"""Words times edges of a text's candidates. Where there would be more, those of the
nodes with the fewest come first, and others lead to all candidates alike."""


@dataclass(frozen=True)
class ExpectedParents:
    r"""Expected parents among the S states of each text, in float64.

    A DERIVED mention of node n is reached by an edge from an entity that was mentioned
    in the ``cutoff`` tokens before it. Of a walk that is not yet read on, only the node
    c that it mentioned last is known; of the others how probable it is that they were
    mentioned:

    .. math::
        d_t(n \mid c) = \frac{\sum_{c'} r_t(c' \mid c) \, e^{s_t(c')} \, p(c' \to n)}
            {\sum_{c'} r_t(c' \mid c) \, e^{s_t(c')}}, \qquad
        r_t(c \mid c) = 1, \quad r_t(c' \mid c) = r_t(c')

    with p's own scores s of parents and probabilities of edges. n and c' are
    candidates: of edges to other nodes the mass is left out, so the d_t(n | c) may
    total less than 1, and edges from other nodes are not looked at. r_t(c') comes from
    a chain in which mentions are derived from anybody, given the whole text. This is a
    mean field: mentions of two parents are taken to be independent.
    """

    weight: Tensor
    """e^s, up to a number a position, (B, T, S); 0 of what is no parent."""
    recent: Tensor
    """r, (B, T, S)."""
    unknown: Tensor
    """Weight of the unknown parents from before the piece, (T,)."""
    known: Tensor
    """Whether the edges of a state are listed, (B, S)."""
    head: Tensor
    """Of the listed edges between states, b S + state, (M,)."""
    tail: Tensor
    """(M,), likewise."""
    kind: Tensor
    """Which row of ``log_edge`` each has, (M,)."""
    log_edge: Tensor
    """log p(edge | head) of heads and relations, (pairs, T)."""

    def log_derived(self, t: int, ahead: Tensor, uniform: Tensor) -> Tensor:
        r"""Return the log of the expected psi after a DERIVED mention at t, (B, S).

        .. math:: \log \sum_n d_t(n \mid c) \, \psi_t(n)

        Args:
            t: A token.
            ahead: log psi of the states, (B, S).
            uniform: The same sum for an edge to all candidates alike, (B, 1).
        """
        peak = ahead.amax(-1, True)
        peak = peak.masked_fill(peak.isneginf(), 0.0)
        psi, alike = (ahead - peak).exp().flatten(), (uniform - peak).exp()
        paid = self.log_edge[self.kind, t].exp() * psi[self.tail]
        listed = torch.zeros_like(psi).index_add(0, self.head, paid)
        paid = torch.where(self.known, listed.view_as(ahead), alike)
        weight, recent = self.weight[:, t], self.recent[:, t]
        others, alone = weight * recent, weight * (1 - recent)
        total = (others * paid).sum(-1, True) + self.unknown[t] * alike + alone * paid
        parents = others.sum(-1, True) + self.unknown[t] + alone
        return (total / parents.clamp_min(torch.finfo(total.dtype).tiny)).log() + peak


def parents_of(
    walk: NextStep, nodes: Tensor, recent: Tensor, *, cutoff: int, follows: bool
) -> ExpectedParents:
    """Look up p's scores of parents and edges among the states of each text.

    Args:
        walk: The distribution of p's next step.
        nodes: Of the states, on the host, (B, S); 0 of those that are no node.
        recent: r, (B, T, S).
        cutoff: Tokens that an entity stays a parent after its mention.
        follows: Whether the piece follows another, whose mentions are not known here.
    """
    (batch, num_tokens, num_states), graph = recent.shape, walk.graph
    owner, state = (nodes != NO_ENTITY).nonzero(as_tuple=True)
    entity = graph.entity(nodes[owner, state])
    able = graph.has_edges[entity]
    able &= graph.node_of_entity[entity] == nodes[owner, state]
    owner, state, entity = owner[able], state[able], entity[able]
    place, device = torch.arange(num_tokens), recent.device
    position = owner[:, None] * num_tokens + place
    found = walk.scores.parent.at(
        position.flatten(), entity.repeat_interleave(num_tokens)
    )
    score = recent.new_full((batch, num_states, num_tokens), -torch.inf)
    score[sent(owner, device), sent(state, device)] = found.view(position.shape).to(
        score
    )
    peak = score.amax(1, True)
    weight = (score - peak.masked_fill(peak.isneginf(), 0.0)).exp()

    start, end = graph.edge_range(nodes[owner, state])
    few = _fewest(end - start, owner, MOST_EDGES // max(1, num_tokens))
    known = torch.zeros_like(nodes, dtype=torch.bool)
    known[owner[few], state[few]] = True
    edge, which = expand_ranges(start[few], end[few])
    kind, log_edge = _log_edges(walk, graph.relation(edge), which, position[few])
    tail, listed = _states(owner[few][which], graph.tail(edge), nodes, graph.num_nodes)
    before = (place < (cutoff if follows else 0)).to(recent.dtype)
    head = (owner * num_states + state)[few][which][listed]
    before, known, head, tail, kind = (
        sent(x, device) for x in (before, known, head, tail, kind[listed])
    )
    return ExpectedParents(
        weight.transpose(1, 2),
        recent,
        before,
        known,
        head,
        tail,
        kind,
        log_edge.to(recent),
    )


def _log_edges(
    walk: NextStep, relation: Tensor, head: Tensor, position: Tensor
) -> tuple[Tensor, Tensor]:
    """Score the edges of heads, each relation of a head once.

    Args:
        walk: The distribution of p's next step.
        relation: Of every edge, (M,).
        head: Of every edge, (M,).
        position: Of the tokens of every head, (H, T).

    Returns:
        Which row each edge has, on the host, (M,), and log p(edge | head), (rows, T).
    """
    scores = walk.scores.relation
    head, relation, kind = distinct_pairs(head, relation, scores.shape[1])
    number = torch.bincount(kind, minlength=len(head))
    num_tokens = position.shape[1]
    cell = torch.arange(num_tokens) + head[:, None] * num_tokens
    here, relation, there, number = (
        sent(x, scores.device)
        for x in (position[head], relation[:, None], head, number)
    )
    score, number = scores[here, relation], number.to(scores)
    log_z = segment_logsumexp(
        (score + number.log()[:, None]).flatten(), cell.flatten(), position.numel()
    )
    return kind, score - log_z.view(position.shape)[there]


def _fewest(number: Tensor, owner: Tensor, most: int) -> Tensor:
    """Return the rows of each owner, from the smallest numbers up, that fit, sorted."""
    order = number.argsort(stable=True)
    order = order[owner[order].argsort(stable=True)]
    total = F.pad(number[order].cumsum(0), (1, 0))
    first = torch.searchsorted(owner[order], owner[order])
    return order[total[1:] - total[first] <= most].sort().values


def _states(
    owner: Tensor, node: Tensor, nodes: Tensor, num_nodes: int
) -> tuple[Tensor, Tensor]:
    """Find nodes among the states of texts: which have one, and b S + state of those.

    Returns:
        States of the nodes that have one, (M,), and which nodes these are, (M,).
    """
    text = torch.arange(len(nodes))[:, None]
    key, state = (text * num_nodes + nodes).flatten().sort(stable=True)
    wanted = owner * num_nodes + node
    place = torch.searchsorted(key, wanted).clamp_max(len(key) - 1)
    (listed,) = (key[place] == wanted).nonzero(as_tuple=True)
    return state[place[listed]], listed


# -- the hidden Markov model --------------------------------------------------------

MOST_PAIRS = 1 << 18
"""Words times candidates of a text. Where there would be more, the candidates with an
alias that stands in it in whole come first, and long ones before short ones."""

OTHERS = 8
"""Nodes that stand for all others at a position: the most probable NEW entities."""

FURTHEST, FURTHEST_SEARCHED = 20.0, 60.0
"""Nats. A choice that will cost more than this over the best one is twisted as if it
cost just this, so q is never far below p's own conditional. What is searched is told
apart further: names that stand where nobody expects them cost that much."""

BEGUN = slice(Mention.NONE, Mention.CONTINUE)
"""Types of tokens that go on with nothing."""

LEAST = 1e-12
"""Probability that something was not mentioned is taken to be no less."""


class WordScorer(Protocol):
    """The word distribution of p."""

    def __call__(self, position: Tensor, node: Tensor) -> Tensor:
        """Return log p(x_t | node, x_<t) of positions and nodes, nats, elementwise."""
        ...


@dataclass(frozen=True)
class Candidates:
    """The states of each text: no mention, then nodes that its words suggest.

    On the host.
    """

    node: Tensor
    """(B, 1 + C), the first 0."""
    used: Tensor
    """Whether there is one, (B, 1 + C)."""

    @classmethod
    def of(cls, batch: TokenBatch, graph: KnowledgeGraph) -> Candidates:
        """Find the nodes with an alias that begins with a word of the text."""
        targets, length = batch.on_host
        num_tokens = targets.shape[1]
        inside = torch.arange(num_tokens) < length[:, None]
        text = targets.masked_fill(~inside, -1)
        words, node, position = graph.aliases_that_begin(text.flatten())
        key, which = torch.unique(
            position // num_tokens * graph.num_nodes + node, return_inverse=True
        )
        best = torch.zeros_like(key).scatter_reduce(
            0, which, _matches(words, text, position), "amax"
        )
        order, place = ranked_within(key // graph.num_nodes, best)
        kept = place < MOST_PAIRS // max(1, num_tokens)
        key, place = key[order][kept], place[kept]
        owner, column = key // graph.num_nodes, place + 1
        size = int(column.max()) + 1 if len(column) else 1
        nodes = key.new_zeros(len(text), size)
        nodes[owner, column] = key % graph.num_nodes
        used = nodes != NO_ENTITY
        used[:, 0] = True
        return cls(nodes, used)


def _matches(words: Tensor, text: Tensor, position: Tensor) -> Tensor:
    """Count the words of each alias that stand there, and more if all of them do."""
    longest = words.shape[1]
    beyond = text.new_full((len(text), longest), -1)
    ahead = torch.cat([text, beyond], 1).unfold(1, longest, 1)
    ahead = ahead[:, : text.shape[1]].flatten(0, 1)[position]
    standing = ((words == ahead) & (words != 0)).long().cumprod(-1).sum(-1)
    return standing + longest * (standing == (words != 0).sum(-1))


@dataclass(frozen=True)
class Costs:
    """Log-probabilities of a batch under the S states of its texts, float64 nats.

    The states are those of ``Candidates`` and, last, a mention of any other node.
    """

    word: Tensor
    """log p(x_t | s), (B, T, S); ``-inf`` of states that a text does not have."""
    new: Tensor
    """log p_new(s), (B, T, S); ``-inf`` of no mention."""
    derived: Tensor
    """log 1/C of candidates, (B, S); ``-inf`` of other states."""
    mention: Tensor
    """Mention types after a mention, (B, T, 4)."""
    first: Tensor
    """Mention types after none, where nothing can be continued, (B, T, 4)."""


@torch.no_grad()
def twisted_walks(
    walk: NextStep, batch: TokenBatch, words: WordScorer, *, cutoff: int, follows: bool
) -> tuple[NextStep, NextStep]:
    """Twist p's walk by the expected log-probability of the words ahead.

    Args:
        walk: The distribution of p's next step, without a twist, over possible choices.
        batch: B texts of T tokens, all of which are read.
        words: p's words.
        cutoff: Tokens that an entity stays a parent after its mention.
        follows: Whether the texts follow others, whose mentions are not known here.

    Returns:
        The walk with its twist, and what is ``expected`` of the rest of the text: to
        draw from, and to search.
    """
    states = Candidates.of(batch, walk.graph)
    costs = _costs(walk, batch, words, states)
    recent = _recent(costs, *_backward(costs, batch.length), cutoff)
    nodes = F.pad(states.node, (0, 1))
    parents = parents_of(walk, nodes, recent, cutoff=cutoff, follows=follows)
    psi, beta = _backward(costs, batch.length, parents)

    def twisted(furthest: float) -> NextStep:
        twist, expected = (_relative(x, walk, states, furthest) for x in (psi, beta))
        return replace(walk, twist=twist, expected=expected)

    return twisted(FURTHEST), twisted(FURTHEST_SEARCHED)


def _costs(
    walk: NextStep, batch: TokenBatch, words: WordScorer, states: Candidates
) -> Costs:
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

    entity = walk.graph.entity(node)
    own = (walk.graph.node_of_entity[entity] == node) & (node != NO_ENTITY)
    new = widened(walk.new.log_prob(places.flatten(), entity.flatten()).view(shape))
    new = new.masked_fill(sent(~own, device), -torch.inf)
    other_new = (1 - new.exp().sum(-1)).clamp_min(0.0).log()

    candidate = widened(sent(F.pad(states.used[:, 1:], (1, 1)), device))
    derived = candidate / candidate.sum(-1, keepdim=True).clamp_min(1)
    scores = widened(walk.scores.mention).view(*shape[:2], len(Mention))
    none_to_continue = scores.clone()
    none_to_continue[..., Mention.CONTINUE] = -torch.inf
    return Costs(
        torch.cat([word, other_word[..., None]], -1),
        torch.cat([new, other_new[..., None]], -1),
        derived.log(),
        scores.log_softmax(-1),
        none_to_continue.log_softmax(-1),
    )


class Ahead(NamedTuple):
    """log psi or log beta of every token and state, nats, (B, T, S) each."""

    mention: Tensor
    """A mention of each state; ``-inf`` of the first, which is none."""
    none: Tensor
    """No mention, after a last one of each state; of the first, after none."""


def _backward(
    costs: Costs, length: Tensor, parents: ExpectedParents | None = None
) -> tuple[Ahead, Ahead]:
    """Return log psi and log beta; without ``parents`` mentions derive from anybody."""
    nobody = torch.zeros_like(costs.derived[:1], dtype=torch.bool)
    nobody[:, 0] = True
    ahead = [torch.zeros_like(costs.derived) for _ in range(2)]
    found: list[tuple[Tensor, ...]] = [(costs.word[:, :0],) * 4]
    for t in reversed(range(costs.word.shape[1])):
        mention = (costs.word[:, t] + ahead[0]).masked_fill(nobody, -torch.inf)
        none = costs.word[:, t, :1] + ahead[1]
        new = (costs.new[:, t] + mention).logsumexp(-1, True)
        derived = (costs.derived + mention).logsumexp(-1, True)
        if parents is not None:
            derived = parents.log_derived(t, mention, derived)
        begun = torch.stack(torch.broadcast_tensors(none, new, derived), -1)
        going_on = costs.mention[:, t, Mention.CONTINUE, None] + mention
        for n, types in enumerate([costs.mention, costs.first]):
            value = (types[:, t, BEGUN][:, None] + begun).logsumexp(-1)
            if n == 0:
                value = torch.logaddexp(going_on, value)
            ahead[n] = torch.where((length > t)[:, None], value, ahead[n])
        found.append((mention[:, None], none[:, None], *[x[:, None] for x in ahead]))
    mention, none, *ahead = (
        torch.cat(part, 1) for part in zip(*reversed(found), strict=True)
    )
    return Ahead(mention, none), Ahead(*ahead)


def _recent(costs: Costs, psi: Ahead, beta: Ahead, cutoff: int) -> Tensor:
    """Return how probable a mention of a state in the tokens before t is, (B, T, S).

    By the chain in which mentions derive from anybody, given the whole text. What
    begins at several tokens is taken to be independent.
    """
    begun = torch.empty_like(costs.word)
    log_none = torch.zeros_like(costs.derived[:, :1])
    log_mention = torch.full_like(costs.derived, -torch.inf)
    for t in range(begun.shape[1]):
        # Of every state before t: its probability, less what was expected after it.
        none = _less(log_none, beta.none[:, t, :1])
        mention = _less(log_mention, beta.mention[:, t])
        before = torch.cat([none, mention.logsumexp(-1, True)], -1)[..., None]
        types = torch.stack([costs.first[:, t], costs.mention[:, t]], 1) + before
        types = types.logsumexp(1)
        new = types[:, Mention.NEW, None] + costs.new[:, t]
        derived = types[:, Mention.DERIVED, None] + costs.derived
        beginning = new.logaddexp(derived) + psi.mention[:, t]
        begun[:, t] = beginning.exp()
        going_on = costs.mention[:, t, Mention.CONTINUE, None] + mention
        log_mention = beginning.logaddexp(going_on + psi.mention[:, t])
        log_none = types[:, Mention.NONE, None] + psi.none[:, t, :1]
    absent = F.pad((1 - begun).clamp_min(LEAST).log().cumsum(1), (0, 0, cutoff + 1, 0))
    return -torch.expm1(absent[:, cutoff:-1] - absent[:, : -cutoff - 1])


def _less(value: Tensor, expected: Tensor) -> Tensor:
    """Subtract logarithms, both of which may be ``-inf``."""
    return value - expected.masked_fill(expected.isneginf(), 0.0)


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
    candidate = states.node[:, 1:].repeat_interleave(
        num_positions // len(states.node), 0
    )
    position = torch.arange(num_positions)[:, None]
    (listed,) = (candidate != NO_ENTITY).flatten().nonzero(as_tuple=True)
    key, order = (position * num_nodes + candidate).flatten()[listed].sort()
    end = key.new_tensor([num_positions * num_nodes])
    known = value[:, :-1].flatten()[sent(listed[order], value.device)]
    return Twist(
        torch.cat([key, end]),
        torch.cat([known, value.new_zeros(1)]),
        value[:, -1],
        num_nodes,
        continues=True,
    )
