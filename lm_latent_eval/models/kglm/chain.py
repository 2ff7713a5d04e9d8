r"""Look-ahead in compiled loops: a hidden Markov model of mentions stands in for p.

Its S + 1 states s are no mention (0), a mention of one of the candidates n of a text,
and a mention of any other node (S), each also as the last one c before "no mention":

.. math::
    \psi_t(s) &= p(x_t \mid s, x_{<t}) \, \beta_{t+1}(s), \qquad \beta_{T+1} = 1 \\
    \beta_t(s) &= p(\mathrm{NONE}) \, \psi_t(\emptyset_c)
        + [s = c] \, p(\mathrm{CONTINUE}) \, \psi_t(c) \\
        &\quad + p(\mathrm{NEW}) \sum_n p_{\mathrm{new}}(n) \, \psi_t(n)
        + p(\mathrm{DERIVED}) \sum_n d_t(n \mid c) \, \psi_t(n)

In the last sum n runs over candidates alone. The parents of a DERIVED mention, which
depend on the walk so far, are expected ones. Of a walk that is not yet read on, only
the node c that it mentioned last is known; of others how probable it is that they were
mentioned in the ``cutoff`` tokens before:

.. math::
    d_t(n \mid c) = \frac{\sum_{c'} r_t(c' \mid c) \, e^{s_t(c')} \, p(c' \to n)}
        {\sum_{c'} r_t(c' \mid c) \, e^{s_t(c')}}, \qquad
    r_t(c \mid c) = 1, \quad r_t(c' \mid c) = r_t(c')

with p's own scores s of parents and probabilities of edges. r comes from a chain in
which mentions are derived from anybody, to all candidates alike, then from the chain
with these parents: a mean field. So the sums are exact for these chains, and for p a
guess. Source: Guarniero, Johansen and Lee (2017), section 3, of whose optimal proposals
for twisted particle filters this is one step of approximation.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from lm_latent_eval.compiled import Floats, compiled
from lm_latent_eval.models.kglm.tables import Tables, weigh_links

NONE, NEW, DERIVED, CONTINUE = 0, 1, 2, 3
"""Mention types, in the numbering of ``Mention``."""
ROUNDS = 1
"""Number of times that the expected parents are computed again from their chain. Beams
find as much with 1, 3 and 5, in texts that fit the model badly, and less with none."""
LEAST = 1e-12
"""Probabilities are taken to be no less where their logarithm is."""
LIGHTEST, MOST_EXPONENT = 1e-300, 700.0
"""Limits within which float64 neither underflows nor overflows."""


class Parents(NamedTuple):
    """Who may have been mentioned before each token."""

    recent: Floats
    """r, (T, S)."""
    unknown: Floats
    """Weight of parents of which nothing is known, (T,): they derive all alike."""
    before: Floats
    """Weight of those that were mentioned before the text, (T,)."""
    known: bool
    """Whether anybody is known."""


class Derived(NamedTuple):
    """What a DERIVED mention is worth at a token, over e^peak: numbers of (S,)."""

    weight: Floats
    """e^s of each state as a parent, up to a number a token; 0 of what is none."""
    paid: Floats
    """The expected psi of what is derived from it."""
    number: Floats
    """Total weight of the parents after each last mention."""
    value: Floats
    """The expected psi of what is derived after it."""


@compiled
def log_types(
    scores: Floats, new: bool, derived: bool, going_on: bool, types: Floats
) -> None:
    """Write the log-probabilities of the mention types that are possible, (4,)."""
    types[NONE] = scores[NONE]
    types[NEW] = scores[NEW] if new else -np.inf
    types[DERIVED] = scores[DERIVED] if derived else -np.inf
    types[CONTINUE] = scores[CONTINUE] if going_on else -np.inf
    peak = types.max()
    total = 0.0
    for each in types:
        total += math.exp(each - peak)
    types[:] = types - (peak + math.log(total))


@compiled
def types_at(scores: Floats, begins: bool) -> Floats:
    """Return log-probabilities of types, (2, 2, 4).

    If nothing or something can be derived, and if nothing or something can go on.
    """
    types = np.empty((2, 2, 4))
    for derived in range(2):
        for going_on in range(2):
            log_types(
                scores, begins, derived > 0, going_on > 0, types[derived, going_on]
            )
    return types


@compiled
def psi_at(tables: Tables, t: int, after: Floats) -> tuple[Floats, Floats, float]:
    """Return psi of mentions and of none at t over e^peak, (S + 1,) each; and the peak.

    ``after`` is log beta of the next token.
    """
    mention = tables.word[t, : tables.other + 1] + after[0]
    none = tables.word[t, 0] + after[1]
    mention[0] = -np.inf
    peak = max(mention.max(), none.max())
    if peak == -np.inf:
        peak = 0.0
    return np.exp(mention - peak), np.exp(none - peak), peak


@compiled
def derived_at(tables: Tables, parents: Parents, t: int, mention: Floats) -> Derived:
    """Weigh the derived mentions at t."""
    size, links = tables.other, tables.links
    derived = Derived(np.zeros(size), np.zeros(size), np.zeros(size), np.zeros(size))
    alike = mention[:size].sum() / max(1, size - 1)
    best = tables.parent[t, :size].max()
    number, total = parents.unknown[t], parents.unknown[t] * alike
    for c in range(size):
        if not parents.known or tables.parent[t, c] == -np.inf:
            continue
        weight, paid = math.exp(tables.parent[t, c] - best), 0.0
        if math.isnan(links.log_z[t, c]):
            weigh_links(links, tables.relation, t, c)
        for link in range(links.start[c], links.start[c + 1]):
            if links.tail[link] < size:
                paid += links.share[t, link] * mention[links.tail[link]]
        derived.weight[c], derived.paid[c] = weight, paid
        number += weight * parents.recent[t, c]
        total += weight * parents.recent[t, c] * paid
    for c in range(size):
        alone = derived.weight[c] * (1 - parents.recent[t, c])
        derived.number[c] = max(number + alone, LIGHTEST)
        derived.value[c] = (total + alone * derived.paid[c]) / derived.number[c]
    return derived


@compiled
def backward(tables: Tables, parents: Parents) -> Floats:
    """Return log beta, (T + 1, 2, S + 1).

    After a last mention of a state just before, or longer ago; of state 0, after none.
    """
    num_tokens, other = len(tables.word), tables.other
    beta = np.zeros((num_tokens + 1, 2, other + 1))
    for t in range(num_tokens - 1, -1, -1):
        mention, none, peak = psi_at(tables, t, beta[t + 1])
        types = np.exp(types_at(tables.mention[t], tables.begins))
        new = (np.exp(tables.new[t, : other + 1]) * mention).sum()
        value = derived_at(tables, parents, t, mention).value
        for s in range(other + 1):
            derived = value[s] if s < other else value[0]
            first = types[1 if s > 0 or parents.before[t] > 0 else 0]
            for longer_ago in range(2):
                p = first[1 if s > 0 and longer_ago == 0 else 0]
                total = p[NONE] * none[s] + p[NEW] * new
                total += p[DERIVED] * derived + p[CONTINUE] * mention[s]
                beta[t, longer_ago, s] = (
                    math.log(total) + peak if total > 0 else -np.inf
                )
    return beta


@compiled
def _over(reached: float, log_expected: float, peak: float) -> float:
    """Return the mass that reaches a state, over the expected p of the rest."""
    if reached == 0.0:
        return 0.0
    return reached * math.exp(min(peak - log_expected, MOST_EXPONENT))


@compiled
def forward(tables: Tables, parents: Parents, beta: Floats) -> tuple[Floats, Floats]:
    """Read the chain given the whole text; ``beta`` is from ``backward``.

    Returns:
        The probability that a mention of each state begins, and that one is derived
        after it as the last mention, (T, S) each.
    """
    num_tokens, other = len(tables.word), tables.other
    begun, derives = np.zeros((num_tokens, other)), np.zeros((num_tokens, other))
    at_none, at_mention = np.zeros(other + 1), np.zeros(other + 1)
    at_none[0] = 1.0
    deriving = np.zeros(other + 1)
    for t in range(num_tokens):
        mention, none, peak = psi_at(tables, t, beta[t + 1])
        types = np.exp(types_at(tables.mention[t], tables.begins))
        derived = derived_at(tables, parents, t, mention)
        introducing = 0.0
        for s in range(other + 1):
            first = types[1 if s > 0 or parents.before[t] > 0 else 0]
            p, q = first[0], first[1 if s > 0 else 0]
            a = _over(at_none[s], beta[t, 1, s], peak)
            b = _over(at_mention[s], beta[t, 0, s], peak)
            at_none[s] = (a * p[NONE] + b * q[NONE]) * none[s]
            introducing += a * p[NEW] + b * q[NEW]
            deriving[s] = a * p[DERIVED] + b * q[DERIVED]
            at_mention[s] = b * q[CONTINUE] * mention[s]
        reached, anybody = _reached(tables, parents, t, deriving, derived)
        for s in range(1, other + 1):
            mass = introducing * math.exp(tables.new[t, s])
            if s < other:
                mass += reached[s] + anybody
                begun[t, s] = min(mass * mention[s], 1.0)
            at_mention[s] += mass * mention[s]
        derives[t] = deriving[:other] * derived.value
    return begun, derives


@compiled
def _reached(
    tables: Tables, parents: Parents, t: int, deriving: Floats, derived: Derived
) -> tuple[Floats, float]:
    """Distribute what derives after each last mention over the states that it reaches.

    Returns:
        What is on edges, (S,), and what is on each candidate from unknown parents.
    """
    size, links = tables.other, tables.links
    reached, share = np.zeros(size), np.zeros(size)
    together = 0.0
    if derived.number[0] > LIGHTEST:
        together = deriving[size] / derived.number[0]
    for c in range(size):
        if derived.number[c] > LIGHTEST:
            share[c] = deriving[c] / derived.number[c]
        together += share[c]
    for c in range(size):
        recent = parents.recent[t, c]
        mass = derived.weight[c] * (together * recent + share[c] * (1 - recent))
        if mass > 0:
            for link in range(links.start[c], links.start[c + 1]):
                if links.tail[link] < size:
                    reached[links.tail[link]] += mass * links.share[t, link]
    return reached, together * parents.unknown[t] / max(1, size - 1)


@compiled
def log_absent(begun: Floats) -> Floats:
    """Return log p that no mention of a state begins before each token, (T + 1, S).

    What begins at several tokens is taken to be independent.
    """
    absent = np.zeros((len(begun) + 1, begun.shape[1]))
    for t in range(len(begun)):
        absent[t + 1] = absent[t] + np.log(np.maximum(1 - begun[t], LEAST))
    return absent


@compiled
def recent_mentions(absent: Floats, cutoff: int) -> Floats:
    """Return how probable a mention in the ``cutoff`` tokens before is, (T, S)."""
    recent = np.zeros((len(absent) - 1, absent.shape[1]))
    for t in range(len(recent)):
        recent[t] = -np.expm1(absent[t] - absent[max(0, t - cutoff)])
    return recent


@compiled
def expected_mentions(
    tables: Tables, before: Floats, cutoff: int, rounds: int
) -> Floats:
    """Return r of the chain after some rounds, (T, S).

    Args:
        tables: Of a text.
        before: Weight of the parents from before the text, (T,).
        cutoff: Tokens that an entity stays a parent after its mention.
        rounds: How often the expected parents are found again.
    """
    recent = np.zeros((len(tables.word), tables.other))
    for again in range(1 + rounds):
        unknown = before if again else np.ones(len(before))
        parents = Parents(recent, unknown, before, again > 0)
        begun, _ = forward(tables, parents, backward(tables, parents))
        recent = recent_mentions(log_absent(begun), cutoff)
    return recent
