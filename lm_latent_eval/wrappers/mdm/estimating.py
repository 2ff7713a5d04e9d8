"""A target's log-probability by the estimator that was chosen, as an ``Estimate``."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lm_latent_eval.estimators import Bound, Estimate, influences, log_evidence
from lm_latent_eval.inference.streams import LANES, Streams
from lm_latent_eval.uniforms import uniforms
from lm_latent_eval.wrappers.base import no_probability
from lm_latent_eval.wrappers.mdm import bound, orders
from lm_latent_eval.wrappers.mdm.options import MDMOptions
from lm_latent_eval.wrappers.mdm.predictions import Asking

NEVER = "in every order of unmasking that was looked at"
UNBOUNDED = "under some of the masks (estimator=is averages over orders)"


@dataclass(frozen=True)
class TargetEstimate:
    """What was found for a target."""

    estimate: Estimate
    is_greedy: bool = False


def compared(length: int, options: MDMOptions, key: int) -> Asking[TargetEstimate]:
    """Estimate, and see if the model's own unmasking would write the target."""
    part = yield from estimated(length, options, key)
    if options.estimator == "path" or length == 1:
        return part
    return replace(part, is_greedy=(yield from orders.is_greedy(length)))


def estimated(length: int, options: MDMOptions, key: int) -> Asking[TargetEstimate]:
    """Estimate log p of a target of L tokens.

    Args:
        length: L.
        options: Which estimator, and its options.
        key: What the target's random numbers follow from.

    Raises:
        MissedSupportError: If it is -inf.
    """
    name = options.estimator
    if name == "path" or length == 1:  # one token has one order
        log_p, is_greedy = yield from orders.log_p_path(length)
        return _known(log_p, length, name, is_greedy)
    if name == "exact":
        log_p = yield from orders.log_p_exact(length)
        return _known(log_p, length, name)
    if name == "is":
        adapted = options.proposal == "adapted"
        log_w = yield from orders.log_weights(
            length,
            options.num_samples,
            Streams([key], options.num_samples),
            temperature=options.temperature if adapted else None,
        )
        if log_w.isneginf().all():
            raise no_probability(NEVER)
        estimate = Estimate.from_log_weights(log_w, num_tokens=length)
        return TargetEstimate(replace(estimate, replicates=_grouped(log_w)))
    found = yield from bound.elbo(length, options.num_samples, _numbers(key))
    if found.value == -math.inf:
        raise no_probability(UNBOUNDED)
    return TargetEstimate(_bounded(found, length, options))


def check_length(length: int, options: MDMOptions) -> None:
    """Refuse a target that an estimator cannot sum over.

    Raises:
        ValueError: If it is ``exact`` and there are more than ``MOST_EXACT`` tokens.
    """
    if options.estimator == "exact":
        orders.check_exact(length)


def _known(
    log_p: float, length: int, estimator: str, is_greedy: bool = False
) -> TargetEstimate:
    if log_p == -math.inf:
        raise no_probability(NEVER)
    estimate = Estimate.exact(log_p, num_tokens=length, estimator=estimator)
    return TargetEstimate(estimate, is_greedy)


def _bounded(found: bound.Bounded, length: int, options: MDMOptions) -> Estimate:
    """Record a bound: its error is that of the bound, and says nothing of log p."""
    error = found.stderr
    return Estimate(
        log_evidence=found.value,
        stderr=error,
        draws_stderr=math.inf if error is None else error,
        replicates=() if error is None else found.replicates,
        draws_degrees=float(max(len(found.replicates) - 1, 1)) if error else math.inf,
        effective_sample_size=None,
        pareto_k=None,
        num_samples=options.num_samples,
        num_tokens=length,
        bound=Bound.ESTIMATED_LOWER if found.drawn else Bound.STRICT_LOWER,
        estimator="elbo",
    )


def _grouped(log_w: Tensor) -> tuple[float, ...]:
    """Return what groups of K draws say of log p-hat; () of few draws."""
    if (groups := bound.groups(len(log_w))) == 1:
        return ()
    size = len(log_w) // groups * groups
    means = log_evidence(log_w[:size].reshape(groups, -1))
    return tuple(influences(means).tolist())


def _numbers(key: int) -> bound.Drawn:
    """Return the random numbers of a text: (replicate, n) -> n of them."""

    def drawn(replicate: int, number: int) -> Tensor:
        blocks = uniforms(key, (0, replicate), -(-number // LANES))
        return torch.from_numpy(blocks.reshape(-1)[:number])

    return drawn
