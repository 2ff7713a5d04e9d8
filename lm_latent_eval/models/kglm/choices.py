"""Choices of KGLM's walks at a token, listed in compiled loops over tables of a text.

A choice is a mention type and a state: a node, or one state for all nodes that are not
listed. What most NEW mentions are worth is the same for all walks but for an offset, so
it is one list, which they share. A choice is worth its log p and what an outlook adds.
Of a search that is log p of its word, what is expected of the text after it, and what
the entity is worth as a parent of later mentions; of a proposal its twist: walks are
drawn in proportion to what choices are worth.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from lm_latent_eval.compiled import Floats, Integers, Keys, compiled
from lm_latent_eval.inference.pruning import Intervals
from lm_latent_eval.models.kglm.chain import (
    CONTINUE,
    DERIVED,
    NEW,
    NONE,
    log_types,
    types_at,
)
from lm_latent_eval.models.kglm.parent_gains import Worth, gains_at
from lm_latent_eval.models.kglm.tables import Tables, weigh_links

OUTLOOKS = 3
"""Ways to rank the choices of a search: those of its groups (``table_search``)."""
LITTLE = 3.0
"""Nats. NEW mentions of entities that are worth more as parents are not shared: walks
that remember one already gain less."""


class Outlook(NamedTuple):
    """What choices are worth beside log p of the walk, nats."""

    mention: Floats
    """Beginning a mention of each state, (T, M)."""
    going_on: Floats
    """Going on with one, (T, M)."""
    none: Floats
    """Mentioning nothing after a last mention of each state, (T, S + 1)."""
    worth: Worth
    """States as parents of later mentions."""


class Pasts(NamedTuple):
    """The different pasts of H walks: walks with equal ones choose alike."""

    which: Integers
    """The past of each walk, (H,)."""
    window: Integers
    """States of the ``cutoff`` tokens before, each only where it was mentioned last,
    (D, cutoff)."""
    outlook: Integers
    """Index of the outlook that ranks each, (D,)."""
    after: Keys
    """The key of each after a token that mentions nothing, (D,)."""


class Choices(NamedTuple):
    """What walks may choose, in lists: of each past, then those that are shared.

    These are NEW entities by each outlook, but for log p of the mention type.
    """

    first: Integers
    """Index of the first choice of each list, and the end, (D + 4,)."""
    mention: Integers
    """(N,)."""
    state: Integers
    """(N,)."""
    log_p: Floats
    """log p of the choice and its word, (N,)."""
    value: Floats
    """Value of each choice, (N,)."""
    new: Floats
    """log p of introducing anything after each past, (D,)."""
    log_z: Floats
    """Log of the sum of what all choices of a past are worth, or 0, (D,)."""
    gain: Floats
    """Value of each past's entities as parents of later mentions, nats, (D,)."""


@compiled
def pasts(tables: Tables, windows: Integers, outlook: Integers) -> Pasts:
    """Find the different pasts of walks (H, cutoff), each ranked by an outlook."""
    code, number = tables.code, len(windows)
    seen = np.full(code.shape[1], -1)
    key = np.zeros(number, np.uint64)
    for k in range(number):
        key[k] = window_key(code, windows[k], seen, k) + np.uint64(outlook[k])
    order = np.argsort(key, kind="mergesort")
    which, first, found = np.zeros(number, np.int64), np.zeros(number, np.int64), 0
    for i in range(number):
        if i == 0 or key[order[i]] != key[order[i - 1]]:
            first[found] = order[i]
            found += 1
        which[order[i]] = found - 1
    window = np.zeros((found, windows.shape[1]), np.int64)
    after = np.zeros(found, np.uint64)
    for d in range(found):
        window[d] = without_repetitions(windows[first[d]], seen, number + d)
        for i in range(1, windows.shape[1]):
            if window[d, i] > 0:
                after[d] += code[i - 1, window[d, i]]
    return Pasts(which, window, outlook[first[:found]], after)


