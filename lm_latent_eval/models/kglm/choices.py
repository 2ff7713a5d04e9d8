"""Choices of KGLM's walks at a token, listed in compiled loops over tables of a text.

A choice is a mention type and a state: a node, or one state for all nodes that are not
listed. What NEW mentions are worth is the same for all walks but for an offset, so it
is one sorted list, of which a walk lists the best. Choices are ranked by log p of walk
and words so far, and what is expected of the text ahead: by the chain after the last
mention, and by what the entities of the walk are worth as parents.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from lm_latent_eval.compiled import compiled
from lm_latent_eval.inference.pruning import (
    Booleans,
    Floats,
    Integers,
    Intervals,
    Items,
    Keys,
    Runs,
    tails,
)
from lm_latent_eval.models.kglm.chain import (
    CONTINUE,
    DERIVED,
    NEW,
    NONE,
    Derivable,
    log_types,
)
from lm_latent_eval.models.kglm.parent_gains import (
    TokensAhead,
    log_gain,
    remember,
    tokens_ahead,
)
from lm_latent_eval.models.kglm.tables import Tables

SLACK = 2.0
"""Nats by which what an entity is worth as a parent may depend on the walk."""


class Outlook(NamedTuple):
    """What a search expects of the text ahead."""

    beta: Floats
    """log p of the text from a token on after a mention of a state (0), or none since
    (1), clamped, (T + 1, 2, S + 1)."""
    derivable: Derivable
    absent: Floats
    """Log p that no mention of a state begins before each token, (T + 1, S)."""
    little: float
    """Nats by which entities must change a token as its parents, to count."""


class Pasts(NamedTuple):
    """The different pasts of H walks: walks with equal ones choose alike."""

    which: Integers
    """The past of each walk, (H,)."""
    window: Integers
    """States of the ``cutoff`` tokens before, each only where it was mentioned last,
    (D, cutoff)."""
    outlook: Integers
    """By which each is ranked, (D,)."""
    after: Keys
    """The key of each after a token that mentions nothing, (D,)."""


class NewEntities(NamedTuple):
    """NEW entities of a token by one outlook, sorted by what they are worth."""

    state: Integers
    """(n,)."""
    value: Floats
    """log p of entity and word, and what is expected after them, (n,)."""
    tail: Floats
    """As ``Runs`` has it, (n,)."""
    gain: Floats
    """What a mention of each state is worth as a parent, coarsely, (M,)."""
    ahead: TokensAhead


class Choices(NamedTuple):
    """What walks may choose, in sorted lists: of each past, then NEW by outlook."""

    runs: Runs
    mention: Integers
    """(N,)."""
    state: Integers
    """(N,)."""
    log_p: Floats
    """log p of the choice and its word; of a NEW one but for its type, (N,)."""
    new: Floats
    """log p of introducing anything after each past, (D,)."""
    gain: Floats
    """What the entities of each past are worth as parents, (D,)."""
    sums: Floats
    """As ``remember`` writes them, (D, J, 2)."""
    has_last: Booleans
    """Likewise, (D, J, LIKELIEST)."""


@compiled
def pasts(tables: Tables, windows: Integers, outlook: Integers) -> Pasts:
    """Find the different pasts of walks (H, cutoff), each ranked by an outlook."""
    number, seen = len(windows), np.full(tables.word.shape[1], -1)
    key = np.zeros(number, np.uint64)
    for k in range(number):
        key[k] = window_key(tables, windows[k], seen, k) + np.uint64(outlook[k])
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
            after[d] += tables.code[i - 1, window[d, i]]
    return Pasts(which, window, outlook[first[:found]], after)


@compiled
def window_key(tables: Tables, window: Integers, seen: Integers, mark: int) -> int:
    """Return the key of a walk.

    What follows depends on the node mentioned last, if that was just now, and on which
    others were mentioned in the window, each where it was mentioned last. A key is the
    sum of what each adds, modulo 2^64. ``seen`` holds a number a state: states that
    were seen get ``mark``.
    """
    cutoff = len(window)
    key: int = tables.code[cutoff, window[cutoff - 1]]
    for i in range(cutoff - 1, -1, -1):
        s = window[i]
        if seen[s] != mark:
            seen[s] = mark
            key += tables.code[i, s]
    return key


@compiled
def key_after(tables: Tables, own: int, window: Integers, state: int) -> int:
    """Return the key of a walk after a mention of a state, or after none (0).

    Args:
        tables: Of the text.
        own: The key of what it remembers but for its previous token.
        window: States before, each only where it was mentioned last.
        state: What is mentioned.
    """
    key, cutoff = own, len(window)
    if state > 0:
        for i in range(1, cutoff):
            if window[i] == state:
                key -= tables.code[i - 1, state]
        key += tables.code[cutoff - 1, state] + tables.code[cutoff, state]
    return key


@compiled
def without_repetitions(window: Integers, seen: Integers, mark: int) -> Integers:
    """Return a window that has each state only where it was mentioned last.

    ``seen`` is as ``window_key`` has it.
    """
    last = window.copy()
    for i in range(len(window) - 1, -1, -1):
        if seen[window[i]] == mark:
            last[i] = 0
        seen[window[i]] = mark
    return last


@compiled
def new_entities(tables: Tables, outlook: Outlook, t: int) -> NewEntities:
    """Sort the NEW entities of token t."""
    cutoff, size = len(tables.code) - 1, tables.num_listed
    derivable, absent, little = outlook.derivable, outlook.absent, outlook.little
    ahead = tokens_ahead(derivable, absent, t, cutoff, little, True)
    of_all = tokens_ahead(derivable, absent, t, cutoff, little, False)
    gain = np.zeros(tables.word.shape[1])
    if len(ahead.token):
        nobody = np.zeros(of_all.last.shape, np.bool_)
        without = log_gain(of_all, of_all.expected, nobody, t, 0, 0)
        for s in range(1, tables.other):
            if tables.parent[t, s] > -np.inf:
                gain[s] = log_gain(of_all, of_all.expected, nobody, t, s, 0) - without
    value = np.empty(size - 1)
    for s in range(1, size):
        after = outlook.beta[t + 1, 0, min(s, tables.other)]
        value[s - 1] = tables.new[t, s] + tables.word[t, s] + after + gain[s]
    order = np.argsort(-value, kind="mergesort")
    value = value[order]
    return NewEntities(order + 1, value, tails(value), gain, ahead)


@compiled
def parents_of(tables: Tables, t: int, window: Integers) -> tuple[Integers, Floats]:
    """Return the states that a walk may derive from, and their probabilities.

    ``window`` has each state only where it was mentioned last.
    """
    state, weight, number = np.empty(len(window), np.int64), np.empty(len(window)), 0
    peak = -np.inf
    for s in window:
        if s > 0 and tables.parent[t, s] > -np.inf:
            state[number], weight[number] = s, tables.parent[t, s]
            peak, number = max(peak, weight[number]), number + 1
    total = 0.0
    for i in range(number):
        weight[i] = math.exp(weight[i] - peak)
        total += weight[i]
    return state[:number], weight[:number] / total


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
    outlooks: tuple[Outlook, Outlook],
    new: tuple[NewEntities, NewEntities],
    t: int,
    of: Pasts,
    normalized: bool,
) -> Choices:
    """List what may follow each past at token t.

    Args:
        tables: Of the text.
        outlooks: By which pasts are ranked.
        new: NEW entities by each of them.
        t: The token.
        of: The pasts.
        normalized: Whether the choices of a past are to total one.
    """
    number, size, other = len(of.window), tables.word.shape[1], tables.other
    room = number * 16 + 2 * size
    mention, state = np.zeros(room, np.int64), np.zeros(room, np.int64)
    log_p, value = np.zeros(room), np.zeros(room)
    first = np.zeros(number + 3, np.int64)
    log_new, gain = np.zeros(number), np.zeros(number)
    shape = number, max(len(new[0].ahead.token), len(new[1].ahead.token))
    sums = np.zeros((*shape, 2))
    has_last = np.zeros((*shape, new[0].ahead.last.shape[1]), np.bool_)
    types = np.empty(4)
    mass, reached = np.zeros(size), np.empty(size, np.int64)
    edge_other = np.exp(tables.edge_other[t])
    n = 0
    for d in range(number):
        if n + 3 * size > room:
            room = 2 * room
            mention, state = _grown(mention, room), _grown(state, room)
            log_p, value = _grown(log_p, room), _grown(value, room)
        outlook, entities = outlooks[of.outlook[d]], new[of.outlook[d]]
        window, beta = of.window[d], outlook.beta[t + 1]
        previous, latest = window[-1], min(last_mention(window[1:]), other)
        parent, weight = parents_of(tables, t, window)
        can_derive = len(parent) > 0
        log_types(tables.mention[t], tables.begins, can_derive, previous > 0, types)
        if len(entities.ahead.token):
            remember(entities.ahead, t, window, sums[d], has_last[d])
            gain[d] = log_gain(entities.ahead, sums[d], has_last[d], t, 0, 0)
        start = n
        mention[n], state[n], log_p[n] = NONE, 0, types[NONE] + tables.word[t, 0]
        value[n] = log_p[n] + beta[1, latest]
        n += 1
        if previous > 0:
            mention[n], state[n] = CONTINUE, previous
            log_p[n] = types[CONTINUE] + tables.going_on[t, previous]
            value[n] = log_p[n] + beta[0, min(previous, other)]
            value[n] += entities.gain[previous]
            n += 1
        found = 0
        for i in range(len(parent)):
            c = parent[i]
            for e in range(tables.edge_start[c], tables.edge_start[c + 1]):
                s = tables.edge_tail[e]
                if mass[s] == 0.0:
                    reached[found] = s
                    found += 1
                mass[s] += weight[i] * tables.edge[t, e]
            if edge_other[c] > 0.0:
                if mass[other] == 0.0:
                    reached[found] = other
                    found += 1
                mass[other] += weight[i] * edge_other[c]
        for s in reached[:found]:
            if mass[s] > 0.0 and tables.word[t, s] > -np.inf:
                mention[n], state[n] = DERIVED, s
                log_p[n] = types[DERIVED] + math.log(mass[s]) + tables.word[t, s]
                value[n] = log_p[n] + beta[0, min(s, other)] + entities.gain[s]
                n += 1
            mass[s] = 0.0
        log_new[d] = types[NEW]
        if normalized:
            total = _log_total(log_p[start:n], types[NEW], entities)
            log_p[start:n] -= total
            value[start:n] -= total
            log_new[d] -= total
        value[start:n] += gain[d]
        _sort(value[start:n], log_p[start:n], mention[start:n], state[start:n])
        first[d + 1] = n
    for o in range(2):
        end = n + len(new[o].state)
        mention[n:end], state[n:end], value[n:end] = NEW, new[o].state, new[o].value
        for i in range(n, end):
            log_p[i] = tables.new[t, state[i]] + tables.word[t, state[i]]
        n = end
        first[number + 1 + o] = n
    tail = np.empty(n)
    for d in range(number + 2):
        tail[first[d] : first[d + 1]] = tails(value[first[d] : first[d + 1]])
    runs = Runs(first, value[:n], tail)
    return Choices(
        runs, mention[:n], state[:n], log_p[:n], log_new, gain, sums, has_last
    )


@compiled
def _sort(value: Floats, log_p: Floats, mention: Integers, state: Integers) -> None:
    """Sort the choices of a past in place, the largest value first: they are few."""
    for i in range(1, len(value)):
        moved, p, what, where = value[i], log_p[i], mention[i], state[i]
        j = i
        while j > 0 and value[j - 1] < moved:
            value[j], log_p[j] = value[j - 1], log_p[j - 1]
            mention[j], state[j] = mention[j - 1], state[j - 1]
            j -= 1
        value[j], log_p[j], mention[j], state[j] = moved, p, what, where


@compiled
def _grown(array: Floats, size: int) -> Floats:
    """Return an array with room for more."""
    more = np.zeros(size, array.dtype)
    more[: len(array)] = array
    return more


@compiled
def _log_total(log_p: Floats, new: float, entities: NewEntities) -> float:
    """Return the log of the sum of choices, NEW ones with those of all entities."""
    peak = log_p.max()
    if len(entities.value):
        peak = max(peak, new + entities.value[0])
    total = np.exp(log_p - peak).sum()
    if len(entities.value) and entities.value[0] > -np.inf:
        total += entities.tail[0] * math.exp(new + entities.value[0] - peak)
    return float(peak + math.log(total))


@compiled
def intervals(
    found: Choices, of: Pasts, log_w: Floats, group: Integers
) -> tuple[Intervals, float]:
    """Return what walks choose from: each from the list of its past, and from NEW.

    Returns:
        The intervals, and by how many nats ranks may rise as they are looked at closer.
    """
    number, num_pasts = len(of.which), len(of.window)
    run, offset = np.empty(2 * number, np.int64), np.empty(2 * number)
    for k in range(number):
        d = of.which[k]
        run[2 * k], offset[2 * k] = d, log_w[k]
        run[2 * k + 1] = num_pasts + of.outlook[d]
        offset[2 * k + 1] = log_w[k] + found.new[d] + found.gain[d]
    slack = SLACK if found.sums.shape[1] > 0 else 0.0
    return Intervals(2 * group, run, offset), slack


@compiled
def looked_at(
    tables: Tables,
    new: tuple[NewEntities, NewEntities],
    t: int,
    of: Pasts,
    found: Choices,
    chosen_from: Intervals,
    items: Items,
) -> tuple[Floats, Keys]:
    """Rank listed choices with the entities of their walks, and key them."""
    size, other = len(items.rank), tables.other
    rank, key = items.rank.copy(), np.zeros(size, np.uint64)
    for i in range(size):
        interval = items.interval[i]
        d = of.which[interval // 2]
        window, entities = of.window[d], new[of.outlook[d]]
        s = found.state[found.runs.first[chosen_from.run[interval]] + items.place[i]]
        if s == other:  # it goes on as nothing else does
            key[i] = np.uint64(i)
            continue
        key[i] = key_after(tables, of.after[d], window, s)
        if len(entities.ahead.token) and 0 < s < other:
            gain, stays = 0.0, 0
            for place in range(1, len(window)):
                if window[place] == s:
                    stays = place
            if tables.parent[t, s] > -np.inf or stays > 0:
                sums, has_last = found.sums[d], found.has_last[d]
                gain = log_gain(entities.ahead, sums, has_last, t, s, stays)
                gain -= found.gain[d]
            rank[i] += gain - entities.gain[s]
    return rank, key
