r"""Estimators of a block's log-probability: random masks, and the choice of one.

A lower bound by random masks, for any length:

    ELBO = E[log p(x | sigma)] = E[(L / l) sum_{i in M} log p(x_i | x_{not M})]
        <= log E[p(x | sigma)] = log p(x)

with l uniform on 1..L and M a uniform set of l masked places.

``convention=llada``, the loop that LLaDA's published numbers are from:

    batches of B = 32:  l_b = 1 + (round(l + b L / B) - 1) mod L,  b = 0..B-1
    mean over N / B batches of
        (1 / B) sum_b (L / l_b) sum_{i in M_b} log p(x_i | x_{not M_b})

with l uniform on 1..L, M_b a uniform set of l_b places, and round to even. It is the
bound but for two things: counts that rounding favours come more often where L does not
divide B, and the mask has a share of the softmax (``MaskedReader.mask_is_word``). So
it bounds nothing.

Sums over orders of unmasking are in ``orders.py``.

Symbols: L -> ``length``; l -> mask counts; N -> ``num_samples``, the passes.
Source: Ou et al. (2024), "Your absorbing discrete diffusion secretly models the
conditional distributions of clean data"; Nie et al. (2025), "Large language diffusion
models" (LLaDA), and eval_llada.py of github.com/ML-GSAI/LLaDA at b7e6c35
(``_forward_process``, ``get_loglikelihood``), in our own words. Systematic counts and
balanced places are ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lm_latent_eval.estimators import Bound, Estimate, influences, log_evidence
from lm_latent_eval.inference.streams import LANES, Streams
from lm_latent_eval.uniforms import uniforms
from lm_latent_eval.wrappers.base import no_probability
from lm_latent_eval.wrappers.mdm import orders
from lm_latent_eval.wrappers.mdm.options import MDMOptions
from lm_latent_eval.wrappers.mdm.unmasking import Requests, Unmasking, subsets

REPLICATES = 8
"""Number of independent u: few, but enough for an error."""
LLADA_BATCH = 32
"""Number of masked texts with systematic counts in LLaDA's loop."""
MOST_EXACT = 14
"""Largest number of tokens whose 2^L - 1 sets of masks are all read."""
MOST_CHOICES = 4096
"""Largest number of sets that a step may choose among, all of which are weighed."""
NEVER = "in every order of unmasking that was looked at"
UNBOUNDED = "under some of the masks (estimator=is averages over orders)"

Drawn = Callable[[int, int], Tensor]
"""Function (replicate r, n) -> n numbers of (0, 1), float64, always the same first
ones."""


def groups(num_samples: int) -> int:
    """Number of independent estimates among the draws."""
    return REPLICATES if num_samples >= REPLICATES else 1


def mask_counts(length: int, passes: int, u: float) -> Tensor:
    r"""Systematic mask counts, (N,).

    .. math:: l_k = 1 + \lfloor L (k + u) / N \rfloor, \qquad k = 0..N-1

    Over u in (0, 1) every count has an average share of 1/L.

    Example:
        >>> mask_counts(4, 8, 0.5)
        tensor([1, 1, 2, 2, 3, 3, 4, 4])
        >>> mask_counts(5, 2, 0.9)
        tensor([3, 5])
    """
    k = torch.arange(passes, dtype=torch.float64)
    return (length * (k + u) / passes).floor().long().clamp(max=length - 1) + 1


def masks(length: int, passes: int, uniform: Tensor) -> Tensor:
    """Draw N sets of masked positions, (N, L).

    The counts are systematic. The positions of each count are uniform, and balanced
    between counts: in one random order each set begins where the one before ended, so
    all positions are masked equally often, up to one.

    Args:
        length: L.
        passes: N.
        uniform: 1 + L random numbers in (0, 1).
    """
    counts = mask_counts(length, passes, float(uniform[0]))
    order = uniform[1:].argsort()
    begin = counts.cumsum(0) - counts
    step = torch.arange(length)
    # Rank of each position of the random order from the set's begin.
    after = (step - begin[:, None]) % length
    chosen = torch.zeros(passes, length, dtype=torch.bool)
    chosen[:, order] = after < counts[:, None]
    return chosen


