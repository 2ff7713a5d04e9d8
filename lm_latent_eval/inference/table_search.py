"""Searches of models that score a text once: what each begins with, and what it found.

What no latent changes is looked up in tables, so texts are searched one by one, on the
host, each in all of its groups at once: the passes of a filter, or one beam. Steps are
taken in compiled loops, many a call: a model lists its choices, ``sorted_lists`` and
``pruning`` choose among them, and the model goes on with what survives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lm_latent_eval.compiled import Booleans, Floats, Integers, compiled
from lm_latent_eval.inference.cuts import Cut, Thinned
from lm_latent_eval.inference.pruning import GOLDEN
from lm_latent_eval.inference.sorted_lists import Places


class Rule(NamedTuple):
    """What chooses which histories of a text go on."""

    places: Places
    kind: Integers
    """Kind of each group: 0 of the first ones, 1 of those that may list half of what
    these may, where that is limited, 2 of those with another look-ahead, (G,)."""
    uniforms: Floats
    """Random numbers of each step, (T, G, 4)."""
    unbiased: bool
    """Whether to thin, or to keep the best."""


class Kept(NamedTuple):
    """N histories that are kept, group after group, and what led to them."""

    first: Integers
    """Index of each group's first history, and the end, (G + 1,)."""
    log_w: Floats
    """Log p before the text, log p of latents and text, and log of one over the
    probability to survive, nats, (3, N)."""
    whole: Booleans
    """Whether all choices of a group have fitted so far, (G,)."""
    cut: Booleans
    """Whether anything may have been left out, (G,)."""
    ends: Integers
    """Ends of the survivors of each step among all, (t,)."""
    links: Integers
    """Histories that the survivors of all steps continue, and what each decided, with
    room for more, (1 + columns, M)."""


def rules(cut: Cut, num_texts: int, num_steps: int) -> list[Rule]:
    """Return what each of B texts of up to T steps is searched by."""
    width, groups = np.array(cut.widths), cut.groups
    numbers = groups - cut.num_narrow - cut.num_checks, cut.num_narrow, cut.num_checks
    kind = np.repeat(np.arange(3), numbers)
    uniforms = np.zeros((num_texts, num_steps, groups, 4))
    if not isinstance(cut, Thinned):
        nothing = np.zeros(groups)
        places = Places(width, width, nothing, nothing > 0)
        return [Rule(places, kind, u, False) for u in uniforms]
    for t in range(num_steps):
        uniforms[:, t] = cut.uniforms(t).numpy()
    columns = (x.numpy() for x in (cut.fewest, cut.worth, cut.whole))
    rows = zip(*columns, uniforms, strict=True)
    return [Rule(Places(width, *row), kind, u, True) for *row, u in rows]


def beginning(
    rule: Rule, score: Floats | None, num_steps: int, num_columns: int
) -> tuple[Integers, Kept]:
    """Return the histories that a text begins with, and what is kept of them.

    Args:
        rule: Of the text.
        score: Of the histories before it, in as many groups as there are, nats, (K,);
            None: each group begins with the only one.
        num_steps: How many follow. Of a text that does not go on the best are kept.
        num_columns: How many integers a decision is.
    """
    groups = len(rule.kind)
    history, group = np.zeros(groups, np.int64), np.arange(groups + 1)
    if score is not None:
        table = score.reshape(groups, -1)
        goes_on = table > -np.inf
        if num_steps == 0:
            place = (-table).argsort(1, kind="stable").argsort(1)
            goes_on &= place < rule.places.width[:, None]
        (history,) = goes_on.flatten().nonzero()
        group = np.append(0, goes_on.sum(1).cumsum())
    log_w = np.zeros((3, len(history)))
    if score is not None:
        log_w[0] = score[history]
    whole = rule.places.whole
    cut = ~whole if rule.unbiased else np.diff(group) > rule.places.width
    nothing = np.zeros(0, np.int64), np.zeros((1 + num_columns, 0), np.int64)
    return history, Kept(group, log_w, whole, cut, *nothing)


def each_its_own(u: Floats, first: Integers, some: Integers) -> Floats:
    """Spread the number of each group over its survivors, for some of these."""
    group = np.searchsorted(first, some, "right") - 1
    spread: Floats = (u[group] + (some - first[group]) * GOLDEN) % 1.0
    return spread


@compiled
def with_links(kept: Kept, history: Integers, decided: Integers) -> Kept:
    """Add the links of a step: which history survivors continue, and decisions."""
    at = kept.ends[-1] if len(kept.ends) > 0 else 0
    end, links = at + len(history), kept.links
    if end > links.shape[1]:
        links = np.zeros((len(links), 2 * end), np.int64)
        links[:, :at] = kept.links[:, :at]
    links[0, at:end], links[1:, at:end] = history, decided
    ends = np.append(kept.ends, end)
    return Kept(kept.first, kept.log_w, kept.whole, kept.cut, ends, links)


@compiled
def _traced_back(kept: Kept) -> tuple[Integers, Integers]:
    """Follow histories to what they decided at each step, and where they began."""
    number, num_steps = kept.log_w.shape[1], len(kept.ends)
    origin = np.arange(number)
    columns = np.zeros((len(kept.links) - 1, number, num_steps), np.int64)
    for t in range(num_steps - 1, -1, -1):
        at = kept.ends[t - 1] if t > 0 else 0
        for n in range(number):
            for c in range(len(columns)):
                columns[c, n, t] = kept.links[1 + c, at + origin[n]]
            origin[n] = kept.links[0, at + origin[n]]
    return columns, origin


def together(
    found: Sequence[tuple[Integers, Kept]], score: Tensor | None, num_steps: int
) -> tuple[tuple[Tensor, ...], ...]:
    """Return what was found of B texts of up to T steps, K histories each.

    Args:
        found: Of each text the histories that it began with, and what is kept.
        score: Of the histories before the texts, on the host, nats, (B, K').
        num_steps: T.

    Returns:
        The columns of latents, (B, K, T) each. Then log p + log f so far, the history
        that each continues, log p and log f, (B, K) each, and what was cut, (B, G).
        Places that are left over come last in a group, and have a log f of ``-inf``.
    """
    groups, num_columns = len(found[0][1].cut), len(found[0][1].links) - 1
    size = max(1, *(int(np.diff(kept.first).max()) for _, kept in found))
    shape = len(found), groups * size
    columns = np.zeros((num_columns, *shape, num_steps), int)
    origin, log_p, log_f = np.zeros(shape, int), np.zeros(shape), np.zeros(shape)
    log_f[:] = -np.inf
    for b, (history, kept) in enumerate(found):
        gap = np.arange(groups) * size - kept.first[:-1]
        place = np.arange(kept.first[-1]) + np.repeat(gap, np.diff(kept.first))
        decided, begun = _traced_back(kept)
        columns[:, b, place, : decided.shape[2]] = decided
        origin[b, place] = history[begun]
        _, log_p[b, place], log_f[b, place] = kept.log_w
    total, before = torch.from_numpy(log_p + log_f), torch.from_numpy(origin)
    if score is not None:
        total = total + score.gather(1, before)
    was_cut = np.stack([kept.cut for _, kept in found])
    log_p_and_f = (torch.from_numpy(x) for x in (log_p, log_f, was_cut))
    return tuple(map(torch.from_numpy, columns)), (total, before, *log_p_and_f)
