"""Expected parents: from whom a DERIVED mention ahead will be derived, and whose it is.

Walks that are not yet read on are known by their last mention alone, so parents are
expected values: of the hidden Markov model of ``twisting``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from lm_latent_eval.devices import sent
from lm_latent_eval.inference.ragged import (
    distinct_pairs,
    expand_ranges,
    ranked_within,
    segment_logsumexp,
)
from lm_latent_eval.models.kglm.graph import NO_ENTITY
from lm_latent_eval.models.kglm.latents import NextStep

MOST_EDGES = 1 << 20
"""Words (of a short text ``FEWEST_WORDS``) times edges of its candidates. Where there
would be more, those of the nodes with the fewest come first, and others lead to all
candidates alike."""

FEWEST_WORDS = 64
"""Shorter texts look at no more nodes and edges: others may be longer in a batch."""

LIGHTEST = 1e-30
"""Parents that weigh less together, by e^s of the best one, are taken to be none."""


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
    a chain in which mentions are derived from anybody, then from the chain with these
    parents, given the whole text. This is a mean field: mentions of two parents are
    taken to be independent.
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

    @classmethod
    def anybody(cls, like: Tensor) -> ExpectedParents:
        """Return parents that derive all candidates alike, for a chain (B, T, S)."""
        batch, num_tokens, num_states = like.shape
        nobody, nothing = torch.zeros_like(like), sent(torch.arange(0), like.device)
        return cls(
            weight=nobody,
            recent=nobody,
            unknown=like.new_ones(num_tokens),
            known=like.new_zeros(batch, num_states, dtype=torch.bool),
            head=nothing,
            tail=nothing,
            kind=nothing,
            log_edge=like.new_zeros(0, num_tokens),
        )

    def given(self, *recent: Tensor) -> ExpectedParents:
        """Return them for several r, (B, T, S) each, one batch below the other."""
        number, size = len(recent), self.known.numel()
        first = torch.arange(number, device=self.head.device)[:, None] * size
        return replace(
            self,
            weight=torch.cat([self.weight] * number),
            recent=torch.cat(recent),
            known=torch.cat([self.known] * number),
            head=(first + self.head).flatten(),
            tail=(first + self.tail).flatten(),
            kind=torch.cat([self.kind] * number),
        )

    def derived(self, t: int, psi: Tensor, alike: Tensor) -> Derivations:
        """Return what DERIVED mentions at t are worth, by parent.

        Args:
            t: A token.
            psi: Of the states, up to a factor a text, (B, S).
            alike: The mean of psi over all candidates, (B, 1).
        """
        listed = torch.zeros_like(psi).flatten()
        listed = listed.index_add(
            0, self.head, self._edge(t) * psi.flatten()[self.tail]
        )
        paid = torch.where(self.known, listed.view_as(psi), alike)
        weight, recent = self.weight[:, t], self.recent[:, t]
        return Derivations(paid, weight, recent, self.unknown[t], alike)

    def log_derived(self, t: int, ahead: Tensor, uniform: Tensor) -> Tensor:
        """Return the log of the expected psi after a DERIVED mention at t, (B, S).

        ``ahead`` is log psi of the states, ``uniform`` the same for an edge to all
        candidates alike, (B, 1).
        """
        peak = ahead.amax(-1, True)
        peak = peak.masked_fill(peak.isneginf(), 0.0)
        derived = self.derived(t, (ahead - peak).exp(), (uniform - peak).exp())
        return derived.value.log() + peak

    def reached(
        self, t: int, mass: Tensor, derived: Derivations
    ) -> tuple[Tensor, Tensor]:
        """Distribute mass that derives at t over the states that it reaches.

        ``mass`` derives after a last mention of each state, (B, S). Returned is what is
        on listed edges, by state, and on edges to all candidates alike, (B, 1).
        """
        some = derived.number > LIGHTEST
        share = torch.where(some, mass / derived.number.clamp_min(LIGHTEST), 0.0)
        together = share.sum(-1, True)
        head = together * derived.others + share * derived.alone
        listed = torch.zeros_like(mass).flatten()
        listed = listed.index_add(
            0, self.tail, self._edge(t) * (head * self.known).flatten()[self.head]
        )
        alike = (head * ~self.known).sum(-1, True) + share.sum(
            -1, True
        ) * derived.unknown
        return listed.view_as(mass), alike

    def _edge(self, t: int) -> Tensor:
        """Return p(edge | head) of the listed edges at t, (M,)."""
        return self._of_kinds[t][self.kind]

    @cached_property
    def _of_kinds(self) -> Tensor:
        """p(edge | head) of heads and relations, (T, pairs)."""
        return self.log_edge.mT.contiguous().exp()


@dataclass(frozen=True)
class Derivations:
    """What a DERIVED mention is worth at a token, by its parent: numbers of (B, S)."""

    paid: Tensor
    """The expected psi of what is derived from a state."""
    weight: Tensor
    """e^s, as ``ExpectedParents`` has it."""
    recent: Tensor
    """r, likewise."""
    unknown: Tensor
    """What the parents from before the piece weigh, ()."""
    alike: Tensor
    """The expected psi of what they derive, (B, 1)."""

    @cached_property
    def others(self) -> Tensor:
        """Return what a state weighs as a parent, whoever was mentioned last."""
        return self.weight * self.recent

    @cached_property
    def alone(self) -> Tensor:
        """Return what it weighs more if it was mentioned last."""
        return self.weight * (1 - self.recent)

    @property
    def total(self) -> Tensor:
        """Return the weighted sum over parents, by the last mention."""
        everybody = (self.others * self.paid).sum(-1, True) + self.unknown * self.alike
        return everybody + self.alone * self.paid

    @property
    def value(self) -> Tensor:
        """Return what is expected of a DERIVED mention, by the last mention."""
        return self.total / self.number

    @cached_property
    def number(self) -> Tensor:
        """Return what the parents weigh together, by the last mention; above 0."""
        everybody = self.others.sum(-1, True) + self.unknown
        number = everybody + self.alone
        return number.clamp_min(torch.finfo(number.dtype).tiny)


def parents_of(
    walk: NextStep,
    nodes: Tensor,
    recent: Tensor,
    length: Tensor,
    *,
    cutoff: int,
    follows: bool,
) -> ExpectedParents:
    """Look up p's scores of parents and edges among the states of each text.

    Args:
        walk: The distribution of p's next step.
        nodes: Of the states, on the host, (B, S); 0 of those that are no node.
        recent: r, (B, T, S).
        length: Words of each text, on the host, (B,).
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
    most = MOST_EDGES // length.clamp_min(FEWEST_WORDS)
    few = _fewest(end - start, owner, most[owner])
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
    """Score the edges (M,) of heads, each relation of a head once.

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


def _fewest(number: Tensor, owner: Tensor, most: Tensor) -> Tensor:
    """Return the rows of each owner, from the smallest numbers up, that fit, sorted."""
    order, place = ranked_within(owner, -number)
    total = number[order].cumsum(0)
    first = torch.arange(len(order)) - place
    before = total[first] - number[order][first]
    return order[total - before <= most[order]].sort().values


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