def elbo(length: int, num_samples: int, drawn: Drawn) -> Requests[Estimate]:
    """Estimate the bound by N passes, or compute it if there are no more sets.

    Passes are divided among replicates, each with its own u and masks. If N passes can
    read every set, nothing is drawn. The error is that of the bound, not of log p.

    Args:
        length: L.
        num_samples: N.
        drawn: Random numbers of one text.

    Raises:
        MissedSupportError: If it is -inf.
    """
    if 2**length - 1 <= num_samples:
        value = yield from _every_set(length)
        if value == -math.inf:
            raise no_probability(UNBOUNDED)
        exact = Estimate.exact(value, num_tokens=length, estimator="elbo")
        return replace(exact, bound=Bound.STRICT_LOWER, num_samples=num_samples)
    replicates = groups(num_samples)
    passes = [
        num_samples // replicates + (r < num_samples % replicates)
        for r in range(replicates)
    ]
    chosen = [masks(length, n, drawn(r, 1 + length)) for r, n in enumerate(passes)]
    masked = torch.cat(chosen)
    log_p = (yield masked).log_p.sum(-1) * length / masked.sum(-1)
    values = [float(part.mean()) for part in log_p.split(passes)]
    estimate = _mean(values, length, num_samples, Bound.ESTIMATED_LOWER, "elbo")
    if replicates == 1 or not estimate.draws_stderr:
        estimate = replace(estimate, draws_degrees=math.inf)
    if replicates == 1:
        return estimate
    return replace(estimate, stderr=estimate.draws_stderr, replicates=tuple(values))


def _mean(
    replicates: Sequence[float],
    length: int,
    num_samples: int,
    bound: Bound,
    estimator: str,
) -> Estimate:
    count = len(replicates)
    value = math.fsum(replicates) / count
    if value == -math.inf:
        raise no_probability(UNBOUNDED)
    spread = math.inf
    if count > 1:
        spread = float(torch.tensor(replicates, dtype=torch.float64).std())
    return Estimate(
        log_evidence=value,
        stderr=None,
        draws_stderr=spread / math.sqrt(count),
        draws_degrees=float(max(count - 1, 1)),
        effective_sample_size=None,
        pareto_k=None,
        num_samples=num_samples,
        num_tokens=length,
        bound=bound,
        estimator=estimator,
    )


def _every_set(length: int) -> Requests[float]:
    total = 0.0
    for count in range(1, length + 1):
        masked = subsets(length, count)
        total += float((yield masked).log_p.sum(-1).mean()) / count
    return total


def llada_counts(length: int, batch: int, first: int) -> Tensor:
    """Mask counts of a batch, (B,).

    Example:
        >>> llada_counts(4, 8, 1)  # 2 and 4 come three times as often as 1 and 3
        tensor([1, 2, 2, 2, 3, 4, 4, 4])
    """
    steps = torch.linspace(float(first), first + (batch - 1) * (length / batch), batch)
    return (steps.round().long() - 1) % length + 1


