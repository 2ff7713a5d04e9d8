r"""What mentioned entities are worth as parents of later mentions, in compiled loops.

The chain of ``chain.py`` knows the last mention of a walk alone. An entity stays a
candidate parent for ``cutoff`` tokens after its mention, and a walk that introduces it
early pays for what it saves much later. So a search multiplies what the chain expects
of a walk, for each entity c that the walk remembers, by

.. math::
    \prod_u \frac{P_u(1)}{P_u(1 - a_u)}, \qquad
    P_u(r) = 1 + \sum_l \pi_u(l) \Bigl( \frac{V_u(l; r)}{V_u(l)} - 1 \Bigr)

over the tokens u at which c is still remembered. P_u(r) is the probability of the text
if c is a parent at u with probability r, over that of the chain; it is taken to be
linear in r. The last mention before u is l, and pi the posterior probability that
another is derived after it at u. V is the expected psi of what is derived
(``Derived.value``), and a_u the probability that c is not mentioned between now and u.
Entities and tokens are taken to be independent; that is a guess, and weights correct
it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from lm_latent_eval.compiled import Floats, compiled
from lm_latent_eval.models.kglm.chain import (
    LEAST,
    Parents,
    derived_at,
    forward,
    log_absent,
    psi_at,
)
from lm_latent_eval.models.kglm.tables import Tables

LIKELY = 0.01
"""The smallest posterior probability of a derived mention that is looked at."""


class Worth(NamedTuple):
    """Probabilities of a text over the chain's, with a parent known or unknown."""

    known: Floats
    """P_u(1) of each state, (T, S)."""
    unknown: Floats
    """P_u(0) of each state, (T, S)."""
    absent: Floats
    """Log p that no mention of a state begins before each token, (T + 1, S)."""


@compiled
def worth_of(tables: Tables, parents: Parents, beta: Floats) -> Worth:
    """Weigh the states of a text as parents; ``beta`` is from ``backward``."""
    begun, deriving = forward(tables, parents, beta)
    known, unknown = np.ones(begun.shape), np.ones(begun.shape)
    for u in range(len(begun)):
        (likely,) = np.nonzero(deriving[u] > LIKELY)
        if len(likely) == 0:
            continue
        derived = derived_at(tables, parents, u, psi_at(tables, u, beta[u + 1])[0])
        for last in likely:
            number, value = derived.number[last], derived.value[last]
            for s in range(1, tables.other):
                if s == last or derived.weight[s] == 0.0:
                    continue
                change = deriving[u, last] * (derived.paid[s] / value - 1)
                weight = derived.weight[s] * parents.recent[u, s]
                more = derived.weight[s] - weight
                known[u, s] += change * more / (number + more)
                unknown[u, s] -= change * weight / max(number - weight, LEAST * number)
    return Worth(
        np.maximum(known, LEAST), np.maximum(unknown, LEAST), log_absent(begun)
    )


@compiled
def gains_at(worth: Worth, t: int, cutoff: int, num_states: int) -> Floats:
    """Return what a state gains if it is remembered for n tokens after t, nats.

    (cutoff + 1, num_states); 0 of states that are no candidates.
    """
    gains = np.zeros((cutoff + 1, num_states))
    num_tokens, size = worth.known.shape
    ahead = min(cutoff, num_tokens - 1 - t)
    for n in range(1, ahead + 1):
        u, gains[n] = t + n, gains[n - 1]
        for s in range(1, size):
            known, unknown = worth.known[u, s], worth.unknown[u, s]
            if known != unknown:
                later = -math.expm1(worth.absent[u, s] - worth.absent[t + 1, s])
                gains[n, s] += math.log(known / (unknown + (known - unknown) * later))
    if ahead > 0:
        gains[ahead + 1 :] = gains[ahead]
    return gains
