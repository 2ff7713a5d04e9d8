"""Searches of KGLM's walks: tables, look-ahead and compiled steps, text by text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from lm_latent_eval.inference.cuts import Cut, Thinned
from lm_latent_eval.inference.pruning import (
    Booleans,
    Floats,
    Integers,
    Intervals,
    Items,
    Keys,
    Survivors,
)
from lm_latent_eval.inference.table_search import Listing, Taken, each_its_own
from lm_latent_eval.models.kglm.candidates import Candidates, others_than
from lm_latent_eval.models.kglm.chain import (
    DERIVED,
    LIKELIEST,
    LITTLE,
    NEW,
    ROUNDS,
    Parents,
    backward,
    expected_mentions,
    forward,
    log_absent,
)
from lm_latent_eval.models.kglm.choices import (
    Choices,
    NewEntities,
    Outlook,
    Pasts,
    choices,
    intervals,
    looked_at,
    new_entities,
    parents_of,
    pasts,
)
from lm_latent_eval.models.kglm.tables import (
    FURTHEST,
    Tables,
    TextScores,
    drawn_derived,
    drawn_new,
    tables_of,
    with_nodes,
)

AT_ONCE = 64
"""Nodes that are not listed: where no more are left than this, all are scored as soon
as one is met."""

ROUNDING = 1e-9
"""Logarithms of equal numbers differ by less."""


@dataclass(frozen=True)
class LookAhead:
    """Scores of texts in tables, and what the chain expects of them."""

    scores: TextScores
    candidates: Candidates
    cutoff: int
    follows: bool
    """Whether the texts follow others, whose mentions are not known here."""
    expects: bool = True
    """Whether anything is expected; else searches rank by log q."""
    checks: bool = False
    """Whether groups that check have an outlook of their own."""

    @cached_property
    def tables(self) -> list[Tables]:
        """Of candidates alone, by text."""
        return tables_of(self.scores, self.candidates.node, self.cutoff)

    @cached_property
    def recent(self) -> list[Floats]:
        """How probable a recent mention of each state is, (T, S) each."""
        return [
            expected_mentions(each, self._before(each), self.cutoff, ROUNDS)
            for each in self.tables
        ]

    @cached_property
    def outlooks(self) -> list[Outlook]:
        """What searches expect of each text."""
        if not self.expects:
            return [without_look_ahead(each) for each in self.tables]
        pairs = zip(self.tables, self.recent, strict=True)
        return [self._outlook(each, recent) for each, recent in pairs]

    @cached_property
    def others(self) -> list[Outlook]:
        """What groups that check expect: all candidates have just been mentioned."""
        if not self.checks:
            return self.outlooks
        pairs = zip(self.tables, self.recent, strict=True)
        return [self._outlook(each, np.ones_like(recent)) for each, recent in pairs]

    @property
    def word_cost(self) -> Tensor:
        """What a word of each text is expected to cost, nats, (B,)."""
        cost = [-x.beta[0, 1, 0] / max(1, len(x.beta) - 1) for x in self.outlooks]
        return torch.tensor(cost, dtype=torch.float64)

    def _before(self, tables: Tables) -> Floats:
        """Return the weight of parents from before a text, (T,)."""
        unknown = self.follows & (np.arange(len(tables.word)) < self.cutoff)
        return unknown.astype(np.float64)

    def _outlook(self, tables: Tables, recent: Floats) -> Outlook:
        before = self._before(tables)
        parents = Parents(recent, before, before, True)
        beta = backward(tables, parents)
        begun, derivable = forward(tables, parents, beta, LIKELIEST)
        return Outlook(clamped(beta, FURTHEST), derivable, log_absent(begun), LITTLE)


def walk_searches(
    look_ahead: LookAhead, history: Tensor, length: Sequence[int], cut: Cut
) -> list[WalkSearch]:
    """Return the steps of the walks of each text.

    Args:
        look_ahead: Of texts, or of pieces and what follows them.
        history: Nodes before the texts, on the host, (B, K, cutoff).
        length: How many tokens of each text are searched.
        cut: What chooses which walks go on.
    """
    searches = []
    for b, tables in enumerate(look_ahead.tables):
        scores = look_ahead.scores.one(b)
        if _may_list_all(scores, length[b], cut):
            left = others_than(torch.from_numpy(tables.node), scores.graph.num_nodes)
            tables = with_nodes(tables, scores, left, listed=True)
        searches.append(
            WalkSearch(
                tables if look_ahead.expects else ranked_by_q(tables),
                (look_ahead.outlooks[b], look_ahead.others[b]),
                scores,
                history[b],
                length[b],
                normalized=not look_ahead.expects,
                draws=isinstance(cut, Thinned),
            )
        )
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


def clamped(value: Floats, furthest: float) -> Floats:
    """Raise what is further than so much below the best of a token, (T, 2, S)."""
    best = value.max((1, 2), keepdims=True)
    best = np.where(np.isneginf(best), 0.0, best)
    raised: Floats = np.maximum(value, best - furthest)
    return raised


@dataclass
class WalkSearch:
    """Steps of the walks of one text over its tables; see ``TextSteps``."""

    tables: Tables
    outlooks: tuple[Outlook, Outlook]
    """By which walks are ranked, and by which those of groups that check."""
    scores: TextScores
    """Of the text alone, for nodes that its tables do not have."""
    history: Tensor
    """Nodes of the tokens before the text, (K, cutoff)."""
    num_steps: int
    normalized: bool
    """Whether walks are ranked by log q, which totals one at each step."""
    draws: bool
    """Whether nodes that are not listed may be drawn."""
    num_columns: ClassVar[int] = 2
    _windows: Integers = field(init=False)
    _check: Booleans = field(init=False)
    _at: tuple[int, tuple[NewEntities, NewEntities], Pasts, Choices, Intervals] = field(
        init=False
    )
    _incomplete: bool = field(init=False)

    def begin(self, history: Integers, check: Booleans) -> None:
        """Begin with the nodes of some histories."""
        other, tables = self.tables.other, self.tables
        hidden = np.isfinite(tables.new[:, other]).any()
        self._incomplete = bool(hidden or np.isfinite(tables.edge_other).any())
        if not self.draws:
            new = tables.new.copy()
            new[:, other] = -np.inf
            nowhere = np.full_like(tables.edge_other, -np.inf)
            self.tables = tables._replace(new=new, edge_other=nowhere)
        window, self._check = self.history[torch.from_numpy(history)], check
        self._windows = self._states(window.flatten()).reshape(window.shape)

    def _states(self, nodes: Tensor) -> Integers:
        """Return the states of nodes, which get one where they have none."""
        known = self.tables.node
        order = known.argsort(kind="stable")
        place = np.searchsorted(known[order], nodes.numpy())
        state: Integers = order[np.minimum(place, len(order) - 1)]
        missing = known[state] != nodes.numpy()
        if not missing.any():
            return state
        more = nodes[torch.from_numpy(missing)].unique()
        left = others_than(torch.from_numpy(known), self.scores.graph.num_nodes)
        more = left if len(left) <= AT_ONCE else more
        tables = with_nodes(self.tables, self.scores, more)
        self.tables = ranked_by_q(tables) if self.normalized else tables
        return self._states(nodes)

    def choices(self, t: int, log_w: Floats, group: Integers) -> Listing:
        """List what may follow the different pasts, and NEW entities."""
        tables, which = self.tables, self._check.astype(np.int64)
        mine = new_entities(tables, self.outlooks[0], t)
        other = new_entities(tables, self.outlooks[1], t) if which.any() else mine
        of = pasts(tables, self._windows, np.repeat(which, np.diff(group)))
        new = mine, other
        found = choices(tables, self.outlooks, new, t, of, self.normalized)
        chosen_from, slack = intervals(found, of, log_w, group)
        self._at = t, new, of, found, chosen_from
        several = np.full(len(which), self._incomplete)
        return Listing(found.runs, chosen_from, several, slack)

    def looked_at(self, items: Items) -> tuple[Floats, Keys]:
        """Rank listed choices with the entities of their own walks."""
        t, new, of, found, chosen_from = self._at
        return looked_at(self.tables, new, t, of, found, chosen_from, items)

    def take(self, kept: Survivors, u: Floats) -> Taken:
        """Move on; draw nodes where one state stands for several."""
        t, _, of, found, chosen_from = self._at
        walk, at = kept.interval // 2, chosen_from.run[kept.interval]
        at = found.runs.first[at] + kept.place
        mention, state, log_p = found.mention[at], found.state[at], found.log_p[at]
        log_p += np.where(mention == NEW, found.new[of.which[walk]], 0.0)
        log_f = np.zeros(len(state))
        (several,) = (state == self.tables.other).nonzero()
        if len(several):
            numbers = each_its_own(u, kept.first, several)
            drawn, log_q = self._drawn(t, mention[several], walk[several], numbers)
            state[several] = self._states(drawn)
            word = self.tables.word[t]
            log_p[several] += log_q + word[state[several]] - word[self.tables.other]
            log_f[several] = -log_q
        window = np.concatenate([self._windows[walk, 1:], state[:, None]], 1)
        self._windows = window
        node = self.tables.node[state]
        return Taken(walk, np.stack([mention, node]), log_p, log_f)

    def _drawn(
        self, t: int, mention: Integers, walk: Integers, u: Floats
    ) -> tuple[Tensor, Floats]:
        """Draw nodes that are not listed for mentions of walks; return log q, too."""
        node, log_q = torch.zeros(len(u), dtype=torch.long), np.zeros(len(u))
        (new,) = (mention == NEW).nonzero()
        if len(new):
            some = torch.from_numpy(u[new])
            drawn, log_some = drawn_new(self.tables, self.scores, t, some)
            node[torch.from_numpy(new)], log_q[new] = drawn, log_some.numpy()
        _, _, of, _, _ = self._at
        for i in (mention == DERIVED).nonzero()[0]:
            window = of.window[of.which[walk[i]]]
            parents = parents_of(self.tables, t, window)
            node[i], log_q[i] = drawn_derived(
                self.tables, self.scores.graph, t, parents, u[i]
            )
        return node, log_q


def ranked_by_q(tables: Tables) -> Tables:
    """Let words cost nothing: only beginning a mention may be twisted."""
    word = tables.word.copy()
    word[:, 0] = 0.0
    return tables._replace(word=word, going_on=np.zeros_like(word))


def without_look_ahead(tables: Tables) -> Outlook:
    """Expect nothing of a text."""
    size, num_tokens = tables.other, len(tables.word)
    nothing = np.zeros(num_tokens)
    nobody = Parents(np.zeros((num_tokens, size)), nothing, nothing, False)
    beta = np.zeros((num_tokens + 1, 2, size + 1))
    _, derivable = forward(tables, nobody, beta, LIKELIEST)
    return Outlook(beta, derivable, np.zeros((num_tokens + 1, size)), np.inf)