def log_p_llada(length: int, num_samples: int, drawn: Drawn) -> Requests[Estimate]:
    """Result of LLaDA's loop, which is not log p.

    Its error is that of the loop's batches.

    Args:
        length: L.
        num_samples: N.
        drawn: Random numbers of one text.

    Raises:
        MissedSupportError: If it is -inf.
        ValueError: If N is no multiple of the batch, as in that program.
    """
    size = min(LLADA_BATCH, num_samples)
    if num_samples % size:
        raise ValueError(
            f"convention=llada: num_samples={num_samples} are no whole number of its "
            f"batches of {LLADA_BATCH}"
        )
    chosen, shares = [], []
    for batch in range(num_samples // size):
        uniform = drawn(batch, 1 + size * length)
        counts = llada_counts(length, size, 1 + int(float(uniform[0]) * length))
        ranks = uniform[1:].view(size, length).argsort(1).argsort(1)
        chosen.append(ranks < counts[:, None])
        shares.append(length / counts.double())
    log_p = (yield torch.cat(chosen)).log_p.sum(-1) * torch.cat(shares)
    values = [float(part.mean()) for part in log_p.split(size)]
    return _mean(values, length, num_samples, Bound.NONE, "llada")


@dataclass(frozen=True)
class TargetEstimate:
    estimate: Estimate
    is_greedy: bool = False


def compared(length: int, options: MDMOptions, key: int) -> Requests[TargetEstimate]:
    """Estimate a block, and whether greedy unmasking would write it."""
    part = yield from estimated(length, options, key)
    if options.process.follows or (length == 1 and not options.convention):
        return part
    greedy = yield from orders.is_greedy(length, options.process)
    return replace(part, is_greedy=greedy)


def estimated(length: int, options: MDMOptions, key: int) -> Requests[TargetEstimate]:
    """Estimate log p of a block of L tokens.

    Args:
        length: L.
        options: Process and estimator.
        key: Key of the block's random numbers.

    Raises:
        MissedSupportError: If it is -inf.
    """
    name, unmasking = options.estimator_of(length), options.process
    if options.convention:
        estimate = yield from log_p_llada(length, options.num_samples, _numbers(key))
        return TargetEstimate(estimate)
    if unmasking.follows or length == 1:  # one token has one order
        log_p, is_greedy = yield from orders.log_p_path(length, unmasking)
        return _known(log_p, length, name, is_greedy)
    if name == "exact":
        log_p = yield from orders.log_p_exact(length, unmasking)
        return _known(log_p, length, name)
    if name == "is":
        streams = Streams([key], options.num_samples)
        log_w = yield from orders.log_weights(
            length, options.num_samples, streams, unmasking=unmasking
        )
        if log_w.isneginf().all():
            raise no_probability(NEVER)
        estimate = Estimate.from_log_weights(log_w, num_tokens=length)
        return TargetEstimate(replace(estimate, replicates=_grouped(log_w)))
    estimate = yield from elbo(length, options.num_samples, _numbers(key))
    return TargetEstimate(estimate)


def check_length(length: int, options: MDMOptions) -> None:
    """Refuse a block that an estimator cannot sum over or draw paths of.

    Raises:
        ValueError: If ``exact`` is given more than ``MOST_EXACT`` tokens, or a step
            chooses among more than ``MOST_CHOICES`` sets.
    """
    name, unmasking = options.estimator_of(length), options.process
    if options.convention or unmasking.follows or length == 1:
        return
    if name == "exact" and length > MOST_EXACT:
        raise ValueError(
            f"estimator=exact reads all 2^{length} - 1 sets of masked tokens of "
            f"{length}; at most {MOST_EXACT} tokens are summed over: use estimator=is "
            "or estimator=elbo, or block_length=4, which is another model"
        )
    if name == "is" and unmasking.draws:
        check_choices(length, unmasking)


def check_choices(length: int, unmasking: Unmasking) -> None:
    """Refuse a block of which a step chooses among too many sets.

    Raises:
        ValueError: If there are more than ``MOST_CHOICES``.
    """
    if (num_choices := unmasking.number_of_choices(length)) > MOST_CHOICES:
        raise ValueError(
            f"unmasking={unmasking}: a step chooses among {num_choices:,} sets of "
            f"{length} places, whose probabilities are all computed; at most "
            f"{MOST_CHOICES:,}: use a smaller block_length or tokens_per_step"
        )


def _known(
    log_p: float, length: int, estimator: str, is_greedy: bool = False
) -> TargetEstimate:
    if log_p == -math.inf:
        raise no_probability(NEVER)
    exact = Estimate.exact(log_p, num_tokens=length, estimator=estimator)
    return TargetEstimate(exact, is_greedy)


def _grouped(log_w: Tensor) -> tuple[float, ...]:
    """Influence of each group on log p-hat; () if draws are few."""
    if (num_groups := groups(len(log_w))) == 1:
        return ()
    size = len(log_w) // num_groups * num_groups
    means = log_evidence(log_w[:size].reshape(num_groups, -1))
    return tuple(influences(means).tolist())


def _numbers(key: int) -> Drawn:
    def drawn(replicate: int, count: int) -> Tensor:
        blocks = uniforms(key, (0, replicate), -(-count // LANES))
        return torch.from_numpy(blocks.reshape(-1)[:count])

    return drawn
