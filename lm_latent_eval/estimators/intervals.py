r"""Intervals for means of weights in [0, b]: rigorous after any number of draws.

A gambler who bets against a mean that is the true one has a capital that is a
non-negative martingale, so that with probability 1 - delta it never reaches 1 / delta
(Ville's inequality). What remains are the means against which no bet has won that
much, whatever the weights' distribution, however few they are, and whenever drawing
stops. A bet's gain is at least -1, and a share gamma of the capital is staked on it:

    capital = sum_j pi_j prod_k (1 + gamma_j gain_k)

    that a mean is above m      gain_k = y_k / m - 1
    that it is below m          gain_k = (m - y_k) / (1 - m)
    that a difference is not above 0    gain_k = y_k - y'_k

Each is monotone in what it bets against, so ends are found by bisection, and what the
draws estimate always lies between them.

Symbols: y_k = w_k / b -> ``log_y``; gamma_j = 2^-j -> ``_STAKES``;
pi_j = 1 / ((j + 1)(j + 2)) -> ``_LOG_PRIOR``; each side has delta / 2.
Source: Waudby-Smith and Ramdas (2024), "Estimating means of bounded random variables by
betting": theorem 3 and section 4.4 (hedged bets, each on one side; a grid of stakes in
the place of one that adapts). e-BH: Wang and Ramdas (2022).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lm_latent_eval.devices import in_float64
from lm_latent_eval.estimators.checks import checked_weights
from lm_latent_eval.estimators.choices import ROUNDING
from lm_latent_eval.estimators.corpus import certificate_cost

_STAKES = torch.tensor([2.0**-j for j in range(25)], dtype=torch.float64)[:, None]
"""From 1 down to 6e-8, shape ``(J, 1)``: the last is for a hundred million draws."""
_LOG_PRIOR = torch.tensor(
    [-math.log((j + 1) * (j + 2)) for j in range(25)], dtype=torch.float64
)
"""Nats, shape ``(J,)``, below 1 in all; half of the capital is staked whole."""
_STEPS = 48
"""Number of bisections: an end is off by less than 1e-12 of the first interval."""
_AT_ONCE = 1 << 22
"""Gains times stakes that are held at a time; moves no number."""
_MOST_GAIN = 700.0
"""Nats. A gain that is cut wins less, which widens an interval."""


def probability_interval(
    log_w: Tensor, b: float = 1.0, confidence: float = 0.95
) -> tuple[Tensor, Tensor]:
    r"""Bound log p from both sides, by betting.

    .. math:: p = E[w], \qquad 0 \le w \le b

    Each end alone holds with a probability of :math:`1 - \delta / 2`. They hold when
    drawing stops whenever it likes; if they are read at several times, the truth lies
    between them at all of these times together.

    Args:
        log_w: Log-weights in nats of independent draws, shape ``(..., K)``; ``-inf`` is
            a weight of zero.
        b: What no weight is above: a fact of the estimator, not of the draws.
        confidence: :math:`1 - \delta`.

    Returns:
        At least and at most, nats, shape ``(...)`` each, float64; ``-inf`` and 0 where
        the draws say nothing. Log p-hat lies between them.

    Raises:
        ValueError: If a weight is above b; the error names the draw.

    Example:
        >>> log_w = torch.tensor([0.2, 0.4, 0.3, 0.3, 0.2, 0.4, 0.3, 0.3]).log()
        >>> at_least, at_most = probability_interval(log_w)
        >>> round(at_least.exp().item(), 3), round(at_most.exp().item(), 3)
        (0.17, 0.594)
    """
    log_y = checked_bounded(log_w, b)
    threshold = certificate_cost(confidence) + math.log(2)
    # A log-mean that the largest y alone rejects, however small the others.
    stakes, lost = _STAKES[1:, 0], log_y.shape[-1] - 1
    wins = _LOG_PRIOR[1:] + stakes.log() + lost * torch.log1p(-stakes)
    far_below = log_y.amax(-1) + wins.max() - threshold
    least = _boundary(
        lambda log_m: torch.expm1((log_y - log_m).clamp(max=_MOST_GAIN)),
        log_y.logsumexp(-1) - math.log(log_y.shape[-1]),
        far_below,
        threshold,
    )
    y = log_y.exp()
    mean = y.mean(-1).clamp(max=1.0)
    most = _boundary(
        lambda m: (m - y) / (1 - m).clamp(min=1e-300),
        mean,
        torch.ones_like(mean),
        threshold,
    )
    return least + math.log(b), (most.log() + math.log(b)).clamp(max=0.0)


@dataclass(frozen=True)
class Choice:
    """The most probable option, and whether the draws are sure of it."""

    best: int
    """Index of the most probable option."""
    decided: int | None
    """Draws after which it was certain; None while it is not."""
    log_e: float
    """Log of an e-value against any other option's being at least as probable, nats,
    by all draws: its mean over draws is at most 1 where the choice is wrong."""

    @classmethod
    def of(cls, log_w: Tensor, b: float = 1.0, confidence: float = 0.95) -> Choice:
        r"""Test every option against every other.

        That :math:`p_a \le p_c` is rejected at :math:`\delta / (A - 1)`, at any time.
        A wrong choice must have rejected the most probable option, and A - 1 others
        could: so it is certain, with a probability of :math:`1 - \delta`, as soon as an
        option has rejected all others, whenever drawing stops. Options that tie are
        never told apart, or with probability delta.

        Args:
            log_w: Log-weights of A options from the same independent draws, in the
                order drawn, nats, shape ``(A, K)``.
            b: What no weight is above.
            confidence: :math:`1 - \delta`, of this question alone: ``discoveries`` is
                of many.

        Raises:
            ValueError: If a weight is above b; the error names the draw.

        Example:
            >>> draw = torch.tensor([[0.9], [0.05], [0.02], [0.01]]).log()
            >>> Choice.of(draw.expand(4, 4)).decided is None
            True
            >>> Choice.of(draw.expand(4, 32)).decided
            8
        """
        y = checked_bounded(log_w, b).exp()
        number = len(y)
        if number == 1:
            return cls(0, 0, math.inf)
        threshold = certificate_cost(confidence) + math.log(number - 1)
        sure: list[tuple[int, float, int]] = []
        fewest: list[float] = []
        for place in range(number):
            others = torch.cat([y[:place], y[place + 1 :]])
            capital = running_log_capital(y[place] - others)  # (A - 1, K)
            fewest.append(capital[:, -1].min().item() - math.log(number - 1))
            crossed = capital >= threshold
            if crossed.any(-1).all():
                first = int(crossed.int().argmax(-1).max()) + 1
                sure.append((first, -fewest[place], place))
        if sure:
            decided, log_e, place = min(sure)
            return cls(place, decided, -log_e)
        best = int(y.mean(-1).argmax())
        return cls(best, None, fewest[best])


def discoveries(log_e: Sequence[float], rate: float = 0.05) -> list[bool]:
    r"""Choose the questions whose choices are certain together (e-BH).

    .. math:: e_{(k)} \ge \frac{N}{k\,\mathrm{rate}}

    for the k largest of N e-values, and as many as this allows. Of those chosen at most
    a share ``rate`` is wrong on average, however questions depend on each other.

    Args:
        log_e: ``Choice.log_e`` of each question, nats.
        rate: The share that may be wrong.

    Example:
        >>> import math
        >>> discoveries([math.log(e) for e in (25.0, 70.0, 1.0)])
        [False, True, False]
    """
    number = len(log_e)
    order = sorted(range(number), key=lambda place: -log_e[place])
    chosen = 0
    for k, place in enumerate(order, start=1):
        if log_e[place] >= math.log(number / (k * rate)):
            chosen = k
    found = set(order[:chosen])
    return [place in found for place in range(number)]


def checked_bounded(log_w: Tensor, b: float) -> Tensor:
    """Return log w_k - log b, at most 0, or raise with the first draw above b.

    Args:
        log_w: Log-weights in nats, shape ``(..., K)``.
        b: What no weight is above but for rounding.

    Raises:
        TypeError: If ``log_w`` is not a floating-point tensor.
        ValueError: If K is 0, b is not positive and finite, or a weight is NaN or above
            b.

    Example:
        >>> checked_bounded(torch.tensor([0.5, 1.5]).log(), 1.0)
        Traceback (most recent call last):
        ...
        ValueError: draw 1 weighs 1.5, and no weight of its estimator is above 1: ...
    """
    checked_weights(log_w)
    if not 0 < b < math.inf:
        raise ValueError(f"the weights' bound b must be positive and finite; got {b}")
    log_y = in_float64(log_w) - math.log(b)
    above = log_y > ROUNDING
    if above.any():
        *row, draw = above.nonzero()[0].tolist()
        of = f" of row {', '.join(map(str, row))}" if row else ""
        weight = math.exp(min(log_w[(*row, draw)].item(), 700.0))
        raise ValueError(
            f"draw {draw}{of} weighs {weight:.6g}, and no weight of its estimator is "
            f"above {b:g}: its log q is not that of what was drawn from, or its model "
            "gives more than 1 in all. No interval holds for such draws"
        )
    return log_y.clamp(max=0.0)


def log_capital(gain: Tensor) -> Tensor:
    """Return the log of the capital after all bets, nats, (..., K) -> (...).

    Args:
        gain: Of each bet, a share of what is staked, at least -1.
    """
    return _mixed(gain, _LOG_PRIOR, lambda each: each.sum(-1))


def running_log_capital(gain: Tensor) -> Tensor:
    """Return the log of the capital after every bet, nats, (..., K) -> (..., K).

    Args:
        gain: Of each bet, a share of what is staked, at least -1.

    Example:
        >>> running_log_capital(torch.ones(3, dtype=torch.float64)).exp()
        tensor([1.5752, 2.7368, 4.9683], dtype=torch.float64)
    """
    return _mixed(gain, _LOG_PRIOR[:, None], lambda each: each.cumsum(-1))


def _mixed(
    gain: Tensor, log_prior: Tensor, put_together: Callable[[Tensor], Tensor]
) -> Tensor:
    """Return the log-capital of all stakes together, mixed by their prior."""
    gain = gain.clamp(min=-1.0)[..., None, :]  # rounding
    dim = gain.ndim - 2
    number = max(_AT_ONCE // max(gain.numel(), 1), 1)
    parts = [
        (put_together(torch.log1p(stakes * gain)) + prior).logsumexp(dim)
        for stakes, prior in zip(
            _STAKES.split(number), log_prior.split(number), strict=True
        )
    ]
    return parts[0] if len(parts) == 1 else torch.stack(parts).logsumexp(0)


def _boundary(
    gain: Callable[[Tensor], Tensor], inside: Tensor, outside: Tensor, threshold: float
) -> Tensor:
    """Bisect between kept and rejected parameters; return the rejected ends.

    Args:
        gain: Of bets against parameters of shape ``(..., 1)``, shape ``(..., K)``.
        inside: Parameters that are kept, shape ``(...)``.
        outside: Parameters that are not.
        threshold: Log of the capital that rejects, nats.

    Returns:
        The outer ends, shape ``(...)``; infinite ones stay.
    """
    known = inside.isfinite() & outside.isfinite()
    far = outside.masked_fill(inside == -torch.inf, -torch.inf)
    inside, outside = (
        torch.where(known, end, torch.zeros_like(end)) for end in (inside, outside)
    )
    for _ in range(_STEPS):
        middle = (inside + outside) / 2
        rejected = log_capital(gain(middle[..., None])) >= threshold
        outside = torch.where(rejected, middle, outside)
        inside = torch.where(rejected, inside, middle)
    return torch.where(known, outside, far)