@compiled
def window_key(code: Keys, window: Integers, seen: Integers, mark: int) -> int:
    """Return the key of a walk.

    What follows depends on the node mentioned last, if that was just now, and on which
    others were mentioned in the window, each where it was mentioned last. A key is the
    sum of what each adds (``Tables.code``), modulo 2^64. ``seen`` holds a number a
    state: states that were seen get ``mark``.
    """
    cutoff = len(window)
    key: int = code[cutoff, window[cutoff - 1]]
    for i in range(cutoff - 1, -1, -1):
        s = window[i]
        if s > 0 and seen[s] != mark:
            seen[s] = mark
            key += code[i, s]
    return key


@compiled
def key_after(code: Keys, own: int, window: Integers, state: int) -> int:
    """Return the key of a walk after a mention of a state, or after none (0).

    Args:
        code: Of the tables.
        own: The key of what it remembers but for its previous token.
        window: States before, each only where it was mentioned last.
        state: What is mentioned.
    """
    key, cutoff = own, len(window)
    if state > 0:
        for i in range(1, cutoff):
            if window[i] == state:
                key -= code[i - 1, state]
        key += code[cutoff - 1, state] + code[cutoff, state]
    return key


@compiled
def without_repetitions(window: Integers, seen: Integers, mark: int) -> Integers:
    """Return a window that has each state only where it was mentioned last.

    ``seen`` is as ``window_key`` has it.
    """
    last = window.copy()
    for i in range(len(window) - 1, -1, -1):
        if window[i] > 0:
            if seen[window[i]] == mark:
                last[i] = 0
            seen[window[i]] = mark
    return last


@compiled
def parents_of(scores: Floats, window: Integers) -> tuple[Integers, Floats]:
    """Return the states that a walk may derive from, and their probabilities.

    Args:
        scores: Of states as parents at the token, nats, (M,).
        window: States before, each only where it was mentioned last.
    """
    state, weight, number = np.empty(len(window), np.int64), np.empty(len(window)), 0
    peak = -np.inf
    for s in window:
        if s > 0 and scores[s] > -np.inf:
            state[number], weight[number] = s, scores[s]
            peak, number = max(peak, weight[number]), number + 1
    total = 0.0
    for i in range(number):
        weight[i] = math.exp(weight[i] - peak)
        total += weight[i]
    for i in range(number):
        weight[i] /= total
    return state[:number], weight[:number]


@compiled
def last_mention(window: Integers) -> int:
    """Return the last state of a window that is a mention, or 0."""
    for s in window[::-1]:
        if s > 0:
            return int(s)
    return 0


