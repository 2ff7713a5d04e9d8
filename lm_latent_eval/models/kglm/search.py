"""Tables and outlooks of texts, and searches of KGLM's walks by them, text by text."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from lm_latent_eval.compiled import Booleans, Floats, Integers, Keys
from lm_latent_eval.inference.cuts import Cut, Thinned
from lm_latent_eval.inference.table_search import Listing, Taken, each_its_own
from lm_latent_eval.models.kglm.candidates import (
    FEW,
    Candidates,
    candidates_of,
    others_than,
    with_twisted,
)
from lm_latent_eval.models.kglm.chain import (
    DERIVED,
    NEW,
    ROUNDS,
    Parents,
    backward,
    expected_mentions,
)
from lm_latent_eval.models.kglm.choices import (
    OUTLOOKS,
    Choices,
    Outlook,
    Pasts,
    choices,
    intervals,
    keys,
    parents_of,
    pasts,
)
from lm_latent_eval.models.kglm.parent_gains import Worth, worth_of
from lm_latent_eval.models.kglm.tables import (
    FURTHEST,
    Tables,
    TextScores,
    drawn_derived,
    drawn_new,
    tables_of,
    with_nodes,
)

ROUNDING = 1e-9
"""Logarithms of equal numbers differ by less."""

FURTHEST_DRAWN = 20.0
"""Nats. A choice that will cost more than this over the best one is twisted as if it
cost just this, so q is never far below p's own conditional."""

NOTHING = Worth(*(np.zeros((0, 0)) for _ in Worth._fields))
"""Empty values of parents, for draws and for searches without look-ahead."""

Outlooks = Callable[[Tables], Outlook]
"""The outlook of a text, also of nodes that its tables get later."""


@dataclass(frozen=True)
class WalkTables:
    """Tables of the texts of a batch, and how their choices are twisted."""

    scores: TextScores
    cutoff: int

    @cached_property
    def nodes(self) -> Tensor:
        """States of each text, as ``candidates_of`` has them, (B, 1 + C)."""
        graph, batch, twist = self.scores.graph, self.scores.batch, self.scores.twist
        if graph.num_nodes <= FEW:  # and there are no words to score
            return torch.arange(graph.num_nodes).expand(len(batch.inputs), -1)
        nodes = candidates_of(batch, graph).nodes
        return nodes if twist is None else with_twisted(nodes, twist)

    @cached_property
    def tables(self) -> list[Tables]:
        return tables_of(self.scores, self.nodes, self.cutoff)

    def twist(self, text: int) -> Outlooks:
        """Return the twist that walks of a text are drawn by."""
        return by_twist

    def searched(self, text: int) -> tuple[Outlooks, ...]:
        """Return what ranks the walks of each kind of group."""
        return (by_twist,) * OUTLOOKS

    def log_twist(self, text: int, t: int, last: Integers, just: Booleans) -> Floats:
        """Return the expected log p of the rest after last mentions, (K,)."""
        return np.zeros(len(last))

    @property
    def normalized(self) -> bool:
        """Whether walks are ranked by log q, which totals one at each step."""
        return True


