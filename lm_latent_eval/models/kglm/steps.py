"""Steps of KGLM's walks for the engine: choices of a search, moves, log q.

Walks and what is behind them are on the host, log-probabilities where the scores are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from lm_latent_eval.devices import fetched, sent, widened
from lm_latent_eval.inference.cuts import GRID, Cut, ranks
from lm_latent_eval.inference.ragged import (
    distinct_pairs,
    expand_ranges,
    least_of_best,
    ranked_within,
    segment_logsumexp,
)
from lm_latent_eval.inference.step_choices import Choices, Ragged
from lm_latent_eval.inference.steps import Taken
from lm_latent_eval.inference.streams import invert_cdf
from lm_latent_eval.latent import Uniforms
from lm_latent_eval.models.kglm.drawing import DrawnWalks
from lm_latent_eval.models.kglm.graph import NO_ENTITY
from lm_latent_eval.models.kglm.latents import (
    Mention,
    NextStep,
    Parents,
    Rows,
    Walks,
)
from lm_latent_eval.models.kglm.parent_gains import ParentGains
from lm_latent_eval.models.kglm.scores import AT_ONCE, ParentEdges


def windows(history: Tensor, node: Tensor) -> Tensor:
    """Return the window of nodes before each token.

    Args:
        history: Nodes of the ``cutoff`` tokens before the piece, (B, K, W).
        node: Nodes of the piece, (B, K, T).

    Returns:
        For token t the nodes of t - W .. t - 1, shape (B, K, T, W), a view.
    """
    path = torch.cat([history, node], -1)
    return path.unfold(-1, history.shape[-1], 1)[..., :-1, :]


def log_prob_walks(
    walk: NextStep, history: Tensor, walks: Walks, length: Tensor
) -> Tensor:
    """Return log p(z_t | z_<t) of whole walks in nats, (B, K, T); 0 past the end."""
    places = torch.arange(walks.node.shape[-1])
    inside = places < length[:, None, None]
    return _scored(walk, walk.log_prob, history, walks, inside.expand_as(walks.node))


def _scored(
    walk: NextStep,
    score: Callable[[Rows, Tensor, Tensor], Tensor],
    history: Tensor,
    walks: Walks,
    some: Tensor,
    *,
    chunk: int = 1 << 16,
) -> Tensor:
    """Score some steps of walks, (B, K, T) bool; return nats, 0 of all others."""
    b, k, t = some.nonzero(as_tuple=True)
    behind, tokens = windows(history, walks.node), some.shape[-1]
    parts = [
        score(
            Rows(bb * tokens + tt, behind[bb, kk, tt]),
            walks.mention[bb, kk, tt],
            walks.node[bb, kk, tt],
        )
        for bb, kk, tt in zip(
            b.split(chunk), k.split(chunk), t.split(chunk), strict=True
        )
    ]
    result = walk.scores.mention.new_zeros(some.numel())
    if parts:
        (index,) = some.flatten().nonzero(as_tuple=True)
        result = result.index_copy(0, sent(index, result.device), torch.cat(parts))
    return result.view(some.shape)


def log_nodes(walk: NextStep, history: Tensor, walks: Walks) -> Tensor:
    """Return log p of the nodes that walks name, (B, K) float64 nats.

    Of all tokens at once: walks agree on most. Their types are drawn one by one.
    """
    named = (walks.mention == Mention.NEW) | (walks.mention == Mention.DERIVED)
    log_node = _scored(walk, walk.log_node, history, walks, named)
    return widened(log_node).sum(-1)


@dataclass(frozen=True)
class WalkSteps:
    """The steps of walks over a piece: a state is the window behind each, (B, K, W).

    Walks are on the host.
    """

    walk: NextStep
    """The distribution of the next step, at B T positions."""
    history: Tensor
    """Nodes of the tokens before the piece, (B, 1 or K, W)."""
    length: Tensor
    """Tokens of each text, (B,)."""
    num_steps: int
    """T."""
    gains: ParentGains | None = None
    """What a walk's entities are worth to a search; None: nothing is known."""
    _best: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """The most probable NEW entities from a step on, for some steps."""
    _ordered: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """Those of one step, the best first."""
    num_columns: ClassVar[int] = 2

    def begin(self, num_histories: int | None) -> Tensor:
        """Return the windows before the piece: of K walks, or of those there are."""
        if num_histories is None:
            return self.history
        return self.history.expand(-1, num_histories, -1)

    def num_histories(self, state: Tensor) -> int:
        """Return K."""
        return state.shape[1]

    def choices(self, state: Tensor, t: int, score: Tensor, cut: Cut | None) -> Ragged:
        """List steps of token t that may be among the best, or stand for the rest.

        Raises:
            ValueError: If every step is asked for by itself: there may be a million.
        """
        if cut is None:
            raise ValueError("the steps of a walk are too many to list all of them")
        going_on = (score > -torch.inf) & (self.length > t)[:, None]
        text, place = going_on.nonzero(as_tuple=True)
        listed = listed_steps(
            self.walk,
            Rows(text * self.num_steps + t, state[text, place]),
            text,
            text * cut.groups + place // (state.shape[1] // cut.groups),
            score[text, place],
            cut,
            self._new(t, cut.width),
            None if self.gains is None else (self.gains, t),
        )
        history = (text * state.shape[1] + place)[listed.row]
        columns = listed.mention, listed.node
        rest = listed.node <= REST if cut.exhaustive else None
        shape = score.shape[0], score.shape[1]
        return Ragged(
            shape, history, columns, listed.log_p, ahead=listed.ahead, many=rest
        )

    def take(
        self,
        state: Tensor,
        t: int,
        choices: Choices,
        origin: Tensor,
        choice: Tensor,
        uniforms: Callable[[], Tensor],
    ) -> Taken[Tensor]:
        """Extend walks by chosen steps; draw those that stand for the rest."""
        assert isinstance(choices, Ragged)
        mention, node = choices.decided(choice)
        log_f, (text, place) = None, (node <= REST).nonzero(as_tuple=True)
        if len(text):
            log_best, entity = self._new(t, 0)
            drawn, log_q = drawn_of_the_rest(
                self.walk,
                text * self.num_steps + t,
                REST - node[text, place],
                (log_best[text], entity[text]),
                uniforms()[text, place],
            )
            log_f = widened(torch.zeros(node.shape))
            node[text, place], log_f[text, place] = drawn, -log_q
        return Taken(
            self._moved(resampled(state, origin), node), (mention, node), log_f
        )

    def _new(self, t: int, width: int) -> tuple[Tensor, Tensor]:
        """Return the most probable NEW entities of token t: log p and entity, (B, n).

        They are fetched of several tokens at once, which a device is waited for, and
        come in the order of what they are worth, as parents to come included.
        """
        if t not in self._best:
            batch, num_entities = len(self.length), self.walk.graph.num_entities
            size = max(1, batch * min(width, num_entities))
            ends = min(self.num_steps, t + max(1, AT_ONCE // size))
            text = torch.arange(batch) * self.num_steps
            here = torch.arange(t, ends)[:, None] + text
            table = fetched(*self.walk.new.top(here.flatten(), width))
            log_best, entity = (part.unflatten(0, here.shape) for part in table)
            self._best.clear()
            self._best.update(enumerate(zip(log_best, entity, strict=True), t))
        if t not in self._ordered:
            self._ordered.clear()
            self._ordered[t] = self._in_order(t, *self._best[t])
        return self._ordered[t]

    def _in_order(
        self, t: int, log_best: Tensor, entity: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Order the NEW entities of token t by what they are worth, (B, n) each."""
        if self.gains is None:
            return log_best, entity
        text = torch.arange(len(entity))[:, None].expand_as(entity)
        node = self.walk.graph.node_of_entity[entity]
        gain = self.gains.mentioned(t, text, node)
        order = ranks(log_best + gain).sort(dim=1, descending=True, stable=True).indices
        return log_best.gather(1, order), entity.gather(1, order)

    @staticmethod
    def _moved(state: Tensor, node: Tensor) -> Tensor:
        """Append nodes to the windows, (B, K, W), (B, K) -> (B, K, W)."""
        return torch.cat([state[..., 1:], node[..., None]], -1)


def resampled(state: Tensor, origin: Tensor) -> Tensor:
    """Return the windows of some walks, (B, K, W), (B, K') -> (B, K', W)."""
    return state.gather(1, origin[..., None].expand(-1, -1, state.shape[2]))


# -- choices: ranked for search, summed for prediction ------------------------------


class ListedSteps(NamedTuple):
    """Choices of several rows, flat, on the host."""

    row: Tensor
    mention: Tensor
    node: Tensor
    log_p: Tensor
    """What they add to the rank of a walk, nats."""
    ahead: Tensor | None
    """What the entities of the walk are then worth as parents to come, nats."""


def listed_steps(
    walk: NextStep,
    rows: Rows,
    text: Tensor,
    group: Tensor,
    score: Tensor,
    cut: Cut,
    best: tuple[Tensor, Tensor],
    worth: tuple[ParentGains, int] | None,
) -> ListedSteps:
    r"""List the choices that may be among the best of a group of walks.

    Walks are ranked by log q, or, if it is known what is ``expected`` of the rest
    of the text, by log p of walk and words so far plus that: by all that went into
    the twist, less what was expected and has been paid. Up to a number that the
    walks of a text share,

    .. math:: \log p(z_{\le t}, x_{\le t}) + \log \beta_{t+1}(z_{\le t}) =
        \sum_{i \le t} \log q(z_i) + \log Z_i - \log \beta_i(z_{<i})

    Unless the cut is ``exhaustive``, what cannot be among the ``width`` best is not
    listed: a choice below as many that are known at once, without any DERIVED, or a NEW
    one too many. Every walk has the same NEW entities to choose from, so of the one
    that ranks i-th (from 1) only the first ``width`` / i can be among the ``width``
    best, but where a walk has mentioned them already. An exhaustive cut gets the others
    of a walk as one choice, ``REST``.

    Args:
        walk: The distribution of the next steps.
        rows: R decisions.
        text: Whose they are, non-decreasing, (R,).
        group: Which of them compete, at one position each, non-decreasing, (R,).
        score: What the walks so far are ranked by, nats, (R,) float64.
        cut: What chooses among them.
        best: NEW entities at the position of every text, the best first: log p_new and
            entity, on the host, (B, n) each.
        worth: What entities are worth as parents, and at which token this is.
    """
    past, which = rows.distinct()
    parents = walk.parents(past)
    position, where = past.position.unique(return_inverse=True)
    twisted = walk.log_twisted(past, parents)
    paid = walk.expected_after(past.position, past.window)
    edges, (twisted, paid, log_parent) = walk.edges.select(position).fetched_with(
        twisted, paid, parents.log_prob
    )
    types = twisted.log_softmax(-1)
    if walk.expected is not None:
        types = types + (twisted.logsumexp(-1) - paid)[:, None]
    types[past.previous == NO_ENTITY, Mention.CONTINUE] = -torch.inf
    types = types[which]
    log_best, entity = best
    kept, most_gained = torch.zeros_like(score), torch.zeros_like(score)
    if worth is not None:
        gains, t = worth
        of_past = torch.zeros_like(past.position).scatter(0, which, text)
        remembered = gains.remembered(t, of_past, past.window)
        kept = remembered.total[which]
        most_gained = gains.at(t + 1)[..., -1].amax(1).clamp_min(0.0)[text]
    none, new, derived, going_on = ((score + kept)[:, None] + types).unbind(-1)
    best_new = new + log_best[text, 0]
    enough = torch.full_like(score, -torch.inf)
    if not cut.exhaustive:
        known = torch.stack([none, best_new, going_on], -1)
        enough = least_of_best(group, known, cut.width)[group] - GRID  # for rounding
        enough = enough - most_gained

    (able,) = ((best_new >= enough) & (best_new > -torch.inf)).nonzero(as_tuple=True)
    order, rank = ranked_within(group[able], ranks(new[able]))
    most = (cut.width // (rank + 1)).clamp_max(entity.shape[1])
    place, ranked = expand_ranges(torch.zeros_like(most), most)
    new_row = able[order[ranked]]
    here = text[new_row], place
    new_node, log_new = walk.graph.node_of_entity[entity[here]], log_best[here]
    (wanted,) = (derived >= enough).nonzero(as_tuple=True)
    derived_row, derived_node, log_derived = _derived_of(
        parents._replace(log_prob=log_parent),
        edges,
        where,
        which[wanted],
        walk.graph.num_nodes,
    )
    every = torch.arange(len(score))
    sure = log_new.new_zeros(len(every))
    parts = [
        (Mention.NONE, every, torch.zeros_like(every), sure),
        (Mention.NEW, new_row, new_node, log_new),
        (Mention.DERIVED, wanted[derived_row], derived_node, log_derived),
        (Mention.CONTINUE, every, rows.previous, sure),
    ]
    if cut.exhaustive:
        some = most < int(walk.introducible.sum())
        rest_row, listed = able[order[some]], most[some]
        log_rest = _log_rest(log_best)[text[rest_row], listed]
        parts.append((Mention.NEW, rest_row, REST - listed, log_rest))
    row = torch.cat([part[1] for part in parts])
    mention = torch.cat([torch.full_like(r, m) for m, r, _, _ in parts])
    node = torch.cat([part[2] for part in parts])
    log_p = types[row, mention] + torch.cat([part[3] for part in parts])
    total = (score + kept)[row] + log_p
    possible = (total > -torch.inf) & (total >= enough[row])
    possible &= (node != NO_ENTITY) | (mention == Mention.NONE)
    (keep,) = possible.nonzero(as_tuple=True)
    # In an order that no score decides, for those that tie.
    choice = row[keep] * len(Mention) + mention[keep]
    keep = keep[(choice * walk.graph.num_nodes + node[keep].clamp_min(0)).argsort()]
    row, mention, node, log_p = (x[keep] for x in (row, mention, node, log_p))
    if worth is None:
        return ListedSteps(row, mention, node, log_p, None)
    ahead, (named,) = kept[row], (node > NO_ENTITY).nonzero(as_tuple=True)
    of, some = row[named], node[named]
    mentioned = gains.mentioned(t, text[of], some)
    mentioned = mentioned - remembered.of(which[of], some, gains.num_nodes)
    return ListedSteps(row, mention, node, log_p, ahead.index_add(0, named, mentioned))


REST = -1
"""Less than this by n stands for every NEW entity but the n most probable ones."""

LEAST_REST = 1e-16
"""The probability that unlisted entities are ranked by is no less: a sum to one does
not tell how much less. What is drawn of them is weighed by what it is."""


def _log_rest(log_best: Tensor) -> Tensor:
    """Return log p of all but the first i entities, (B, n) -> (B, n + 1) nats."""
    mass = F.pad(log_best.exp().cumsum(-1), (1, 0))
    return (1 - mass).clamp_min(LEAST_REST).log()


def drawn_of_the_rest(
    walk: NextStep,
    position: Tensor,
    listed: Tensor,
    best: tuple[Tensor, Tensor],
    u: Tensor,
) -> tuple[Tensor, Tensor]:
    """Draw NEW entities that were not listed.

    Args:
        walk: The distribution of the next step.
        position: Of R decisions, (R,).
        listed: How many of the best entities are left out, (R,).
        best: As ``listed_steps`` has them, (R, n) each.
        u: Numbers of (0, 1), on the host, (R,).

    Returns:
        Nodes, and the log of their probability among those, nats, (R,) each, on the
        host.
    """
    node, log_q = torch.zeros_like(position), widened(torch.zeros(len(position)))
    for few in walk.scores.new.few(torch.arange(len(position))):
        (log_p,) = fetched(walk.new.log_probs(position[few]))
        out = torch.arange(best[1].shape[1]) < listed[few, None]
        left = (
            log_p.double()
            .exp()
            .scatter_reduce(1, best[1][few], (~out).double(), "prod")
        )
        drawn = invert_cdf(left, u[few])
        mass = left.gather(1, drawn[:, None])[:, 0] / left.sum(-1)
        node[few], log_q[few] = walk.graph.node_of_entity[drawn], mass.log()
    return node, log_q


def node_probs(walk: NextStep, rows: Rows, log_weight: Tensor) -> Tensor:
    """Return the distribution of the next node under a mixture of histories.

    Args:
        walk: The distribution of the next step.
        rows: R decisions at one position.
        log_weight: Log-probabilities of their pasts in nats, (R,).

    Returns:
        Probabilities of every node, (N,); of 0, that nothing is mentioned.
    """
    here = rows.position[:1]
    rows, which = rows.distinct()
    device = log_weight.device
    log_weight = segment_logsumexp(log_weight, which, len(rows.position))
    parents, previous = walk.parents(rows), rows.previous
    log_mention = walk.log_mention(rows, parents) + log_weight[:, None]
    none, new, derived, going_on = log_mention.unbind(-1)
    named = new.exp().sum() * walk.new.log_probs(here)[0].exp()
    every, num_nodes = torch.ones(len(previous), dtype=torch.bool), walk.graph.num_nodes
    row, node, log_derived = _derived(
        parents, walk.edges, rows.position, every, num_nodes
    )
    log_derived = log_derived + derived[sent(row, device)]
    begun = walk.graph.node_of_entity
    nobody = [sent(nodes == NO_ENTITY, device) for nodes in (begun, previous)]
    return (
        none.new_zeros(num_nodes)
        .index_add(0, sent(begun, device), named.masked_fill(nobody[0], 0.0))
        .index_add(0, sent(node, device), log_derived.exp())
        .index_add(
            0, sent(previous, device), going_on.exp().masked_fill(nobody[1], 0.0)
        )
        .index_add(0, sent(torch.zeros_like(previous), device), none.exp())
    )


def _derived(
    parents: Parents, edges: ParentEdges, place: Tensor, some: Tensor, num_nodes: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Find the distinct nodes that some of R decisions may derive.

    Args:
        parents: Of the decisions.
        edges: Of the parents, scored where those are.
        place: The position of each decision among those of the edges, (R,).
        some: Which decisions, (R,) bool.
        num_nodes: Of the graph.

    Returns:
        Rows and nodes on the host, and the log-probability of each node given that it
        is derived, nats, edges and parents summed.
    """
    (parent,) = some[parents.row].nonzero(as_tuple=True)
    row = parents.row[parent]
    tail, log_edge, which = edges.every(place[row], parents.entity[parent])
    row, node, pair = distinct_pairs(row[which], tail, num_nodes)
    log_parent = parents.log_prob[sent(parent[which], parents.log_prob.device)]
    return row, node, segment_logsumexp(log_parent + log_edge, pair, len(row))


def _derived_of(
    parents: Parents, edges: ParentEdges, place: Tensor, past: Tensor, num_nodes: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Find the distinct nodes that decisions may derive, many of which share a past.

    Args:
        parents: Of the pasts.
        edges: Of the parents, scored where those are.
        place: The position of each past among those of the edges, (P,).
        past: Of each of R decisions, (R,).
        num_nodes: Of the graph.

    Returns:
        As ``_derived`` has them, of the R decisions.
    """
    some = torch.zeros_like(place, dtype=torch.bool)
    some[past] = True
    of, node, log_derived = _derived(parents, edges, place, some, num_nodes)
    listed, row = expand_ranges(
        torch.searchsorted(of, past), torch.searchsorted(of, past, right=True)
    )
    return row, node[listed], log_derived[sent(listed, log_derived.device)]


# -- Metropolis-Hastings moves ------------------------------------------------------


def moved(
    walk: NextStep, history: Tensor, walks: Walks, length: Tensor, uniforms: Uniforms
) -> tuple[Walks, Tensor]:
    """Draw one decision of each walk anew.

    Tokens that go on with the mention follow it to its new node. The decisions after
    them are kept; where they are none any more, p is zero and the walk stays as it is.

    Args:
        walk: The distribution to draw from.
        history: Nodes before the texts, on the host, (B, K, cutoff).
        walks: K a text, on the host, (B, K, T).
        length: Tokens of each text, on the host, (B,).
        uniforms: As ``Moves`` has them.

    Returns:
        Walks on the host, and log R(z | z') - log R(z' | z) in nats, (B, K) float64,
        where the scores are.
    """
    batch, _samples, num_tokens = walks.node.shape
    t = (uniforms(0)[..., 0] * length[:, None]).long()
    text = torch.arange(batch)[:, None].expand_as(t)
    behind = windows(history, walks.node)
    window = behind.gather(2, t[..., None, None].expand(-1, -1, 1, behind.shape[-1]))
    rows = Rows((text * num_tokens + t).flatten(), window.flatten(0, 2))
    ones, numbers = torch.ones_like(rows.position), uniforms(1).flatten(0, 1)[:, None]
    drawing = DrawnWalks(walk.select(rows.position), rows.window[:, None], ones, 1)
    drawn = drawing.draw(None, 0, lambda _: numbers, None)
    mention, node = (column.flatten() for column in drawn.columns)
    log_node = widened(walk.log_node(rows, mention, node))
    log_new = sent(drawn.log_q.flatten(), log_node.device) + log_node
    at = t[..., None]
    old = [part.gather(2, at).flatten() for part in walks]
    log_old = walk.log_prob(rows, *old)

    new_mention = walks.mention.scatter(2, at, mention.view(*t.shape, 1))
    begins = (walks.mention != Mention.CONTINUE).long().cumsum(-1)
    places = torch.arange(num_tokens)
    follows = (places > at) & (begins == begins.gather(2, at))
    follows = follows | (places == at)
    new_node = torch.where(follows, node.view(*t.shape, 1), walks.node)
    log_ratio = widened(log_old - log_new).view_as(t)
    return Walks(new_mention, new_node), log_ratio
