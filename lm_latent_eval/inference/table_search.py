"""Searches of models that score a text once: lists and pruning in compiled loops.

What no latent changes is looked up in tables, so texts are searched one by one, on the
host, each in all of its groups at once: the passes of a filter, or one beam. A model
lists the choices of a step, and keys those that may be worth a place by themselves; it
does not know who prunes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from lm_latent_eval.compiled import Booleans, Floats, Integers, Keys
from lm_latent_eval.inference.cuts import (
    CHOICE_LANE,
    CUT_LANE,
    GRID,
    MERGE_LANE,
    Cut,
    Thinned,
)
from lm_latent_eval.inference.pruning import (
    GOLDEN,
    Intervals,
    Places,
    best,
    listed,
    sorted_lists,
    thin,
)


class Listing(NamedTuple):
    """All choices of a step, in lists that histories share."""

    first: Integers
    """Index of the first place of each list, and the end, (L + 1,)."""
    value: Floats
    """Ranks of choices, but for an offset, nats, (N,)."""
    intervals: Intervals
    """Intervals that each group chooses from."""
    several: bool
    """Whether a choice may stand for several."""


class Taken(NamedTuple):
    """What N survivors of a step decided."""

    history: Integers
    """Index of the history that each continues, (N,)."""
    columns: Integers
    """The decisions, (columns, N)."""
    log_p: Floats
    """log p(z_t, x_t | the history), nats, (N,)."""
    log_f: Floats
    """Minus the log of the probability that it was drawn in place of a choice that
    stood for several, nats, (N,)."""


class TextSteps(Protocol):
    """Steps of one text, which keeps its histories."""

    @property
    def num_steps(self) -> int: ...

    @property
    def num_columns(self) -> int:
        """How many integers a decision is."""
        ...

    def begin(self, history: Integers, kind: Integers) -> None:
        """Begin with some of the histories before the text.

        Args:
            history: Which, group after group, (H,).
            kind: 1 of groups that may list half of what the first ones (0) may, where
                that is limited; 2 of those ranked by another look-ahead, (G,).
        """
        ...

    def choices(self, t: int, log_w: Floats, group: Integers) -> Listing:
        """List all choices, given what histories weigh and where groups begin."""
        ...

    def keys(self, interval: Integers, choice: Integers) -> Keys:
        """Return numbers that are equal where everything goes on alike.

        Args:
            interval: Of the listing, which tells the history, (n,).
            choice: From the list of that interval, (n,).
        """
        ...

    def take(
        self, interval: Integers, choice: Integers, group: Integers, u: Floats
    ) -> Taken:
        """Go on with what survived.

        Args:
            interval: Of the listing, (N,).
            choice: From the list of that interval, (N,).
            group: Where the survivors of each group begin, and the end, (G + 1,).
            u: A number of (0, 1) for each group, which draws where choices stood for
                several (``each_its_own``).
        """
        ...


class FoundText(NamedTuple):
    """Latents of one text that a search has kept, group after group."""

    first: Integers
    """Index of each group's first history, and the end, (G + 1,)."""
    columns: Integers
    """(columns, N, T)."""
    origin: Integers
    """Index of the history before the piece that each continues, (N,)."""
    log_p: Floats
    """log p of latents and text, nats, (N,)."""
    log_f: Floats
    """Log of one over the probability to survive, (N,)."""
    cut: Booleans
    """Whether anything may have been left out, (G,)."""


class Found(NamedTuple):
    """Latents of B texts, K each; places that are left over come last in a group."""

    columns: tuple[Tensor, ...]
    """(B, K, T) each."""
    score: Tensor
    """log p + log f so far, (B, K) float64; ``-inf`` of what is left over."""
    origin: Tensor
    log_p: Tensor
    log_f: Tensor
    cut: Tensor
    """(B, G)."""


def search(
    texts: Sequence[TextSteps], cut: Cut, score: Tensor | None, num_steps: int
) -> Found:
    """Search texts one by one.

    Args:
        texts: Their steps.
        cut: What chooses which histories go on.
        score: Of the histories before the texts, on the host, nats, (B, K), in as many
            groups as there are; None: each group begins with the only one.
        num_steps: T, of the longest text.
    """
    rules = _rules(cut, len(texts), num_steps)
    found = [
        _search_text(steps, rule, None if score is None else score[b].numpy())
        for b, (steps, rule) in enumerate(zip(texts, rules, strict=True))
    ]
    groups = cut.groups
    size = max(1, *(int(np.diff(each.first).max()) for each in found))
    columns = np.zeros((texts[0].num_columns, len(texts), groups, size, num_steps), int)
    shape = len(texts), groups, size
    origin, log_p = np.zeros(shape, int), np.zeros(shape)
    log_f, total = np.full(shape, -np.inf), np.full(shape, -np.inf)
    for b, each in enumerate(found):
        for g in range(groups):
            mine = slice(each.first[g], each.first[g + 1])
            number = mine.stop - mine.start
            columns[:, b, g, :number, : each.columns.shape[2]] = each.columns[:, mine]
            origin[b, g, :number] = each.origin[mine]
            log_p[b, g, :number] = each.log_p[mine]
            log_f[b, g, :number] = each.log_f[mine]
            total[b, g, :number] = each.log_p[mine] + each.log_f[mine]
    so_far, begun, log_joint, weight = (
        torch.from_numpy(part).flatten(1, 2) for part in (total, origin, log_p, log_f)
    )
    if score is not None:
        so_far = so_far + score.gather(1, begun)
    decided = tuple(torch.from_numpy(part).flatten(1, 2) for part in columns)
    was_cut = torch.from_numpy(np.stack([each.cut for each in found]))
    return Found(decided, so_far, begun, log_joint, weight, was_cut)