@dataclass(frozen=True)
class LookAhead(WalkTables):
    """Tables of texts, and what the chain expects of them."""

    follows: bool = False
    """Whether the texts follow others, whose mentions are not known here."""
    checks: bool = False
    """Whether groups that check have an outlook of their own."""

    @cached_property
    def candidates(self) -> Candidates:
        return candidates_of(self.scores.batch, self.scores.graph)

    @property
    def nodes(self) -> Tensor:
        return self.candidates.nodes

    @cached_property
    def parents(self) -> list[Parents]:
        """Whom each text is expected to have mentioned before each token."""
        found = []
        for tables in self.tables:
            before = self._before(tables)
            recent = expected_mentions(tables, before, self.cutoff, ROUNDS)
            found.append(Parents(recent, before, before, True))
        return found

    @cached_property
    def everybody(self) -> list[Parents]:
        """The same if all candidates have just been mentioned."""
        return [x._replace(recent=np.ones_like(x.recent)) for x in self.parents]

    @cached_property
    def beta(self) -> list[Floats]:
        """Expected log p of the rest of each text, by ``backward``."""
        pairs = zip(self.tables, self.parents, strict=True)
        return [clamped(backward(*pair), FURTHEST) for pair in pairs]

    @property
    def word_cost(self) -> Tensor:
        """What a word of each text is expected to cost, nats, (B,)."""
        cost = [-beta[0, 1, 0] / max(1, len(beta) - 1) for beta in self.beta]
        return torch.tensor(cost, dtype=torch.float64)

    def twist(self, text: int) -> Outlooks:
        tables, beta = self.tables[text], self.beta[text]
        twist = by_look_ahead(tables, beta)
        size = tables.other + 1
        both = np.stack([twist.mention[:, :size], twist.none], 1)
        both[:, 0, 0] = -np.inf  # it is no mention
        mention, none = clamped(both, FURTHEST_DRAWN).swapaxes(0, 1)

        def of(tables: Tables) -> Outlook:
            every = mention[:, class_of(tables)]
            return Outlook(every, every, none, NOTHING)

        return of

    def searched(self, text: int) -> tuple[Outlooks, ...]:
        mine = self._ranking(text, self.parents[text], self.beta[text])
        half = without(mine, self.candidates.lesser[text].numpy())
        if not self.checks:
            return mine, half, mine
        tables, parents = self.tables[text], self.everybody[text]
        beta = clamped(backward(tables, parents), FURTHEST)
        return mine, half, self._ranking(text, parents, beta)

    def _ranking(self, text: int, parents: Parents, beta: Floats) -> Outlooks:
        """Return the outlook of the chain and of what entities are worth as parents."""
        worth = worth_of(self.tables[text], parents, beta)
        return lambda tables: by_look_ahead(tables, beta)._replace(worth=worth)

    def log_twist(self, text: int, t: int, last: Integers, just: Booleans) -> Floats:
        beta = clamped(self.beta[text][t : t + 1], FURTHEST_DRAWN)[0]
        last = np.minimum(last, self.tables[text].other)
        expected: Floats = np.where(just, beta[0, last], beta[1, last]) - beta[1, 0]
        return expected

    @property
    def normalized(self) -> bool:
        return False

    def _before(self, tables: Tables) -> Floats:
        """Return the weight of parents from before a text, (T,)."""
        unknown = self.follows & (np.arange(len(tables.word)) < self.cutoff)
        return unknown.astype(np.float64)


@dataclass(frozen=True)
class Tempered(WalkTables):
    """Tables and twist of a look-ahead, for draws at a temperature."""

    plain: LookAhead
    temperature: float

    @classmethod
    def of(cls, plain: LookAhead, temperature: float) -> Tempered:
        """Divide scores and twist by a number."""
        walk = plain.scores.walk
        walk = replace(walk, scores=walk.scores.scaled(1.0 / temperature))
        scores = replace(plain.scores, walk=walk, scorer=None)
        return cls(scores, plain.cutoff, plain, temperature)

    @cached_property
    def nodes(self) -> Tensor:
        return self.plain.nodes

    def twist(self, text: int) -> Outlooks:
        of = self.plain.twist(text)

        def tempered(tables: Tables) -> Outlook:
            *parts, worth = of(tables)
            mention, going_on, none = (part / self.temperature for part in parts)
            return Outlook(mention, going_on, none, worth)

        return tempered

    def log_twist(self, text: int, t: int, last: Integers, just: Booleans) -> Floats:
        return self.plain.log_twist(text, t, last, just)


def by_twist(tables: Tables) -> Outlook:
    """Return the twist that tables have: only beginning a mention may be twisted."""
    none = np.zeros((len(tables.word), tables.other + 1))
    return Outlook(tables.word, np.zeros_like(tables.word), none, NOTHING)


def by_look_ahead(tables: Tables, beta: Floats) -> Outlook:
    """Return log p of words plus the expected log p of the text after them."""
    mention = tables.word + beta[1:, 0, class_of(tables)]
    return Outlook(mention, mention, tables.word[:, :1] + beta[1:, 1], NOTHING)