@compiled
def choices(
    tables: Tables,
    outlooks: tuple[Outlook, Outlook, Outlook],
    t: int,
    of: Pasts,
    normalized: bool,
) -> Choices:
    """List what may follow each past at token t.

    Args:
        tables: Of the text.
        outlooks: By which pasts are ranked.
        t: The token.
        of: The pasts.
        normalized: Whether to sum what the choices of each past are worth.
    """
    number, size, other = len(of.window), tables.word.shape[1], tables.other
    room = number * 16 + OUTLOOKS * size
    mention, state = np.zeros(room, np.int64), np.zeros(room, np.int64)
    log_p, value = np.zeros(room), np.zeros(room)
    first = np.zeros(number + OUTLOOKS + 1, np.int64)
    log_new, log_z, gain = np.zeros(number), np.zeros(number), np.zeros(number)
    cutoff, stays = of.window.shape[1], np.zeros(size, np.int64)
    used = np.arange(OUTLOOKS) == 0
    used[of.outlook] = True
    gains = np.empty((OUTLOOKS, cutoff + 1, size))
    ahead, none = np.empty((OUTLOOKS, 2, size)), np.empty((OUTLOOKS, other + 1))
    alone = np.empty((OUTLOOKS, size), np.int64)
    num_alone = np.zeros(OUTLOOKS, np.int64)
    for o in range(OUTLOOKS):
        if not used[o]:
            continue
        outlook = outlooks[o]
        gains[o] = gains_at(outlook.worth, t, cutoff, size)
        ahead[o, 0], ahead[o, 1] = outlook.mention[t], outlook.going_on[t]
        none[o] = outlook.none[t]
        for s in range(size):
            if gains[o, cutoff, s] > LITTLE:
                alone[o, num_alone[o]] = s
                num_alone[o] += 1
    parents_matter = len(outlooks[0].worth.known) > 0
    every_types = types_at(tables.mention[t], tables.begins)
    mass, reached = np.zeros(size), np.empty(size, np.int64)
    links, n = tables.links, 0
    for d in range(number):
        if n + (OUTLOOKS + 1) * size > room:
            room = 2 * room
            mention, state = _grown(mention, room), _grown(state, room)
            log_p, value = _grown(log_p, room), _grown(value, room)
        o, window = of.outlook[d], of.window[d]
        if parents_matter:
            for i in range(1, cutoff):
                if window[i] > 0:
                    gain[d] += gains[o, i, window[i]]
                    stays[window[i]] = i
        previous, latest = window[-1], min(last_mention(window[1:]), other)
        parent, weight = parents_of(tables.parent[t], window)
        types = every_types[min(len(parent), 1), min(previous, 1)]
        mention[n], state[n], log_p[n] = NONE, 0, types[NONE]
        value[n] = types[NONE] + none[o, latest]
        n += 1
        if previous > 0:
            mention[n], state[n], log_p[n] = CONTINUE, previous, types[CONTINUE]
            value[n] = types[CONTINUE] + ahead[o, 1, previous]
            n += 1
        found = 0
        for i in range(len(parent)):
            c = parent[i]
            if math.isnan(links.log_z[t, c]):
                weigh_links(links, tables.relation, t, c)
            for link in range(links.start[c], links.start[c + 1]):
                s, more = links.tail[link], weight[i] * links.share[t, link]
                if mass[s] == 0.0 and more > 0.0:
                    reached[found] = s
                    found += 1
                mass[s] += more
        for s in reached[:found]:
            if ahead[o, 0, s] > -np.inf:
                mention[n], state[n] = DERIVED, s
                log_p[n] = types[DERIVED] + math.log(mass[s])
                value[n] = log_p[n] + ahead[o, 0, s]
                n += 1
            mass[s] = 0.0
        for s in alone[o, : num_alone[o]]:
            mention[n], state[n], log_p[n] = NEW, s, types[NEW] + tables.new[t, s]
            value[n] = log_p[n] + ahead[o, 0, s]
            n += 1
        if parents_matter:
            for i in range(first[d], n):
                s = state[i]
                value[i] += gains[o, cutoff, s] - gains[o, stays[s], s]
            for s in window:
                stays[s] = 0
        log_new[d], first[d + 1] = types[NEW], n
    for o in range(OUTLOOKS):
        for s in range(1, tables.num_listed):
            if used[o] and gains[o, cutoff, s] <= LITTLE:
                mention[n], state[n], log_p[n] = NEW, s, tables.new[t, s]
                value[n] = tables.new[t, s] + ahead[o, 0, s]
                value[n] += gains[o, cutoff, s]
                n += 1
        first[number + 1 + o] = n
    for i in range(n):
        log_p[i] += tables.word[t, state[i]]
    if normalized:
        lists = range(number, number + OUTLOOKS)
        new = [_log_sum(value, first[i], first[i + 1]) for i in lists]
        both_sums = np.empty(2)
        for d in range(number):
            both_sums[0] = _log_sum(value, first[d], first[d + 1])
            both_sums[1] = log_new[d] + new[of.outlook[d]]
            log_z[d] = _log_sum(both_sums, 0, 2)
    return Choices(
        first, mention[:n], state[:n], log_p[:n], value[:n], log_new, log_z, gain
    )