class _Rule(NamedTuple):
    """What chooses which histories of a text go on."""

    places: Places
    kind: Integers
    """Kind of each group, (G,)."""
    uniforms: Floats | None
    """Random numbers of each step, (T, G, 4); None: the best go on."""


def _rules(cut: Cut, num_texts: int, num_steps: int) -> list[_Rule]:
    """Return what each text is searched by."""
    width, groups = np.array(cut.widths), cut.groups
    numbers = groups - cut.num_narrow - cut.num_checks, cut.num_narrow, cut.num_checks
    kind = np.repeat(np.arange(3), numbers)
    if not isinstance(cut, Thinned):
        nothing = np.zeros(groups)
        places = Places(width, width, nothing, nothing > 0)
        return [_Rule(places, kind, None)] * num_texts
    uniforms = np.zeros((num_steps, num_texts, groups, 4))
    for t, table in enumerate(uniforms):
        table[:] = cut.uniforms(t).numpy()
    columns = (x.numpy() for x in (cut.fewest, cut.worth, cut.whole))
    rows = zip(*columns, uniforms.swapaxes(0, 1), strict=True)
    return [_Rule(Places(width, *row), kind, u) for *row, u in rows]


def _search_text(steps: TextSteps, rule: _Rule, score: Floats | None) -> FoundText:
    """Search one text in all groups."""
    places, unbiased = rule.places, rule.uniforms is not None
    groups = len(places.width)
    history, group = np.zeros(groups, np.int64), np.arange(groups + 1)
    if score is not None:
        (history,) = (score > -np.inf).nonzero()
        ends = np.arange(groups + 1) * (len(score) // groups)
        group = np.searchsorted(history, ends)
        if steps.num_steps == 0:
            history, group = _best_histories(history, group, score, places.width)
    steps.begin(history, rule.kind)
    before = np.zeros(len(history)) if score is None else score[history]
    log_p, log_f = np.zeros(len(history)), np.zeros(len(history))
    left_out = ~places.whole if unbiased else np.diff(group) > places.width
    links: list[Taken] = []
    for t in range(steps.num_steps):
        listing = steps.choices(t, before + log_p + log_f, group)
        runs, chosen_from = (
            sorted_lists(listing.first, listing.value),
            listing.intervals,
        )
        items, whole = listed(runs, chosen_from, places, unbiased)
        if rule.uniforms is None:
            u = np.zeros((groups, 4))
            kept = best(items, places.width, GRID)
            cut_now = np.diff(kept.first) >= places.width
        else:
            u, places = rule.uniforms[t], places._replace(whole=whole)
            key = steps.keys(items.interval, runs.choices_at(chosen_from, items))
            cut_and_merge = np.ascontiguousarray(u[:, [CUT_LANE, MERGE_LANE]])
            kept = thin(runs, chosen_from, items, key, places, cut_and_merge)
            cut_now = ~whole
        left_out = left_out | cut_now | listing.several
        choice = runs.choices_at(chosen_from, kept)
        taken = steps.take(kept.interval, choice, kept.first, u[:, CHOICE_LANE])
        links.append(taken)
        before = before[taken.history]
        log_p = log_p[taken.history] + taken.log_p
        log_f = log_f[taken.history] + kept.log_f + taken.log_f
        group = kept.first
    columns, origin = _traced_back(steps.num_columns, links, len(log_p))
    return FoundText(group, columns, history[origin], log_p, log_f, left_out)


def _best_histories(
    history: Integers, group: Integers, score: Floats, width: Integers
) -> tuple[Integers, Integers]:
    """Return the W best histories of each group of a text that does not go on."""
    kept = []
    for g, most in enumerate(width):
        mine = history[group[g] : group[g + 1]]
        order = np.argsort(-score[mine], kind="stable")[:most]
        kept.append(np.sort(mine[order]))
    return np.concatenate(kept), np.cumsum([0, *map(len, kept)])


def each_its_own(u: Floats, first: Integers, some: Integers) -> Floats:
    """Spread the number of each group over its survivors, for some of these."""
    group = np.searchsorted(first, some, "right") - 1
    spread: Floats = (u[group] + (some - first[group]) * GOLDEN) % 1.0
    return spread


def _traced_back(
    num_columns: int, links: Sequence[Taken], number: int
) -> tuple[Integers, Integers]:
    """Follow survivors to what they decided at each step, and where they began."""
    last: Integers = np.arange(number)
    columns = np.zeros((num_columns, number, len(links)), np.int64)
    for t in reversed(range(len(links))):
        columns[..., t] = links[t].columns[:, last]
        last = links[t].history[last]
    return columns, last
