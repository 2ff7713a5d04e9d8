"""Draws of KGLM's walks on the host, by scores that are fetched once a text.

What a walk may do next depends on where it has been only by the entities that it has
mentioned of late. So what is the same for all walks (types, new entities) is scored for
every token at once, and an entity when a walk mentions it, for the tokens after which
it is recent. What is left to a token is to look up and to add, which NumPy does: of few
numbers torch's operations cost more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lm_latent_eval.devices import fetched, sent, sent_uniforms
from lm_latent_eval.inference.ragged import expand_ranges, invert_cdf
from lm_latent_eval.inference.steps import Drawn
from lm_latent_eval.latent import Uniforms
from lm_latent_eval.models.kglm.graph import NO_ENTITY
from lm_latent_eval.models.kglm.latents import Mention, NextStep
from lm_latent_eval.models.kglm.scores import ParentEdges

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
Booleans = NDArray[np.bool_]


class Past(NamedTuple):
    """The ``cutoff`` tokens before the next, (B, K, W)."""

    mentioned: Integers
    """Numbers of ``Entities``, 0 where nothing is mentioned."""
    recent: Booleans
    """Whether that is the last token of an entity to derive from."""

    def resampled(self, origin: Integers) -> Past:
        """Return the pasts of some walks, (B, K')."""
        texts = np.arange(len(origin))[:, None]
        return Past(self.mentioned[texts, origin], self.recent[texts, origin])


class Entities:
    """Nodes that walks have mentioned, numbered text by text, and scored as parents.

    Number 0 is nothing.
    """

    def __init__(
        self, walk: NextStep, length: Tensor, num_tokens: int, cutoff: int
    ) -> None:
        self.walk, self.length, self.cutoff = walk, length.numpy(), cutoff
        self.numbers: dict[int, int] = {}
        self.num_tokens = num_tokens
        self.text, self.node, self.entity = np.zeros((3, 1), np.int64)
        self.has_edges = np.zeros(1, np.bool_)
        self.first, self.end = np.zeros((2, 1), np.int64)
        """The tokens that a number is scored for, and one past the last."""
        self.scored = np.zeros((2, 64, min(num_tokens, 2 * cutoff)))
        """Scores of parents, and the log of what the twist multiplies the mass of their
        edges by, nats, of numbers (some of them not used yet) from ``first`` on."""

    def number(self, text: Integers, node: Integers) -> Integers:
        """Return the numbers of nodes, some of them new, elementwise."""
        num_nodes = self.walk.graph.num_nodes
        key, which = np.unique(text * num_nodes + node, return_inverse=True)
        new = [k for k in key.tolist() if k not in self.numbers]
        if new:
            self.numbers.update(zip(new, range(len(self.node), 10**9), strict=False))
            self._append(*np.divmod(np.array(new), num_nodes))
        return np.array([self.numbers[k] for k in key.tolist()])[which]

    def _append(self, text: Integers, node: Integers) -> None:
        graph = self.walk.graph
        entity = graph.entity(torch.from_numpy(node))
        has_edges = (entity != NO_ENTITY) & graph.has_edges[entity]
        none = np.zeros_like(node)
        self.text, self.node = np.append(self.text, text), np.append(self.node, node)
        self.entity = np.append(self.entity, entity.numpy())
        self.has_edges = np.append(self.has_edges, has_edges.numpy())
        self.first, self.end = np.append(self.first, none), np.append(self.end, none)
        if len(self.node) > self.scored.shape[1]:
            room = np.zeros((2, 2 * len(self.node), self.scored.shape[2]))
            room[:, : self.scored.shape[1]] = self.scored
            self.scored = room

    def at(self, number: Integers, t: int) -> Floats:
        """Return scores and lifts of what is recent at token t, (2, N)."""
        found: Floats = self.scored[:, number, t - self.first[number]]
        return found

    def unscored(self, number: Integers, t: int) -> tuple[Tensor, Tensor]:
        """List the numbers and tokens to score: of what is recent at tokens t and on.

        They are scored twice as far as that, so that it is rarely done again.
        """
        ends = np.minimum(self.length[self.text], t + self.cutoff)
        stale = self.has_edges & (self.end < ends)
        stale[stale] = np.isin(stale.nonzero()[0], number)
        (stale,) = stale.nonzero()
        if not len(stale):
            return torch.empty(0, dtype=torch.long), torch.empty(0, dtype=torch.long)
        ends = np.minimum(self.length[self.text[stale]], t + 2 * self.cutoff)
        self.first[stale], self.end[stale] = t, ends
        token, which = expand_ranges(
            torch.full((len(stale),), t), torch.from_numpy(ends)
        )
        return torch.from_numpy(stale)[which], token

    def scores(self, number: Tensor, token: Tensor) -> Tensor:
        """Score numbers as parents of what begins at tokens, where the scores are."""
        return self.walk.scores.parent.at(*self._places(number, token))

    def keep(
        self, number: Tensor, token: Tensor, score: Tensor, edges: ParentEdges
    ) -> None:
        """Keep fetched scores, and look up the twist of the edges."""
        index = number.numpy(), token.numpy() - self.first[number.numpy()]
        self.scored[0][index] = score.numpy()
        if edges.twist is not None and len(number):
            twisted, plain = edges.log_sums(*self._places(number, token))
            self.scored[1][index] = (twisted - plain).numpy()

    def _places(self, number: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
        text, entity = torch.from_numpy(self.text), torch.from_numpy(self.entity)
        return text[number] * self.num_tokens + token, entity[number]


class Fetched(NamedTuple):
    """What no walk changes, on the host."""

    uniforms: Sequence[Floats]
    """Random numbers of each token, (B, K, 4)."""
    mention: Floats
    """Scores of the types, (B, T, 4)."""
    lift: Floats
    """Log of what the twist multiplies the mass of NEW mentions by, (B, T)."""
    begun: Tensor
    """Entities that NEW mentions would name, (B, T, K)."""
    edges: ParentEdges
    entities: Entities


class Parents(NamedTuple):
    """What each row of walks may derive a mention from, flat."""

    row: Integers
    """Non-decreasing, (N,)."""
    number: Integers
    """(N,)."""
    prob: Floats
    """(N,)."""


@dataclass(frozen=True)
class DrawnWalks:
    """The steps of walks over a piece, drawn among possible choices alone."""

    walk: NextStep
    """The distribution of the next step, at B T positions."""
    history: Tensor
    """Nodes of the tokens before the piece, on the host, (B, 1 or K, W)."""
    length: Tensor
    """Tokens of each text, on the host, (B,)."""
    num_steps: int
    """T."""
    _fetched: list[Fetched] = field(default_factory=list)
    num_columns: ClassVar[int] = 2

    def begin(self, num_histories: int | None) -> Past | None:
        """Return None: histories are looked at with the first token."""
        return None

    @torch.no_grad()
    def draw(
        self, state: Past | None, t: int, uniforms: Uniforms, origin: Tensor | None
    ) -> Drawn:
        """Draw the steps of token t: log q is that of the types, without the nodes.

        It has no gradient: ``log_prob`` of what was drawn does.
        """
        if state is None:
            state, origin = self._begun(uniforms, origin)
        (here,) = self._fetched
        entities = here.entities
        (text,) = (self.length.numpy() > t).nonzero()
        u = here.uniforms[t][text].reshape(-1, here.uniforms[t].shape[-1])
        past = Past(state.mentioned[text], state.recent[text])
        log_type, parents = self._types(past, text, t)
        mention = _inverted(np.exp(log_type), u[:, 0])
        last = past.mentioned[..., -1].ravel()
        number = np.where(mention == Mention.CONTINUE, last, 0)
        (new,) = (mention == Mention.NEW).nonzero()
        (derived,) = (mention == Mention.DERIVED).nonzero()
        begins = np.concatenate([new, derived])
        if len(begins):
            owner = text.repeat(state.mentioned.shape[1])
            entity = here.begun[torch.from_numpy(text), t].flatten()[new]
            nodes = [self.walk.graph.node_of_entity[entity].numpy()]
            if len(derived):
                place = owner[derived] * self.num_steps + t
                nodes.append(self._derived(parents, derived, place, u))
            number[begins] = entities.number(owner[begins], np.concatenate(nodes))
        size = state.mentioned.shape[:2]
        columns = np.zeros((3, *size), np.int64)
        drawn = np.stack([mention, entities.node[number], number])
        columns[:, text] = drawn.reshape(3, -1, size[1])
        log_q = np.zeros(size)
        log_q[text] = log_type[np.arange(len(u)), mention].reshape(-1, size[1])
        unscored = entities.unscored(columns[2], t + 1)
        if len(unscored[0]):
            (score,) = fetched(entities.scores(*unscored))
            entities.keep(*unscored, score, here.edges)
        state = self._moved(state, columns[2], entities)
        return Drawn(
            state, tuple(torch.from_numpy(columns[:2])), torch.from_numpy(log_q), origin
        )

    @staticmethod
    def _moved(state: Past, number: Integers, entities: Entities) -> Past:
        """Append what has been mentioned, (B, K)."""
        before = state.mentioned[..., 1:]
        recent = state.recent[..., 1:] & (before != number[..., None])
        last = number[..., None], entities.has_edges[number][..., None]
        return Past(
            np.concatenate([before, last[0]], -1), np.concatenate([recent, last[1]], -1)
        )

    # -- distributions --------------------------------------------------------------

    def _types(self, past: Past, text: Integers, t: int) -> tuple[Floats, Parents]:
        """Return log-probabilities of the types, (R, 4), and the parents of R walks."""
        (here,) = self._fetched
        entities, twist = here.entities, here.edges.twist
        samples, window = past.mentioned.shape[1:]
        num_rows = len(text) * samples
        mentioned = past.mentioned.reshape(num_rows, window)
        row, place = past.recent.reshape(num_rows, window).nonzero()
        number, last = mentioned[row, place], mentioned[:, -1]
        score, lift = entities.at(number, t)
        plain = _segment_logsumexp(score, row, num_rows)
        type_score = here.mention[text, t].repeat(samples, 0)
        type_score[np.isneginf(plain), Mention.DERIVED] = -np.inf
        type_score[last == 0, Mention.CONTINUE] = -np.inf
        log_type = _log_softmax(type_score)
        twisted = plain
        if twist is not None:
            score = score + lift
            twisted = _segment_logsumexp(score, row, num_rows)
            added = np.zeros_like(log_type)
            added[:, Mention.NEW] = here.lift[text, t].repeat(samples)
            some = ~np.isneginf(twisted)
            added[some, Mention.DERIVED] = twisted[some] - plain[some]
            position = torch.from_numpy((text * self.num_steps + t).repeat(samples))
            if twist.continues:
                previous = torch.from_numpy(entities.node[last])
                added[:, Mention.CONTINUE] = twist.at(position, previous).numpy()
            if twist.none is not None:
                left = np.zeros_like(mentioned)
                left[:, :-1] = entities.node[mentioned[:, 1:]]
                none = twist.of_none(position, torch.from_numpy(left))
                added[:, Mention.NONE] = none.numpy()
            log_type = _log_softmax(log_type + added)
        row = np.ascontiguousarray(row)  # of several columns, NumPy returns views
        return log_type, Parents(row, number, np.exp(score - twisted[row]))

    def _derived(
        self, parents: Parents, which: Integers, position: Integers, u: Floats
    ) -> Integers:
        """Draw parents and edges of some walks; return the nodes these lead to."""
        (here,) = self._fetched
        row, prob, query = (
            torch.from_numpy(part) for part in (parents.row, parents.prob, which)
        )
        rows = torch.from_numpy(u[which])
        drawn = invert_cdf(prob, row, len(u), query, rows[:, 1])
        entity = here.entities.entity[parents.number[drawn.numpy()]]
        edge, tail = here.edges.sample(
            torch.from_numpy(position), torch.from_numpy(entity), rows[:, 2]
        )
        nodes: Integers = tail[edge].numpy()
        return nodes

    # -- what is fetched before the first token ---------------------------------------

    def _begun(
        self, uniforms: Uniforms, origin: Tensor | None
    ) -> tuple[Past, Tensor | None]:
        """Fetch what no walk changes; return the pasts that walks continue."""
        walk, history = self.walk, self.history.numpy()
        u = [uniforms(t) for t in range(self.num_steps)]
        entities = Entities(walk, self.length, self.num_steps, history.shape[-1])
        owner, named = np.indices(history.shape)[0], history != NO_ENTITY
        number = np.zeros_like(history)
        if named.any():
            number[named] = entities.number(owner[named], history[named])
        unscored = entities.unscored(number, 0)
        mention, twist = walk.scores.mention, walk.twist
        there = [mention, mention.new_zeros(len(mention)), self._new_entities(u)]
        if twist is not None:
            there[1] = walk.new.lift
        there.append(entities.scores(*unscored))
        if twist is not None and twist.none is not None:
            there += [twist.none.value, twist.none.others]
        if origin is not None and history.shape[1] > 1:
            there.append(origin)
        edges, here = walk.edges.fetched_with(*there)
        mention, lift, begun, score, *rest = here
        if edges.twist is not None and edges.twist.none is not None:
            none = replace(edges.twist.none, value=rest[0], others=rest[1])
            edges = replace(edges, twist=replace(edges.twist, none=none))
        size = len(history), self.num_steps
        types = mention.double().view(*size, -1)
        if not walk.new.possible:
            beginning = torch.arange(len(Mention)) == Mention.NEW
            types = types.masked_fill(beginning, -torch.inf)
        entities.keep(*unscored, score, edges)
        self._fetched.append(
            Fetched(
                [part.numpy() for part in u],
                types.numpy(),
                lift.double().view(size).numpy(),
                begun,
                edges,
                entities,
            )
        )
        # Of the tokens of an entity before the piece, the last counts.
        again = number[..., :, None] == number[..., None, :]
        again = np.triu(again, 1).any(-1)
        past = Past(number, entities.has_edges[number] & ~again)
        samples = u[0].shape[1]
        if history.shape[1] == 1:  # all continue the one there is
            return past.resampled(np.zeros((size[0], samples), np.int64)), None
        if origin is not None:
            origin = rest[-1]
            past = past.resampled(origin.numpy())
        return past, origin

    def _new_entities(self, u: Sequence[Tensor]) -> Tensor:
        """Draw the entities that NEW mentions would name, (B, T, K)."""
        device, samples = self.walk.scores.mention.device, u[0].shape[1]
        inside = torch.arange(self.num_steps) < self.length[:, None]
        begun = torch.zeros(
            (*inside.shape, samples), dtype=torch.long, device=device
        ).flatten()
        if not self.walk.new.possible:
            return begun.view(*inside.shape, samples)
        inside = inside[..., None].expand(-1, -1, samples).flatten()
        (place,) = inside.nonzero(as_tuple=True)
        numbers = torch.stack([part[..., 1] for part in u], 1).flatten()[place]
        drawn = self.walk.new.sample(place // samples, sent_uniforms(numbers, device))
        begun[sent(place, device)] = drawn
        return begun.view(len(self.length), self.num_steps, samples)


# -- a row a walk ----------------------------------------------------------------------


def _log_softmax(value: Floats) -> Floats:
    """Normalise rows, each of which has a finite value."""
    value = value - value.max(-1, keepdims=True)
    normalised: Floats = value - np.log(np.exp(value).sum(-1, keepdims=True))
    return normalised


def _segment_logsumexp(value: Floats, row: Integers, num_rows: int) -> Floats:
    """Log of the summed exponentials of each row; ``-inf`` for an empty one."""
    peak = np.full(num_rows, -np.inf)
    np.maximum.at(peak, row, value)
    peak[np.isneginf(peak)] = 0.0
    total = np.bincount(row, np.exp(value - peak[row]), num_rows)
    with np.errstate(divide="ignore"):
        summed: Floats = np.log(total) + peak
    return summed


def _inverted(prob: Floats, u: Floats) -> Integers:
    """Draw a column of each row by inverting cdfs, (R, N), (R,) -> (R,)."""
    mass = prob.cumsum(-1)
    # Below the total despite rounding, so that no column after the last is drawn.
    target = np.minimum(u * mass[:, -1], np.nextafter(mass[:, -1], 0.0))
    drawn: Integers = (mass <= target[:, None]).sum(-1)
    return drawn