@compiled
def _grown(array: Floats, size: int) -> Floats:
    """Return an array with room for more."""
    more = np.zeros(size, array.dtype)
    more[: len(array)] = array
    return more


@compiled
def _log_sum(value: Floats, begin: int, end: int) -> float:
    """Return the log of the sum of e^value in a range; -inf of nothing."""
    peak, total = -np.inf, 0.0
    for i in range(begin, end):
        peak = max(peak, value[i])
    if peak == -np.inf:
        return peak
    for i in range(begin, end):
        total += math.exp(value[i] - peak)
    return peak + math.log(total)


# -- for searches --------------------------------------------------------------------


@compiled
def intervals(found: Choices, of: Pasts, log_w: Floats, group: Integers) -> Intervals:
    """Return what walks choose from: the list of their past, and a shared one."""
    number, num_pasts = len(of.which), len(of.window)
    run, offset = np.empty(2 * number, np.int64), np.empty(2 * number)
    for k in range(number):
        d = of.which[k]
        run[2 * k], offset[2 * k] = d, log_w[k] - found.log_z[d] + found.gain[d]
        run[2 * k + 1] = num_pasts + of.outlook[d]
        offset[2 * k + 1] = offset[2 * k] + found.new[d]
    return Intervals(2 * group, run, offset)


@compiled
def keys(
    tables: Tables, of: Pasts, found: Choices, walk: Integers, choice: Integers
) -> Keys:
    """Return keys of walks after choices."""
    key, code = np.zeros(len(walk), np.uint64), tables.code
    for i in range(len(walk)):
        d, s = of.which[walk[i]], found.state[choice[i]]
        # What stands for several goes on as nothing else does.
        key[i] = np.uint64(i)
        if s != tables.other:
            key[i] = key_after(code, of.after[d], of.window[d], s)
    return key


# -- for draws and given walks -----------------------------------------------------


@compiled
def _inverted(
    found: Choices, d: int, new: int, peak: float, reached: Floats, u: float
) -> int:
    """Return the choice of a past where the distribution function passes u.

    Args:
        found: All choices.
        d: The past.
        new: The list of NEW entities that it has.
        peak: What the best of those is worth, nats.
        reached: Sums of what they are worth, up to each, over e^peak.
        u: A number of (0, 1).
    """
    last = -1
    for i in range(found.first[d], found.first[d + 1]):
        mass = math.exp(found.value[i] - found.log_z[d])
        if mass > 0:
            last = i
            if u < mass:
                return last
        u -= mass
    introducing = math.exp(found.new[d] + peak - found.log_z[d])
    if introducing == 0.0:
        return last  # which rounding has left
    place = int(np.searchsorted(reached, u / introducing, "right"))
    place = min(place, len(reached) - 1)
    while place > 0 and reached[place] == reached[place - 1]:
        place -= 1
    return int(found.first[new]) + place


@compiled
def draw_walks(
    tables: Tables,
    outlook: Outlook,
    start: int,
    tokens: tuple[int, int],
    windows: Integers,
    u: Floats,
    drawn: Integers,
    sums: Floats,
) -> tuple[int, Pasts]:
    """Draw walks until one has a state that stands for several nodes.

    Args:
        tables: Of the text.
        outlook: The twist.
        start: The token of the first numbers.
        tokens: The first to be drawn, and one past the last.
        windows: States before, to be moved on, (K, cutoff).
        u: Numbers of (0, 1), (T, K).
        drawn: To be written: mention types and states of all tokens, (2, T, K).
        sums: To be added to: log q and log p, (2, K).

    Returns:
        The token after the last one that is drawn, and the pasts before that.
    """
    t, number = tokens[0], len(windows)
    alike = np.zeros(number, np.int64)
    while True:
        of = pasts(tables, windows, alike)
        found = choices(tables, (outlook, outlook, outlook), t, of, True)
        new, stop = len(of.window), False
        value = found.value[found.first[new] :]
        peak = value.max() if len(value) else -np.inf
        reached = np.exp(value - max(peak, -1e300)).cumsum()
        for k in range(number):
            d = of.which[k]
            i = _inverted(found, d, new, peak, reached, u[t - start, k])
            introduced = found.new[d] if i >= found.first[new] else 0.0
            sums[0, k] += found.value[i] + introduced - found.log_z[d]
            sums[1, k] += found.log_p[i] + introduced
            drawn[0, t - start, k] = found.mention[i]
            drawn[1, t - start, k] = found.state[i]
            stop = stop or found.state[i] == tables.other
        _move_on(windows, drawn[1, t - start])
        t += 1
        if stop or t == tokens[1]:
            return t, of


