"""Laws of estimators: their statements about themselves hold on enumerable texts.

An estimator declares whether its p-hat is unbiased or a lower bound (``bound``),
whether it ignores random numbers (``seeded``) and whether something validates its
draws (``checks``). Reports and certificates rest on these.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from lm_latent_eval.estimators import Bound, Estimate, MissedSupportError
from lm_latent_eval.inference import Estimator
from lm_latent_eval.testing.case import Case, Law, close, equal, hold, keys, mean_is_one

MakeEstimator = Callable[[int], Estimator]
SIZES = (2, 5, 8)
"""Values of K, small enough to miss most latents of a text."""


def estimator_laws(estimator: MakeEstimator, case: Case) -> list[Law]:
    """List the laws of an estimator on a model, by each proposal of the case.

    Args:
        estimator: The class, or another function from a number of samples.
        case: A model. If it or a proposal does not suit the estimator, an error that
            names either is required.
    """
    of_estimator = (
        bounds_are_true,
        only_random_numbers_move_draws,
        fewer_samples_are_the_first,
    )
    name = getattr(estimator, "name", "")
    return [
        Law(partial(law, estimator, case, which), f"{law.__name__}-{which}-{name}")
        for which in case.proposals
        for law in of_estimator
    ]


def bounds_are_true(estimator: MakeEstimator, case: Case, which: str) -> None:
    """Test p-hat against ``bound``, and exact estimates against log p.

    The mean of a p-hat that is a stochastic lower bound is p(x), by five of its
    standard errors, for any K and proposal. A heavy tail leaves that error
    undetermined, and the law says ``undetermined``.
    """
    for method in _of_sizes(estimator):
        what = f"estimator={method.name}, {which}, num_samples={method.num_samples}"
        errors = _errors(method, case, which, what)
        if _is_refused(method, which, partial(errors, 1)):
            return
        match method.bound:
            case Bound.STOCHASTIC_LOWER:
                mean_is_one(errors, case.exact(), f"p-hat of {what}")
            case Bound.ESTIMATED_LOWER:
                log_ratios = errors(100)
                stderr = log_ratios.std().item() / math.sqrt(len(log_ratios))
                hold(
                    log_ratios.mean() <= 5 * stderr + case.exact(),
                    f"{what}: the mean of log p-hat is above log p(x)",
                )
            case _:
                errors(3)


def _errors(
    method: Estimator, case: Case, which: str, what: str
) -> Callable[[int], Tensor]:
    """Function that estimates copies of a text, each with its own random numbers.

    It checks every estimate, and returns log p-hat less log p, nats, (copies,).
    """
    proposal = case.proposal(which)
    text = case.readable(proposal)[5]
    truth = case.log_p(text).item()

    def errors(copies: int) -> Tensor:
        rows = case.log_weights(method, proposal, [text] * copies)
        estimates = [_estimate(method, row, len(text)) for row in rows]
        for each in estimates:
            _hold_one(each, method, truth, case.exact(), what)
        missed = -math.inf  # where no latent was found, p-hat is 0
        log_p = [each.log_evidence if each else missed for each in estimates]
        return torch.tensor(log_p, dtype=torch.float64) - truth

    return errors


def _hold_one(
    estimate: Estimate | None, method: Estimator, truth: float, within: float, what: str
) -> None:
    if estimate is None:
        return
    if Bound.EXACT in (estimate.bound, method.bound):
        equal(estimate.log_evidence, truth, within, f"{what}: log p-hat that is exact")
    if Bound.STRICT_LOWER in (estimate.bound, method.bound):
        hold(
            estimate.log_evidence <= truth + within,
            f"{what}: a strict lower bound exceeds log p(x)",
        )
    checked = estimate.stderr is None or method.checks or estimate.bound is Bound.EXACT
    hold(checked, f"{what}: an error, and nothing checks what the draws miss")


def only_random_numbers_move_draws(
    estimator: MakeEstimator, case: Case, which: str
) -> None:
    """Equal random numbers give equal weights, and others do if not ``seeded``."""
    for method in _of_sizes(estimator):
        what = f"estimator={method.name}, {which}"
        weigh = partial(_weigh, method, case, which)
        if _is_refused(method, which, weigh):
            return
        close(weigh(), weigh(), f"{what}: weights by the same random numbers")
        if not method.seeded:
            close(weigh("other"), weigh(), f"{what}: weights that are not seeded")


def _weigh(method: Estimator, case: Case, which: str, purpose: str = "") -> Tensor:
    proposal = case.proposal(which)
    whole = case.whole(case.readable(proposal)[1:4], proposal)
    log_w = method.log_weights(replace(whole, keys=keys(3, purpose)))
    return log_w.cpu()


def fewer_samples_are_the_first(
    estimator: MakeEstimator, case: Case, which: str
) -> None:
    """Where an estimate keeps a log-weight a sample, the first k are those of k."""
    methods = list(_of_sizes(estimator))
    nested = [each for each in methods if each.kept == each.num_samples]
    if len(nested) < len(methods) or len(nested) < 2:
        return
    few, *_, many = nested
    fewer, more = (_weigh(method, case, which) for method in (few, many))
    what = f"estimator={few.name}, {which}: the first {few.num_samples} samples"
    close(more[:, : fewer.shape[1]], fewer, what)


def _of_sizes(estimator: MakeEstimator) -> Iterator[Estimator]:
    refusals = []
    for size in SIZES:
        try:
            method = estimator(size)
        except ValueError as err:
            refusals.append(str(err))
        else:
            yield method
    hold(len(refusals) < len(SIZES), f"no number of samples is taken: {refusals}")


def _is_refused(method: Estimator, which: str, ask: Callable[[], Tensor]) -> bool:
    """Whether a model or proposal does not suit; the error must name it."""
    try:
        ask()
    except ValueError as err:
        named = any(name in str(err) for name in (f"={method.name}", repr(which)))
        hold(named, f"an error names neither {method.name} nor {which}: {err}")
        return True
    return False


def _estimate(method: Estimator, row: Tensor, num_tokens: int) -> Estimate | None:
    """Estimate of a row of weights; None if all are zero."""
    try:
        return method.estimate(row, num_tokens)
    except MissedSupportError:
        return None
