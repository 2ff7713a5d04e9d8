"""Tables of the texts of a batch, and the outlooks that rank and twist their walks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from lm_latent_eval.compiled import Booleans, Floats, Integers
from lm_latent_eval.models.kglm.candidates import (
    FEW,
    Candidates,
    candidates_of,
    with_twisted,
)
from lm_latent_eval.models.kglm.chain import (
    ROUNDS,
    Parents,
    backward,
    expected_mentions,
)
from lm_latent_eval.models.kglm.choices import OUTLOOKS, Outlook
from lm_latent_eval.models.kglm.parent_gains import Worth, worth_of
from lm_latent_eval.models.kglm.tables import FURTHEST, Tables, TextScores, tables_of

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

    normalized: ClassVar[bool] = True
    """Whether walks are ranked by log q, which totals one at each step."""
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


@dataclass(frozen=True)
class LookAhead(WalkTables):
    """Tables of texts, and what the chain expects of them."""

    normalized: ClassVar[bool] = False
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
            unknown = np.arange(len(tables.word)) < self.cutoff
            before = (self.follows & unknown).astype(np.float64)
            recent = expected_mentions(tables, before, self.cutoff, ROUNDS)
            found.append(Parents(recent, before, before, True))
        return found

    @cached_property
    def beta(self) -> list[Floats]:
        """Expected log p of the rest of each text, by ``backward``."""
        pairs = zip(self.tables, self.parents, strict=True)
        return [clamped(backward(*pair), FURTHEST) for pair in pairs]

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

    @cached_property
    def rankings(self) -> list[tuple[Outlooks, ...]]:
        """By what walks of each text are ranked, in each kind of group."""
        found = list[tuple[Outlooks, ...]]()
        for text, tables in enumerate(self.tables):
            mine = other = self._ranking(text, self.parents[text], self.beta[text])
            half = without(mine, self.candidates.lesser[text].numpy())
            if self.checks:
                parents = self.parents[text]
                parents = parents._replace(recent=np.ones_like(parents.recent))
                beta = clamped(backward(tables, parents), FURTHEST)
                other = self._ranking(text, parents, beta)
            found.append((mine, half, other))
        return found

    def searched(self, text: int) -> tuple[Outlooks, ...]:
        return self.rankings[text]

    def _ranking(self, text: int, parents: Parents, beta: Floats) -> Outlooks:
        """Return the outlook of the chain and of what entities are worth as parents."""
        worth = worth_of(self.tables[text], parents, beta)
        return lambda tables: by_look_ahead(tables, beta)._replace(worth=worth)

    def log_twist(self, text: int, t: int, last: Integers, just: Booleans) -> Floats:
        beta = clamped(self.beta[text][t : t + 1], FURTHEST_DRAWN)[0]
        last = np.minimum(last, self.tables[text].other)
        expected: Floats = np.where(just, beta[0, last], beta[1, last]) - beta[1, 0]
        return expected


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