@compiled
def log_q_walks(
    tables: Tables, outlook: Outlook, start: int, windows: Integers, given: Integers
) -> Floats:
    """Return log q of given walks, nats, (K,).

    Args:
        tables: Of the text, whose listed states are all nodes of the walks.
        outlook: The twist.
        start: The first token.
        windows: States before, to be moved on, (K, cutoff).
        given: Mention types and states, (2, T, K).
    """
    number = len(windows)
    alike, log_q = np.zeros(number, np.int64), np.zeros(number)
    for t in range(given.shape[1]):
        of = pasts(tables, windows, alike)
        found = choices(tables, (outlook, outlook, outlook), start + t, of, True)
        for k in range(number):
            d, log_here = of.which[k], -np.inf
            for new in range(2):
                run = len(of.window) if new else d
                for i in range(found.first[run], found.first[run + 1]):
                    if (
                        found.mention[i] == given[0, t, k]
                        and found.state[i] == given[1, t, k]
                    ):
                        log_here = found.value[i] - found.log_z[d]
                        log_here += found.new[d] if new else 0.0
            log_q[k] += log_here
        _move_on(windows, given[1, t])
    return log_q


@compiled
def log_p_walks(
    tables: Tables, only_possible: bool, path: Integers, mention: Integers
) -> Floats:
    """Return log p of given walks, but for their words, nats, (K,).

    Args:
        tables: Of the text, whose states are all nodes of the walks.
        only_possible: Whether types that cannot happen have a probability of zero.
        path: States, ``cutoff`` of them before the text, (K, cutoff + T).
        mention: Types, (K, T).
    """
    number, num_tokens = mention.shape
    cutoff, every = path.shape[1] - num_tokens, not only_possible
    log_p, types = np.zeros(number), np.empty(4)
    seen, mark, links = np.full(tables.word.shape[1], -1), 0, tables.links
    for k in range(number):
        for t in range(num_tokens):
            window, m, s = path[k, t : t + cutoff], mention[k, t], path[k, cutoff + t]
            previous, can_derive = window[-1], every
            for c in window:
                can_derive = can_derive or (c > 0 and tables.parent[t, c] > -np.inf)
            log_types(
                tables.mention[t],
                every or tables.begins,
                can_derive,
                every or previous > 0,
                types,
            )
            log_here = types[m]
            if m == NEW:
                log_here += tables.new[t, s]
            elif m == DERIVED:
                mark, mass = mark + 1, 0.0
                parent, weight = parents_of(
                    tables.parent[t], without_repetitions(window, seen, mark)
                )
                for i in range(len(parent)):
                    c = parent[i]
                    if math.isnan(links.log_z[t, c]):
                        weigh_links(links, tables.relation, t, c)
                    for link in range(links.start[c], links.start[c + 1]):
                        if links.tail[link] == s:
                            mass += weight[i] * links.share[t, link]
                log_here += math.log(mass) if mass > 0 else -np.inf
            if (s > 0) == (m == NONE) or (m == CONTINUE and s != previous):
                log_here = -np.inf
            log_p[k] += log_here
    return log_p


@compiled
def _move_on(windows: Integers, state: Integers) -> None:
    """Append what was mentioned to windows."""
    windows[:, :-1] = windows[:, 1:].copy()
    windows[:, -1] = state
