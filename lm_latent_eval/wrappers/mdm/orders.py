r"""Log-probabilities of L tokens under orders of unmasking.

    p(x | sigma) = prod_t p(x_{sigma_t} | x_{sigma_1} .. x_{sigma_{t-1}}),
    p(x) = E[p(x | sigma)], sigma uniform over all L! orders

Symbols: x_{sigma_t} under the tokens revealed before -> ``Predicted.log_p`` where those
are not masked; what is given beside x is in every condition.
Source: Uria et al. (2014), "A deep and tractable density estimator"; Hoogeboom et al.
(2022), "Autoregressive diffusion models". The adapted proposal is ours.
"""

from __future__ import annotations

import math
from itertools import combinations

import torch
from torch import Tensor

from lm_latent_eval.inference.streams import Streams
from lm_latent_eval.wrappers.mdm.predictions import Asking, Certainty, Predicted

MOST_EXACT = 14
"""Tokens whose 2^L - 1 sets of masks are all read."""


def log_weights(
    length: int,
    num_samples: int,
    streams: Streams,
    *,
    temperature: float | None = None,
) -> Asking[Tensor]:
    r"""Weigh K orders drawn from a proposal.

    .. math:: \log w_k = \log p(x \mid \sigma_k) - \log L! - \log q(\sigma_k \mid x)

    The uniform proposal has the weights p(x | sigma_k). The adapted one draws the next
    place i in proportion to :math:`p(x_i \mid \text{revealed})^{1/\tau}`, which the
    same passes say; at temperature 1 a weight is
    :math:`\prod_t \mathrm{mean}_i\, p(x_i \mid \text{revealed}_t)`, a mean over masked
    places. Orders that agree on a set share its pass.

    Args:
        length: L.
        num_samples: K.
        streams: Random numbers of one text.
        temperature: Of the adapted proposal; None is the uniform one.

    Returns:
        Nats, (K,) float64; the first of them are those of fewer samples.
    """
    masked = torch.ones(num_samples, length, dtype=torch.bool)
    log_w = torch.zeros(num_samples, dtype=torch.float64)
    every = torch.arange(num_samples)
    for step in range(length):
        log_p = (yield masked).log_p
        score = torch.zeros_like(log_p) if temperature is None else log_p / temperature
        # No place has a probability: the weight is zero whichever is drawn.
        lost = log_p.masked_fill(~masked, -torch.inf).isneginf().all(-1, keepdim=True)
        score = score.masked_fill(lost, 0.0)
        log_q = score.masked_fill(~masked, -torch.inf).log_softmax(-1)
        place = _drawn(log_q, streams(step)[0, :, 0])
        log_w += log_p[every, place] - math.log(length - step) - log_q[every, place]
        masked[every, place] = False
    return log_w


def _drawn(log_q: Tensor, u: Tensor) -> Tensor:
    """Invert the distribution function of each row at its random number."""
    mass = log_q.exp().cumsum(-1)
    u = u[:, None].contiguous()
    return torch.searchsorted(mass / mass[:, -1:], u, right=True)[:, 0]


def log_p_exact(length: int) -> Asking[float]:
    r"""Sum over all orders by recursion over what is revealed.

    .. math::
        A(\emptyset) = 1, \qquad
        A(S) = \sum_{i \in S} \frac{A(S \setminus i)}{L - |S| + 1} \,
        p(x_i \mid x_{S \setminus i}), \qquad p(x) = A(\{1..L\})

    It takes 2^L - 1 passes instead of L! orders.

    Raises:
        ValueError: If there are more than ``MOST_EXACT`` tokens.
    """
    check_exact(length)
    log_a = torch.full((2**length,), -torch.inf, dtype=torch.float64)
    log_a[0] = 0.0
    for size in range(length):
        revealed = subsets(length, size)
        log_p = (yield ~revealed).log_p
        number = (revealed * 2 ** torch.arange(length)).sum(-1)
        for i in range(length):
            on = ~revealed[:, i]
            after = number[on] + 2**i
            step = log_a[number[on]] + log_p[on, i] - math.log(length - size)
            log_a[after] = torch.logaddexp(log_a[after], step)
    return float(log_a[-1])


def check_exact(length: int) -> None:
    """Refuse a target of too many tokens.

    Raises:
        ValueError: If there are more than ``MOST_EXACT``.
    """
    if length > MOST_EXACT:
        raise ValueError(
            f"estimator=exact reads all 2^{length} - 1 sets of masked tokens of "
            f"{length}; at most {MOST_EXACT} tokens are summed over: use estimator=is "
            "or estimator=elbo"
        )


def log_p_path(length: int) -> Asking[tuple[float, bool]]:
    """Reveal the surest token at each step: log p of x in nats, and if it is greedy.

    The order follows from what is revealed, never from the hidden tokens, so this is an
    autoregressive model of its own, and log p is exact for it. Greedy are texts whose
    every token was the most probable one when it was revealed.
    """
    masked = torch.ones(1, length, dtype=torch.bool)
    total, greedy = 0.0, True
    for _ in range(length):
        predicted = yield masked
        place = _surest(predicted, masked)
        total += float(predicted.log_p[place])
        greedy &= bool(predicted.is_best[place])
        masked[place] = False
    return total, greedy


def is_greedy(length: int) -> Asking[bool]:
    """Say whether unmasking the surest token at each step would write the target."""
    masked = torch.ones(1, length, dtype=torch.bool)
    for _ in range(length):
        predicted = yield masked
        place = _surest(predicted, masked)
        if not predicted.is_best[place]:
            return False
        masked[place] = False
    return True


def _surest(predicted: Predicted, masked: Tensor) -> tuple[int, int]:
    hidden = predicted.certainty.masked_fill(~masked, -torch.inf)
    return 0, int(hidden.argmax())


def subsets(length: int, size: int) -> Tensor:
    """List the subsets of a size, (n, L) true where a place is in."""
    chosen = torch.tensor(list(combinations(range(length), size)), dtype=torch.long)
    found = torch.zeros(len(chosen), length, dtype=torch.bool)
    return found.scatter_(1, chosen, True) if size else found


def confidence(rows: Tensor) -> Tensor:
    """The largest log-probability."""
    return rows.amax(-1)


def negative_entropy(rows: Tensor) -> Tensor:
    """The negative entropy, nats."""
    return (rows.exp() * rows.masked_fill(rows == -torch.inf, 0.0)).sum(-1)


def margin(rows: Tensor) -> Tensor:
    """The two largest probabilities' difference."""
    first, second = rows.exp().topk(2, dim=-1).values.unbind(-1)
    return first - second


def left_to_right(rows: Tensor) -> Tensor:
    """The earlier the surer; predictions come in the order of their places."""
    return -torch.arange(len(rows), device=rows.device)


RULES: dict[str, Certainty] = {
    "confidence": confidence,
    "entropy": negative_entropy,
    "margin": margin,
    "left_to_right": left_to_right,
}
"""Orders that follow from what is revealed, by name."""
