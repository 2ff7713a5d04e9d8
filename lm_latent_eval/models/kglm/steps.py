"""Steps of KGLM's walks for the engine: choices of a search, log q.

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
from lm_latent_eval.inference.cuts import Cut, ranks
from lm_latent_eval.inference.particles import fingerprint
from lm_latent_eval.inference.ragged import (
    distinct,
    distinct_pairs,
    segment_logsumexp,
)
from lm_latent_eval.inference.step_choices import Choices
from lm_latent_eval.inference.steps import Taken
from lm_latent_eval.models.kglm.graph import NO_ENTITY
from lm_latent_eval.models.kglm.latents import Mention, NextStep, Rows, Walks
from lm_latent_eval.models.kglm.listing import (
    REST,
    Ordered,
    Unfinished,
    WalkChoices,
    derived_nodes,
    drawn_of_the_rest,
    listed_steps,
)
from lm_latent_eval.models.kglm.parent_gains import ParentGains
from lm_latent_eval.models.kglm.scores import AT_ONCE

STEPS_AT_ONCE = 1 << 16
"""Steps of walks that are scored at a time."""


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
    """Return log p(z_t | z_<t) of walks in nats, (B, K, T); 0 past the end.

    Walks and the nodes before the piece, (B, K, W), are on the host, and so is how many
    tokens of walks are scored, (B, 1 or K).
    """
    inside = torch.arange(walks.node.shape[-1]) < length[..., None]
    return _scored(walk, walk.log_prob, history, walks, inside.expand_as(walks.node))


def distinct_walks(history: Tensor, walks: Walks) -> tuple[Tensor, Tensor]:
    """Find the different walks of each text, which follow nodes (B, K, W).

    Returns:
        Which walks are the first of their kind, (B, K) bool, and the place of that one
        in the flattened (B K) of every walk, (B, K).
    """
    text = torch.arange(len(history))[:, None].expand(walks.node.shape[:2])
    code = fingerprint((text, history, *walks)).flatten()
    _, kind = distinct(code)
    place = torch.arange(len(code))
    first = torch.full_like(place, len(code)).scatter_reduce(0, kind, place, "amin")
    which = first[kind]
    return (which == place).view_as(text), which.view_as(text)


def _scored(
    walk: NextStep,
    score: Callable[[Rows, Tensor, Tensor], Tensor],
    history: Tensor,
    walks: Walks,
    some: Tensor,
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
            *(index.split(STEPS_AT_ONCE) for index in (b, k, t)), strict=True
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


class Behind(NamedTuple):
    """What is behind K walks of each of B texts, on the host.

    Few of them differ in it.
    """

    window: Tensor
    """Nodes of W tokens, but for those of the last one, (D, W)."""
    past: Tensor
    """Which window each has, (B, K)."""
    node: Tensor
    """Of the last token, 0 if nothing was mentioned, (B, K)."""


@dataclass(frozen=True)
class WalkSteps:
    """The steps of walks over a piece.

    Walks are on the host.
    """

    walk: NextStep
    """The distribution of the next step, at (S B) T positions: by outlook and token."""
    history: Tensor
    """Nodes of the tokens before the piece, (B, 1 or K, W)."""
    length: Tensor
    """Tokens of each text, (B,)."""
    num_steps: int
    """T."""
    expected: Tensor
    """What the ranks of the walks before the piece expect of it, nats,
    (B, 1 or K, 1 or S)."""
    gains: ParentGains | None = None
    """What a walk's entities are worth to a search, by outlook; None: nothing is known,
    and there is one outlook a text."""
    owed: Callable[[int, Tensor, Tensor], Tensor] | None = None
    """Token, texts and nodes that the twist does not list -> log p of the word, less
    what the twist took it for, nats; None: there is no twist."""
    _best: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """The most probable NEW entities from a step on, for some steps."""
    _ordered: dict[int, Ordered] = field(default_factory=dict)
    """Those of one step, the best first."""
    num_columns: ClassVar[int] = 2

    @property
    def outlooks(self) -> int:
        """S B, see ``LookAhead``."""
        return len(self.length) if self.gains is None else len(self.gains.log_absent)

    def begin(self, num_histories: int | None) -> Behind:
        """Return what is before the piece: of K walks, or of those there are."""
        batch, number, width = self.history.shape
        past = torch.arange(batch * number).view(batch, number)
        window, node = F.pad(self.history, (1, 0))[..., :width], self.history[..., -1]
        if num_histories is not None:
            past, node = (x.expand(-1, num_histories) for x in (past, node))
        return Behind(window.flatten(0, 1), past, node)

    def num_histories(self, state: Behind) -> int:
        """Return K."""
        return state.past.shape[1]

    def choices(
        self, state: Behind, t: int, score: Tensor, cut: Cut | None
    ) -> WalkChoices:
        """List steps of token t that may be among the best, or stand for the rest.

        Raises:
            ValueError: If every step is asked for by itself: there may be a million.
        """
        if cut is None:
            raise ValueError("the steps of a walk are too many to list all of them")
        going_on = (score > -torch.inf) & (self.length > t)[:, None]
        text, place = going_on.nonzero(as_tuple=True)
        histories = self.num_histories(state)
        group = place // (histories // cut.groups)
        ways = self.outlooks // len(score)
        way = (group >= cut.groups - cut.num_checks).long().clamp_max(ways - 1)
        paid = None
        if t == 0:
            paid = self.expected.expand(*score.shape, ways)[text, place, way]
        past, which = self._pasts(state, t, way * len(score) + text, text, place)
        walks = Unfinished(
            past,
            past.position // self.num_steps,
            which,
            text * cut.groups + group,
            score[text, place],
            paid,
        )
        listed = listed_steps(
            self.walk,
            walks,
            cut,
            self._new(t, max(cut.widths)),
            None if self.gains is None else (self.gains, t),
        )
        return WalkChoices(
            (len(score), histories),
            (text * histories + place)[listed.row],
            (listed.mention, listed.node),
            listed.log_p,
            ahead=None if self.gains is None else listed.ahead,
            many=listed.node <= REST if cut.exhaustive else None,
            derived=listed.derived,
            pasts=past,
            past=which[listed.row],
            key=listed.key,
        )

    def _pasts(
        self, state: Behind, t: int, outlook: Tensor, text: Tensor, place: Tensor
    ) -> tuple[Rows, Tensor]:
        """Find the different pasts of some walks, (R,), and which each has."""
        number, num_nodes = len(state.window), self.walk.graph.num_nodes
        pair, node, which = distinct_pairs(
            outlook * number + state.past[text, place],
            state.node[text, place],
            num_nodes,
        )
        window = torch.cat([state.window[pair % number, 1:], node[:, None]], 1)
        # Some differ in what is too long ago by now.
        past, again = Rows(pair // number * self.num_steps + t, window).distinct()
        return past, again[which]

    def take(
        self,
        state: Behind,
        t: int,
        choices: Choices,
        origin: Tensor,
        choice: Tensor,
        uniforms: Callable[[], Tensor],
    ) -> Taken[Behind]:
        """Extend walks by chosen steps; draw those that stand for the rest."""
        assert isinstance(choices, WalkChoices)
        mention, node = choices.decided(choice)
        past = choices.at(choices.past, choice)
        log_f, rest = None, node <= REST
        if rest.any():
            log_f, numbers = widened(torch.zeros(node.shape)), uniforms()
            for type in (Mention.NEW, Mention.DERIVED):
                text, place = (rest & (mention == type)).nonzero(as_tuple=True)
                which, u = REST - node[text, place], numbers[text, place]
                if type is Mention.NEW:
                    position = choices.pasts.position[past[text, place]]
                    outlook = position // self.num_steps
                    new = Ordered(*(part[outlook] for part in self._new(t, 0)))
                    drawn = drawn_of_the_rest(self.walk, position, which, new, u)
                else:
                    drawn = choices.derived.draw(which, u)
                node[text, place], log_f[text, place] = drawn[0], -drawn[1]
        after = Behind(choices.pasts.window, past, node)
        return Taken(after, (mention, node), log_f, self._log_more(t, node))

    def _log_more(self, t: int, node: Tensor) -> Tensor | None:
        """Return by how much ranks mistake the word of nodes that they take for alike.

        Nats to add, (B, K); None: no such node is chosen.
        """
        if self.owed is None or self.walk.twist is None:
            return None
        inside = (self.length > t)[:, None]
        text, place = ((node != NO_ENTITY) & inside).nonzero(as_tuple=True)
        position = text * self.num_steps + t
        unlisted = ~self.walk.twist.lists(position, node[text, place])
        text, place = text[unlisted], place[unlisted]
        if not len(text):
            return None
        row, other, pair = distinct_pairs(
            text, node[text, place], self.walk.graph.num_nodes
        )
        more = widened(torch.zeros(node.shape))
        more[text, place] = self.owed(t, row, other)[pair]
        return more

    def _new(self, t: int, width: int) -> Ordered:
        """Return the most probable NEW entities of token t, in order.

        They are fetched of several tokens at once, which a device is waited for.
        """
        if t not in self._best:
            size = max(1, self.outlooks * min(width, self.walk.graph.num_entities))
            ends = min(self.num_steps, t + max(1, AT_ONCE // size))
            first = torch.arange(self.outlooks) * self.num_steps
            here = torch.arange(t, ends)[:, None] + first
            table = fetched(*self.walk.new.top(here.flatten(), width))
            log_best, entity = (part.unflatten(0, here.shape) for part in table)
            self._best.clear()
            self._best.update(enumerate(zip(log_best, entity, strict=True), t))
        if t not in self._ordered:
            self._ordered.clear()
            self._ordered[t] = self._in_order(t, *self._best[t])
        return self._ordered[t]

    def _in_order(self, t: int, log_prob: Tensor, entity: Tensor) -> Ordered:
        """Order the NEW entities of token t by what they are worth, (S B, n) each."""
        if self.gains is None:
            return Ordered(log_prob, entity, log_prob)
        outlook = torch.arange(len(entity))[:, None].expand_as(entity)
        node = self.walk.graph.node_of_entity[entity]
        gain = self.gains.expected_after(t)
        worth = log_prob + gain.gather(1, self.gains.states(outlook, node))
        order = ranks(worth).sort(dim=1, descending=True, stable=True).indices
        return Ordered(*(x.gather(1, order) for x in (log_prob, entity, worth)))


# -- choices: ranked for search, summed for prediction ------------------------------


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
    row, node, log_derived = derived_nodes(
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
