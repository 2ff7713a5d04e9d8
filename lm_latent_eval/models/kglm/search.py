"""KGLM's walks over one text after another: searched and drawn by tables.

All goes by one listing (``choices.py``), in compiled loops that stop only where a walk
mentions a node that is not listed: it is drawn among all of these.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from lm_latent_eval.compiled import Floats, Integers, compiled
from lm_latent_eval.inference.cuts import Cut, Thinned
from lm_latent_eval.inference.pruning import CHOICE_LANE, best, thin
from lm_latent_eval.inference.sorted_lists import (
    ROUNDING,
    Places,
    choices_at,
    listed,
    sorted_lists,
)
from lm_latent_eval.inference.table_search import (
    Kept,
    Rule,
    beginning,
    each_its_own,
    rules,
    together,
    with_links,
)
from lm_latent_eval.models.kglm.candidates import others_than
from lm_latent_eval.models.kglm.chain import DERIVED, NEW
from lm_latent_eval.models.kglm.choices import (
    Outlook,
    Pasts,
    choices,
    draw_walks,
    intervals,
    keys,
    last_mention,
    log_q_walks,
    parents_of,
    pasts,
)
from lm_latent_eval.models.kglm.outlooks import Outlooks, WalkTables
from lm_latent_eval.models.kglm.tables import (
    Tables,
    TextScores,
    drawn_derived,
    drawn_new,
    with_nodes,
)

AT_ONCE = 32
"""The most words of a text that are searched in one call, which nothing interrupts."""


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

    @property
    def incomplete(self) -> bool:
        """Whether a walk may mention nodes that are not listed."""
        tables, other = self.tables, self.tables.other
        hidden = np.isfinite(tables.new[:, other]).any()
        return bool(hidden or (tables.links.tail == other).any())

    def list_all(self) -> None:
        """List all nodes of the graph."""
        num_nodes = self.scores.graph.num_nodes
        left = others_than(torch.from_numpy(self.tables.node), num_nodes)
        if len(left):
            self.renew(with_nodes(self.tables, self.scores, left, listed=True))

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
            parents = parents_of(self.tables.parent[t], of.window[of.which[walk[i]]])
            node[i], log_share[i] = drawn_derived(
                self.tables, self.scores.graph, t, parents, u[i]
            )
        return self.states(node), log_share


@dataclass
class DrawnWalks(TextWalks):
    """Walks over one text by its twist."""

    def draw(
        self, start: int, history: Tensor, u: Floats
    ) -> tuple[Integers, Floats, Floats]:
        """Draw the steps of some tokens.

        Args:
            start: The first token.
            history: Nodes of the tokens before, (K, cutoff).
            u: Random numbers, (T, K, 2): for the choice, and for a node where that
                stands for several.

        Returns:
            Mention types and nodes, (2, K, T), log q and log p, nats, (K,) each.
        """
        windows = self.states(history)
        drawn = np.zeros((2, *u.shape[:2]), np.int64)
        sums, t, end = np.zeros((2, len(windows))), start, start + len(u)
        first = np.ascontiguousarray(u[..., 0])
        while t < end:
            (outlook,), tables = self.outlooks, self.tables
            t, of = draw_walks(
                tables, outlook, start, (t, end), windows, first, drawn, sums
            )
            mention, state = drawn[:, t - 1 - start]
            (several,) = (state == tables.other).nonzero()
            if len(several):
                numbers = u[t - 1 - start, several, 1]
                state[several], log_share = self.drawn(
                    t - 1, of, several, mention[several], numbers
                )
                word = self.tables.word[t - 1]
                sums[:, several] += log_share
                sums[1, several] += word[state[several]] - word[tables.other]
                windows[several, -1] = state[several]
        drawn[1] = self.tables.node[drawn[1]]
        return drawn.swapaxes(1, 2), sums[0], sums[1]

    def log_q(
        self, start: int, history: Tensor, mention: Tensor, node: Tensor
    ) -> Floats:
        """Return log q of given walks (K, T) after nodes (K, cutoff), nats, (K,).

        They must be the first that these tables are asked for: all their nodes are
        listed.
        """
        self.states(torch.cat([history, node], 1), listed=True)
        given = torch.stack([mention, torch.from_numpy(self.states(node))])
        (outlook,) = self.outlooks
        steps = np.ascontiguousarray(given.mT.numpy())
        windows = self.states(history)
        return log_q_walks(self.tables, outlook, start, windows, steps)

    def log_twist(self, t: int, history: Tensor) -> Floats:
        """Guess log p of the text from t on after nodes (K, cutoff), nats, (K,)."""
        windows = self.states(history)
        last = np.array([last_mention(window) for window in windows])
        return self.whole.log_twist(self.text, t, last, windows[:, -1] > 0)


# -- searches ------------------------------------------------------------------------


def search(
    whole: WalkTables,
    history: Tensor,
    length: Sequence[int],
    num_steps: int,
    cut: Cut,
    score: Tensor | None,
) -> tuple[tuple[Tensor, ...], ...]:
    """Search the walks of texts, as ``together`` returns them.

    Args:
        whole: Of texts, or of pieces and what follows them.
        history: Nodes before the texts, on the host, (B, K, cutoff).
        length: How many tokens of each text are searched.
        num_steps: T, the most.
        cut: What chooses which walks go on.
        score: Of the walks before the texts, on the host, nats, (B, K), in as many
            groups as there are; None: each group begins with the only one.
    """
    found = []
    for b, rule in enumerate(rules(cut, len(length), num_steps)):
        ranked, every = whole.searched(b), _may_list_all(whole.scores, length[b], cut)
        if every:
            ranked = ranked[0], *ranked[::2]
        walks = TextWalks(whole, b, whole.tables[b], ranked)
        if every:
            walks.list_all()
        # Walks of groups that rank alike may share their choices.
        first = [ranked.index(of) for of in ranked]
        rule = rule._replace(kind=np.array(first)[rule.kind])
        weights = None if score is None else score[b].numpy()
        begun, kept = beginning(rule, weights, length[b], num_columns=2)
        before = history[b, torch.from_numpy(begun)]
        found.append((begun, _searched(walks, before, rule, length[b], kept)))
    return together(found, score, num_steps)


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


def _searched(
    walks: TextWalks, history: Tensor, rule: Rule, num_tokens: int, kept: Kept
) -> Kept:
    """Search a text, going on from the nodes before it, (H, cutoff)."""
    windows, t = walks.states(history), 0
    other, incomplete = walks.tables.other, walks.incomplete
    while t < num_tokens:
        tables, ranked = walks.tables, walks.outlooks
        outlooks = ranked[0], ranked[1], ranked[2]
        tokens = t, min(t + AT_ONCE, num_tokens)
        t, kept, windows, of = search_walks(
            tables, outlooks, rule, walks.whole.normalized, tokens, windows, kept
        )
        (several,) = (windows[:, -1] == other).nonzero()
        if len(several):
            links = kept.links[:, kept.ends[-1] - len(windows) : kept.ends[-1]]
            u = each_its_own(rule.uniforms[t - 1, :, CHOICE_LANE], kept.first, several)
            walk, mention, _ = links[:, several]
            state, log_share = walks.drawn(t - 1, of, walk, mention, u)
            links[2, several] = windows[several, -1] = state
            word = walks.tables.word[t - 1]
            kept.log_w[1, several] += log_share + word[state] - word[other]
            kept.log_w[2, several] -= log_share
    kept.links[2] = walks.tables.node[kept.links[2]]
    return kept._replace(cut=kept.cut | (incomplete and num_tokens > 0))


@compiled
def search_walks(
    tables: Tables,
    outlooks: tuple[Outlook, Outlook, Outlook],
    rule: Rule,
    normalized: bool,
    tokens: tuple[int, int],
    windows: Integers,
    kept: Kept,
) -> tuple[int, Kept, Integers, Pasts]:
    """Search walks until one has a state that stands for several nodes.

    Args:
        tables: Of the text.
        outlooks: What ranks the walks of each kind of group.
        rule: What chooses which walks go on.
        normalized: Whether walks are ranked by log q.
        tokens: The first to be searched, and one past the last.
        windows: States before, (N, cutoff).
        kept: The walks so far.

    Returns:
        The token after the last one that was searched, the walks, their last states,
        and the pasts before the last token.
    """
    t, end = tokens
    width, fewest, share, _ = rule.places
    while True:
        of = pasts(tables, windows, np.repeat(rule.kind, np.diff(kept.first)))
        found = choices(tables, outlooks, t, of, normalized)
        if not rule.unbiased:
            for i in range(len(found.state)):
                if found.state[i] == tables.other:
                    found.value[i] = -np.inf
        log_w = kept.log_w[0] + kept.log_w[1] + kept.log_w[2]
        runs = sorted_lists(found.first, found.value)
        lists = intervals(found, of, log_w, kept.first)
        places = Places(width, fewest, share, kept.whole)
        items, whole = listed(runs, lists, places, rule.unbiased)
        if rule.unbiased:
            choice = choices_at(runs, lists, items.interval, items.place)
            key = keys(tables, of, found, items.interval // 2, choice)
            places = Places(width, fewest, share, whole)
            survived = thin(runs, lists, items, key, places, rule.uniforms[t])
            cut = kept.cut | ~whole
        else:
            survived = best(items, width)
            cut = kept.cut | (np.diff(survived.first) >= width)
        number = len(survived.interval)
        choice = choices_at(runs, lists, survived.interval, survived.place)
        value = found.value if normalized else found.log_p
        log_w, decided = np.empty((3, number)), np.empty((2, number), np.int64)
        after, stop = np.empty((number, windows.shape[1]), np.int64), False
        for n in range(number):
            k, i = survived.interval[n] // 2, choice[n]
            d, s = of.which[k], found.state[i]
            log_here = value[i] - found.log_z[d]
            if i >= found.first[len(of.window)]:
                log_here += found.new[d]
            log_w[0, n] = kept.log_w[0, k]
            log_w[1, n] = kept.log_w[1, k] + log_here
            log_w[2, n] = kept.log_w[2, k] + survived.log_f[n]
            decided[0, n], decided[1, n] = found.mention[i], s
            after[n, :-1], after[n, -1] = windows[k, 1:], s
            stop = stop or s == tables.other
        kept = Kept(survived.first, log_w, whole, cut, kept.ends, kept.links)
        kept = with_links(kept, survived.interval // 2, decided)
        windows, t = after, t + 1
        if stop or t == end:
            return t, kept, windows, of
