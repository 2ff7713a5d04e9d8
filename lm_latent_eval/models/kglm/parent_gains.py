r"""What entities that a walk has mentioned are worth as parents, in compiled loops.

What the chain of ``chain.py`` expects of the text ahead depends on the last mention of
a walk alone. An entity stays a candidate parent for some tokens after its mention, and
a walk that introduces it early pays for what it saves much later. So a search adds, to
what is expected of a walk that has mentioned the entities E, the probability of the
text with these parents, over what it is by the chain,

.. math::
    \sum_u \log \Bigl( o_u + \sum_c m_u(c)
        \frac{\sum_e \rho_u(e) \, w_u(e) \, v_u(e)}{\sum_e \rho_u(e) \, w_u(e)} \Bigr)

with o, m, w and v as ``Derivable`` has them, and rho = 1 of the entities in E that are
still remembered at u and of the last mention c, of others how probable their mention
between now and u is. Tokens at which parents are used are taken to be independent; that
is a guess, and weights correct it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from lm_latent_eval.compiled import compiled
from lm_latent_eval.inference.pruning import Booleans, Floats, Integers
from lm_latent_eval.models.kglm.chain import LEAST, LIGHTEST, Derivable


class TokensAhead(NamedTuple):
    """J tokens at which it matters who the parents are that are mentioned up to t."""

    token: Integers
    """(J,)."""
    paid: Floats
    """What states pay times what they weigh, beyond what is expected, (J, S)."""
    weight: Floats
    """What they weigh, beyond what is expected, (J, S)."""
    expected: Floats
    """What is paid and weighed by what may be mentioned later, (J, 2)."""
    otherwise: Floats
    """(J,)."""
    mass: Floats
    """(J, LIKELIEST)."""
    last: Integers
    """(J, LIKELIEST)."""


@compiled
def tokens_ahead(
    derivable: Derivable,
    absent: Floats,
    t: int,
    cutoff: int,
    little: float,
    of_a_walk: bool,
) -> TokensAhead:
    """Return the tokens after t that mentions up to t may change by more than so much.

    Args:
        derivable: What is derived at each token.
        absent: Log p that no mention of a state begins before each token, (T + 1, S).
        t: A token.
        cutoff: Tokens that an entity stays a parent after its mention.
        little: Nats.
        of_a_walk: Whether mentions up to t will be known: only later ones are expected.
            Else what all walks have mentioned is expected, too.
    """
    end = min(len(derivable.matters), t + 1 + cutoff)
    token = np.nonzero(derivable.matters[t + 1 : end] > little)[0] + t + 1
    number, size = len(token), absent.shape[1]
    paid, weight = np.zeros((number, size)), np.zeros((number, size))
    expected = derivable.unknown[token]
    for j in range(number):
        u = token[j]
        begin = t + 1 if of_a_walk else max(0, u - cutoff)
        for s in range(1, size):
            if derivable.weight[u, s] > 0:
                not_since = math.exp(absent[u, s] - absent[begin, s])
                weight[j, s] = not_since * derivable.weight[u, s]
                paid[j, s] = weight[j, s] * derivable.paid[u, s]
                since = derivable.weight[u, s] - weight[j, s]
                expected[j, 0] += since * derivable.paid[u, s]
                expected[j, 1] += since
    return TokensAhead(
        token,
        paid,
        weight,
        expected,
        derivable.otherwise[token],
        derivable.mass[token],
        derivable.last[token],
    )


@compiled
def remember(
    ahead: TokensAhead, t: int, window: Integers, sums: Floats, has_last: Booleans
) -> None:
    """Add up the entities of a walk.

    Args:
        ahead: Tokens after t.
        t: A token.
        window: States before it, each only where it was mentioned last.
        sums: To be written: what they pay and weigh with what is expected, (J, 2).
        has_last: Likewise, whether they include each last mention, (J, LIKELIEST).
    """
    for j in range(len(ahead.token)):
        sums[j] = ahead.expected[j]
        has_last[j] = False
        for i in range(max(1, ahead.token[j] - t), len(window)):
            s = window[i]
            if 0 < s < ahead.paid.shape[1]:
                sums[j, 0] += ahead.paid[j, s]
                sums[j, 1] += ahead.weight[j, s]
                for last in range(ahead.last.shape[1]):
                    if ahead.last[j, last] == s:
                        has_last[j, last] = True


@compiled
def log_gain(
    ahead: TokensAhead, sums: Floats, has_last: Booleans, t: int, state: int, stays: int
) -> float:
    """Return log p of the tokens ahead, relative, if a state is mentioned at t.

    ``stays`` is for how many tokens it is remembered already; state 0: nothing is
    mentioned. ``sums`` and ``has_last`` are what ``remember`` writes.
    """
    total = 0.0
    for j in range(len(ahead.token)):
        paid, weight = sums[j, 0], sums[j, 1]
        if state > 0 and stays < ahead.token[j] - t:
            paid, weight = paid + ahead.paid[j, state], weight + ahead.weight[j, state]
        p = ahead.otherwise[j]
        for i in range(ahead.last.shape[1]):
            c = ahead.last[j, i]
            pays, weighs = paid, weight
            if not has_last[j, i] and c != state:
                pays, weighs = pays + ahead.paid[j, c], weighs + ahead.weight[j, c]
            p += ahead.mass[j, i] * pays / max(weighs, LIGHTEST)
        total += math.log(max(p, LEAST))
    return total
