r"""Missing mass: the share of p(x) that draws are likely to miss, from a search.

A search finds distinct latents B, of which p and q are both known. Order them by their
weight w = p(x, z) / q(z | x), the largest first, and let F_j be the share of p(B) on
the first j of them, G_j what q gives to the like of them in all of p(x). N draws meet
none of these with probability exp(-N G_j), and then miss a share F_j:

    u = max_j F_j exp(-N G_j / 2)

the root mean square of that loss for the j for which it is worst. It does not grow
beyond any bound, as the variance of the weights does where q is nearly zero, and it
does not need a draw: where q cannot see what p pays for, u is near 1, whatever the
draws say of themselves.

Symbols: log p(x, z) -> ``log_p``; w -> ``log_w``; N -> ``num_draws``.
Source: ours. The error that draws cannot show is that of Chatterjee and Diaconis
(2018): N below exp(KL(p(z|x) || q)).
"""

from __future__ import annotations

import math

from torch import Tensor

from lm_latent_eval.devices import in_float64
from lm_latent_eval.estimators.checks import checked_weights

TIE = 2.0**-10
"""Nats. Weights as near as this are in the order in which the search has them: where q
is nearly right all are, and rounding would order them otherwise in every batch."""

MOST_UNSEEN = 0.99
"""Share of p(x) that draws may be expected to miss where an error is still given."""
LITTLE, MOST_OF_LITTLE = 0.1, 0.5
"""The same where a search found less than this share of p(x): it may not stand for the
rest, so draws have to see more of what it found."""
LARGEST = 0.5
"""The largest error of a logarithm, nats, that the delta method can be asked for."""


def missing_mass(
    log_p: Tensor, log_w: Tensor, num_draws: int, log_evidence: float
) -> float:
    """Return the share of p(x) that draws are likely to miss, judged by a search.

    Args:
        log_p: log p(x, z) of the latents found, distinct, nats, shape ``(W,)``;
            ``-inf`` in places that are not used.
        log_w: Their log-weights log p(x, z) - log q(z | x), nats, shape ``(W,)``;
            ``+inf`` where q is zero.
        num_draws: N.
        log_evidence: Estimated log p(x), nats. What was found stands for the rest:
            where it is a hundredth of p(x), q gives a hundred times as much to its
            like.

    Returns:
        From 0 to 1; 1 if nothing was found: then nothing is known.

    Raises:
        TypeError: If ``log_p`` is not a floating-point tensor.
        ValueError: If a probability is NaN or ``+inf``.

    Example:
        Half of p lies where ten draws never come.

        >>> import torch
        >>> log_p = torch.tensor([0.25, 0.25]).log()
        >>> log_q = torch.tensor([0.5, 1e-9]).log()
        >>> round(missing_mass(log_p, log_p - log_q, 10, log_evidence=-0.7), 3)
        0.5
        >>> nothing = torch.tensor([-torch.inf])
        >>> missing_mass(nothing, nothing, 10, log_evidence=-0.7)
        1.0
    """
    checked_weights(log_p)
    found = ~log_p.isneginf()
    if not found.any():
        return 1.0
    steps = (in_float64(log_w[found]) / TIE).round()
    order = steps.argsort(descending=True, stable=True).to(log_w.device)
    log_p, log_w = in_float64(log_p[found][order]), in_float64(log_w[found][order])
    share = log_p.softmax(0).cumsum(0)
    log_found = min(log_p.logsumexp(0).item() - log_evidence, 0.0)
    like = (log_p - log_w - log_found).logcumsumexp(0).exp()
    return min((share * (-num_draws / 2 * like).exp()).max().item(), 1.0)


def stderr_with_missing_mass(
    draws_stderr: float, unseen: float, found: float, *, same: bool = True
) -> float | None:
    r"""Return the error that holds if what a search found stands for all of p(x).

    .. math:: \mathrm{se}^2 = \mathrm{se}_\text{draws}^2 + \log^2 (1 - u)

    If draws miss a share u of p(x), log p-hat is too low by -log(1 - u). What the
    search has summed is not missed, so this is cautious; but how much it has left is
    known from draws alone, and those that miss much say that little is left.

    Args:
        draws_stderr: The error as the draws tell it, nats.
        unseen: u, see ``missing_mass``.
        found: Share of the estimate that the search found.
        same: Whether the search went by the proposal that was drawn from.

    Returns:
        Nats. None where u is above ``MOST_UNSEEN``, which is to say that search and
        draws contradict each other (``MOST_OF_LITTLE`` where the search found
        ``LITTLE``); where that of the draws is above ``LARGEST``: the delta method
        cannot find larger ones than 1; and where draws are of another proposal than the
        search went by, which may not see what it did not find, and that is more than
        ``LITTLE``.

    Example:
        >>> missed = 1 - math.exp(-0.4)
        >>> round(stderr_with_missing_mass(0.3, unseen=missed, found=0.9), 3)
        0.5
        >>> stderr_with_missing_mass(0.3, unseen=0.999, found=0.9) is None
        True
    """
    most = MOST_UNSEEN if found >= LITTLE else MOST_OF_LITTLE
    known = unseen <= most and draws_stderr <= LARGEST
    if not known or (found < 1 - LITTLE and not same):
        return None
    missed = -math.log1p(-unseen)
    return math.hypot(draws_stderr, missed)