def without(outlooks: Outlooks, lesser: Booleans) -> Outlooks:
    """Return the outlook of walks that begin no mention of some candidates."""
    if not lesser.any():
        return outlooks

    def half(tables: Tables) -> Outlook:
        outlook = outlooks(tables)
        mention = outlook.mention.copy()
        mention[:, : len(lesser)][:, lesser] = -np.inf
        return outlook._replace(mention=mention)

    return half


def class_of(tables: Tables) -> Integers:
    """Return each state, or the one that stands for it and others, (M,)."""
    return np.minimum(np.arange(tables.word.shape[1]), tables.other)


def clamped(value: Floats, furthest: float) -> Floats:
    """Raise values that are more than ``furthest`` below a token's best, (T, 2, S)."""
    best = value.max((1, 2), keepdims=True)
    best = np.where(np.isneginf(best), 0.0, best)
    raised: Floats = np.maximum(value, best - furthest)
    return raised


@dataclass
class TextWalks:
    """Walks over one text, whose tables grow by nodes that walks meet."""

    whole: WalkTables
    text: int
    """Index of the text in its batch."""
    tables: Tables
    outlooks_of: tuple[Outlooks, ...]
    outlooks: tuple[Outlook, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.renew(self.tables)

    def renew(self, tables: Tables) -> None:
        """Go on with other tables."""
        self.tables = tables
        self.outlooks = tuple(of(tables) for of in self.outlooks_of)

    @cached_property
    def scores(self) -> TextScores:
        """Of the text alone, for nodes that its tables do not have."""
        return self.whole.scores.one(self.text)

    def states(self, nodes: Tensor, *, listed: bool = False) -> Integers:
        """Return the states of nodes, which get one where they have none."""
        known = self.tables.node
        order = known.argsort(kind="stable")
        place = np.searchsorted(known[order], nodes.numpy())
        state: Integers = order[np.minimum(place, len(order) - 1)]
        missing = known[state] != nodes.numpy()
        if not missing.any():
            return state
        more = nodes[torch.from_numpy(missing)].unique()
        self.renew(with_nodes(self.tables, self.scores, more, listed=listed))
        return self.states(nodes)

    def drawn(
        self, t: int, of: Pasts, walk: Integers, mention: Integers, u: Floats
    ) -> tuple[Integers, Floats]:
        """Draw nodes that are not listed.

        Args:
            t: The token.
            of: Pasts of all walks before it.
            walk: Which walks mention one, (n,).
            mention: The types of these mentions, (n,).
            u: Numbers of (0, 1), (n,).

        Returns:
            States, and the log of the probability of each node among all that are not
            listed, nats, (n,) each.
        """
        node, log_share = torch.zeros(len(u), dtype=torch.long), np.zeros(len(u))
        (new,) = (mention == NEW).nonzero()
        if len(new):
            some = torch.from_numpy(u[new])
            drawn, log_some = drawn_new(self.tables, self.scores, t, some)
            node[torch.from_numpy(new)], log_share[new] = drawn, log_some.numpy()
        for i in (mention == DERIVED).nonzero()[0]:
            parents = parents_of(self.tables, t, of.window[of.which[walk[i]]])
            node[i], log_share[i] = drawn_derived(
                self.tables, self.scores.graph, t, parents, u[i]
            )
        return self.states(node), log_share


def walk_searches(
    whole: WalkTables, history: Tensor, length: Sequence[int], cut: Cut
) -> list[WalkSearch]:
    """Return the steps of the walks of each text.

    Args:
        whole: Of texts, or of pieces and what follows them.
        history: Nodes before the texts, on the host, (B, K, cutoff).
        length: How many tokens of each text are searched.
        cut: What chooses which walks go on.
    """
    searches = []
    for b, tables in enumerate(whole.tables):
        ranked = whole.searched(b)
        every = _may_list_all(whole.scores, length[b], cut)
        if every:
            ranked = ranked[0], *ranked[::2]
        draws = isinstance(cut, Thinned)
        search = WalkSearch(
            whole, b, tables, ranked, history[b], length[b], draws=draws
        )
        if every:
            num_nodes = whole.scores.graph.num_nodes
            left = others_than(torch.from_numpy(tables.node), num_nodes)
            if len(left):
                search.renew(with_nodes(tables, search.scores, left, listed=True))
        searches.append(search)
    return searches


def _may_list_all(scores: TextScores, num_tokens: int, cut: Cut) -> bool:
    """Whether all nodes of a graph are to be listed by themselves.

    That is where they fit, or all walks may. A node that is not listed is drawn among
    all that are not: where words do not name who a text is about, draws of it vary
    much. And a beam cannot go on with it at all.
    """
    width, entities = max(cut.widths), int(scores.walk.new.introducible.sum())
    if scores.graph.num_nodes <= width:
        return True
    every = num_tokens * math.log(1 + entities) <= math.log(width) + ROUNDING
    return every and isinstance(cut, Thinned)


@dataclass
class WalkSearch(TextWalks):
    """Steps of the walks of one text over its tables; see ``TextSteps``."""

    history: Tensor
    """Nodes of the tokens before the text, (K, cutoff)."""
    num_steps: int
    draws: bool
    """Whether nodes that are not listed may be drawn."""
    num_columns: ClassVar[int] = 2
    _windows: Integers = field(init=False)
    _kind: Integers = field(init=False)
    _at: tuple[int, Pasts, Choices] = field(init=False)
    _incomplete: bool = field(init=False)

    def begin(self, history: Integers, kind: Integers) -> None:
        """Begin with the nodes of some histories."""
        other, tables = self.tables.other, self.tables
        hidden = np.isfinite(tables.new[:, other]).any()
        self._incomplete = bool(hidden or (tables.links.tail == other).any())
        window = self.history[torch.from_numpy(history)]
        # Walks of groups that rank alike may share their choices.
        first = [self.outlooks_of.index(of) for of in self.outlooks_of]
        self._kind = np.array(first)[kind]
        self._windows = self.states(window.flatten()).reshape(window.shape)

    def choices(self, t: int, log_w: Floats, group: Integers) -> Listing:
        """List what may follow the different pasts, and NEW entities."""
        tables, which = self.tables, np.repeat(self._kind, np.diff(group))
        of = pasts(tables, self._windows, which)
        outlooks = self.outlooks[0], self.outlooks[1], self.outlooks[2]
        found = choices(tables, outlooks, t, of, self.whole.normalized)
        if not self.draws:
            found.value[found.state == tables.other] = -np.inf
        self._at = t, of, found
        chosen_from = intervals(found, of, log_w, group)
        return Listing(found.first, found.value, chosen_from, self._incomplete)

    def keys(self, interval: Integers, choice: Integers) -> Keys:
        """Key listed choices: two intervals are of one walk."""
        _, of, found = self._at
        return keys(self.tables, of, found, interval // 2, choice)

    def take(
        self, interval: Integers, choice: Integers, group: Integers, u: Floats
    ) -> Taken:
        """Move on; draw nodes where one state stands for several."""
        t, of, found = self._at
        walk, value = interval // 2, found.log_p
        past = of.which[walk]
        mention, state = found.mention[choice], found.state[choice]
        if self.whole.normalized:
            value = found.value
        log_p = value[choice] - found.log_z[past]
        shared = choice >= found.first[len(of.window)]
        log_p += np.where(shared, found.new[past], 0.0)
        log_f = np.zeros(len(state))
        (several,) = (state == self.tables.other).nonzero()
        if len(several):
            numbers = each_its_own(u, group, several)
            before = self.tables.word[t, self.tables.other]
            state[several], log_share = self.drawn(
                t, of, walk[several], mention[several], numbers
            )
            log_p[several] += log_share + self.tables.word[t, state[several]] - before
            log_f[several] = -log_share
        window = np.concatenate([self._windows[walk, 1:], state[:, None]], 1)
        self._windows = window
        node = self.tables.node[state]
        return Taken(walk, np.stack([mention, node]), log_p, log_f)
