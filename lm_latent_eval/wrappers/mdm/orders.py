r"""Log-probabilities of the L tokens of a block under a rule of unmasking.

    p(x) = sum over paths {} = S_0 < S_1 < .. < S_n = all of
        prod_t pi(S_t \ S_{t-1}, x | S_{t-1}, x_{S_{t-1}})

Of ``any_order`` that is the mean of p(x | sigma) over all L! orders sigma.

Symbols: S_t -> revealed after t steps; pi -> ``Unmasking.log_transitions``; x under the
tokens revealed before -> ``Predicted``; what is given beside x is in every condition.
Source: Uria et al. (2014), "A deep and tractable density estimator"; Hoogeboom et al.
(2022), "Autoregressive diffusion models"; duel-code
(``compute_exact_loglikelihood_cached_subset_dp``) has the recursion for
``any_order``. The proposal of ``low_confidence`` is ours.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lm_latent_eval.inference.streams import LANES, Streams, invert_cdf
from lm_latent_eval.wrappers.mdm.unmasking import Requests, Unmasking, subsets

PLAIN = Unmasking()


def log_weights(
    length: int,
    num_samples: int,
    streams: Streams,
    *,
    unmasking: Unmasking = PLAIN,
) -> Requests[Tensor]:
    r"""Weigh K paths drawn from a proposal.

    .. math:: \log w_k = \sum_t \log \pi(A_t, x_{A_t} \mid S_{t-1}) - \log q(A_t)

    The proposal of ``any_order`` is uniform, as pi is over sets, so a weight is
    :math:`p(x \mid \text{order})`. For ``low_confidence`` all sets are weighed, and one
    is drawn in proportion to pi. Paths with equal revealed sets share a pass.

    Args:
        length: L.
        num_samples: K.
        streams: Random numbers of one text.
        unmasking: A rule with several paths.

    Returns:
        Nats, (K,) float64; the first of them are those of fewer samples.
    """
    step = 0
    masked = torch.ones(num_samples, length, dtype=torch.bool)
    log_w = torch.zeros(num_samples, dtype=torch.float64)
    going = torch.arange(num_samples)
    choices = unmasking.choices(length) if unmasking.draws else None
    while len(going):
        predicted = yield masked[going]
        if choices is None:
            u = _numbers(streams, step, length, unmasking.tokens_per_step)[going]
            chosen = _in_any_order(masked[going], u, unmasking.tokens_per_step)
            added = predicted.log_p.masked_fill(~chosen, 0.0).sum(-1)
        else:
            log_pi = unmasking.log_transitions(predicted, masked[going], choices)
            total = log_pi.logsumexp(-1)
            # If all sets have probability zero, so has the weight of any draw.
            hidden = (masked[going][:, None] | ~choices).all(-1)
            log_q = torch.where(
                total.isneginf()[:, None], hidden.double().log(), log_pi
            )
            drawn = invert_cdf(log_q.softmax(-1), streams(step)[0, going, 0])
            chosen, added = choices[drawn], total
        log_w[going] += added
        masked[going] &= ~chosen
        going = going[masked[going].any(-1)]
        step += 1
    return log_w


def _in_any_order(masked: Tensor, u: Tensor, size: int) -> Tensor:
    """Draw a uniform set of k masked positions, one after the other, (n, L)."""
    chosen = torch.zeros_like(masked)
    every = torch.arange(len(masked))
    for n in range(min(size, int(masked[0].sum()))):
        hidden = (masked & ~chosen).double()
        position = invert_cdf(hidden / hidden.sum(-1, keepdim=True), u[:, n])
        chosen[every, position] = True
    return chosen


def _numbers(streams: Streams, step: int, length: int, count: int) -> Tensor:
    rounds = -(-count // LANES)  # no path takes more than L steps
    return torch.cat([streams(step + length * n)[0] for n in range(rounds)], 1)


def log_p_exact(length: int, unmasking: Unmasking = PLAIN) -> Requests[float]:
    r"""Sum over all paths by recursion over revealed sets.

    .. math::
        f(\emptyset) = 1, \qquad
        f(S \cup A) \mathrel{+}= \pi(A, x_A \mid S, x_S) f(S), \qquad
        p(x) = f(\{1..L\})

    It takes at most 2^L - 1 passes, and as many of ``any_order``, one token a step,
    instead of L! orders.
    """
    choices = unmasking.choices(length)
    power = 2 ** torch.arange(length)
    added = (choices * power).sum(-1)
    log_f = torch.full((2**length,), -torch.inf, dtype=torch.float64)
    log_f[0] = 0.0
    for size in range(length):
        revealed = subsets(length, size)
        index = (revealed * power).sum(-1)
        possible = log_f[index] > -torch.inf
        if not bool(possible.any()):
            continue
        revealed, index = revealed[possible], index[possible]
        predicted = yield ~revealed
        log_pi = unmasking.log_transitions(predicted, ~revealed, choices)
        for column, code in enumerate(added.tolist()):
            on = (index & code) == 0
            after = index[on] + code
            steps = log_f[index[on]] + log_pi[on, column]
            log_f[after] = torch.logaddexp(log_f[after], steps)
    return float(log_f[-1])


class Paths(NamedTuple):
    """Paths of unmasking that a beam has found."""

    steps: Tensor
    """Step that reveals each place, from 1, (K, L)."""
    log_p: Tensor
    """Log p of each path and the tokens, nats, (K,) float64."""
    pruned: bool
    """Whether any was dropped."""


def best_paths(length: int, width: int, unmasking: Unmasking) -> Requests[Paths]:
    """Search the most probable paths; all are found where ``width`` is enough."""
    choices = None if unmasking.follows else unmasking.choices(length)
    steps = torch.zeros(1, length, dtype=torch.long)
    log_p, pruned = torch.zeros(1, dtype=torch.float64), False
    while bool((going := (steps == 0).any(-1)).any()):
        masked = steps[going] == 0
        predicted = yield masked
        if choices is None:  # what is revealed says what comes next
            revealed = unmasking.surest(predicted.certainty, masked)
            path = torch.arange(len(masked))
            added = predicted.log_p.masked_fill(~revealed, 0.0).sum(-1)
        else:
            log_pi = unmasking.log_transitions(predicted, masked, choices)
            path, chosen = (log_pi > -torch.inf).nonzero(as_tuple=True)
            revealed, added = choices[chosen], log_pi[path, chosen]
        before, log_before = steps[going][path], log_p[going][path]
        now = before.amax(-1, keepdim=True) + 1
        steps = torch.cat([steps[~going], before + now * revealed])
        log_p = torch.cat([log_p[~going], log_before + added])
        pruned |= len(log_p) > width
        best = log_p.argsort(descending=True, stable=True)[:width]
        steps, log_p = steps[best], log_p[best]
    return Paths(steps, log_p, pruned)


def log_p_path(length: int, unmasking: Unmasking) -> Requests[tuple[float, bool]]:
    """Log p of x in nats by the one path of a rule, and whether x is greedy.

    The order depends on revealed tokens alone, so this is an autoregressive model of
    its own, and log p is exact for it. A text is greedy if every token was the most
    probable one when it was revealed.
    """
    masked = torch.ones(1, length, dtype=torch.bool)
    total, greedy = 0.0, True
    while bool(masked.any()):
        predicted = yield masked
        chosen = unmasking.surest(predicted.certainty, masked)
        total += float(predicted.log_p[chosen].sum())
        greedy &= bool(predicted.is_best[chosen].all())
        masked = masked & ~chosen
    return total, greedy


def is_greedy(length: int, unmasking: Unmasking = PLAIN) -> Requests[bool]:
    masked = torch.ones(1, length, dtype=torch.bool)
    while bool(masked.any()):
        predicted = yield masked
        chosen = unmasking.surest(predicted.certainty, masked)
        if not bool(predicted.is_best[chosen].all()):
            return False
        masked = masked & ~chosen
    return True
