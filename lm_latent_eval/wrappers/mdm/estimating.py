"""A block's log-probability by the estimator that was chosen, as an ``Estimate``."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lm_latent_eval.estimators import Bound, Estimate, influences, log_evidence
from lm_latent_eval.inference.streams import LANES, Streams, stream_key
from lm_latent_eval.uniforms import uniforms
from lm_latent_eval.wrappers.base import no_probability
from lm_latent_eval.wrappers.mdm import bound, llada, orders
from lm_latent_eval.wrappers.mdm.options import MDMOptions
from lm_latent_eval.wrappers.mdm.predictions import Requests

NEVER = "in every order of unmasking that was looked at"
UNBOUNDED = "under some of the masks (estimator=is averages over orders)"


@dataclass(frozen=True)
class TargetEstimate:
    """What was found for a block."""

    estimate: Estimate
    is_greedy: bool = False


def compared(length: int, options: MDMOptions, key: int) -> Requests[TargetEstimate]:
    """Estimate, and see if the model's own unmasking would write the block."""
    part = yield from estimated(length, options, key)
    if options.process.follows or length == 1:
        return part
    found = yield from orders.is_greedy(length, options.process)
    return replace(part, is_greedy=found)


def estimated(length: int, options: MDMOptions, key: int) -> Requests[TargetEstimate]:
    """Estimate log p of a block of L tokens.

    Args:
        length: L.
        options: Which process and estimator, and its options.
        key: What the block's random numbers follow from.

    Raises:
        MissedSupportError: If it is -inf.
    """
    name, unmasking = options.estimator_of(length), options.process
    if options.convention:
        found = yield from llada.log_p_llada(length, options.num_samples, _numbers(key))
        if found.value == -math.inf:
            raise no_probability(UNBOUNDED)
        return TargetEstimate(_unproven(found, length, options))
    if unmasking.follows or length == 1:  # one token has one order
        log_p, is_greedy = yield from orders.log_p_path(length, unmasking)
        return _known(log_p, length, name, is_greedy)
    if name == "exact":
        log_p = yield from orders.log_p_exact(length, unmasking)
        return _known(log_p, length, name)
    if name == "is":
        estimate = yield from _importance(length, options, key)
        if options.bounds == "both":
            others = yield from _weights(length, options, stream_key(key, "psi"))
            log_psi = float(log_evidence(others))
            if log_psi > -math.inf:  # else there is no bound
                estimate = estimate.with_tangent(log_psi)
        return TargetEstimate(estimate)
    found = yield from bound.elbo(length, options.num_samples, _numbers(key))
    if found.value == -math.inf:
        raise no_probability(UNBOUNDED)
    return TargetEstimate(_bounded(found, length, options))


def _weights(length: int, options: MDMOptions, key: int) -> Requests[Tensor]:
    adapted = options.proposal == "adapted"
    log_w = yield from orders.log_weights(
        length,
        options.num_samples,
        Streams([key], options.num_samples),
        unmasking=options.process,
        temperature=options.temperature if adapted else None,
    )
    return log_w


def _importance(length: int, options: MDMOptions, key: int) -> Requests[Estimate]:
    log_w = yield from _weights(length, options, key)
    if log_w.isneginf().all():
        raise no_probability(NEVER)
    estimate = Estimate.from_log_weights(log_w, num_tokens=length)
    return replace(estimate, replicates=_grouped(log_w))


def check_length(length: int, options: MDMOptions) -> None:
    """Refuse a block that an estimator cannot sum over or draw paths of.

    Raises:
        ValueError: If it is ``exact`` and there are more than ``MOST_EXACT`` tokens, or
            a step chooses among too many sets.
    """
    name = options.estimator_of(length)
    if options.convention or options.process.follows or length == 1:
        return
    if name == "exact":
        orders.check_exact(length)
    if name == "is":
        orders.check_choices(length, options.process)


def _known(
    log_p: float, length: int, estimator: str, is_greedy: bool = False
) -> TargetEstimate:
    if log_p == -math.inf:
        raise no_probability(NEVER)
    estimate = Estimate.exact(log_p, num_tokens=length, estimator=estimator)
    sides = replace(estimate, upper=log_p, upper_stderr=0.0)
    return TargetEstimate(sides, is_greedy)


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


def _unproven(found: bound.Bounded, length: int, options: MDMOptions) -> Estimate:
    """Record what LLaDA's loop says: its error is known by its batches alone."""
    number = len(found.replicates)
    values = torch.tensor(found.replicates, dtype=torch.float64)
    error = float(values.std()) / math.sqrt(number) if number > 1 else math.inf
    return Estimate(
        log_evidence=found.value,
        stderr=None,
        draws_stderr=error,
        draws_degrees=float(max(number - 1, 1)),
        effective_sample_size=None,
        pareto_k=None,
        num_samples=options.num_samples,
        num_tokens=length,
        bound=Bound.NONE,
        estimator="llada",
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
