"""Printed Monte Carlo errors, against what other seeds make of the same requests."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from scipy.stats import chi2

from lm_latent_eval.audit.requests import Pair
from lm_latent_eval.audit.session import Session
from lm_latent_eval.audit.verdict import ERRORS, Finding, fails, holds, untold
from lm_latent_eval.messages import one_line


def errors(session: Session) -> Iterator[Finding]:
    r"""Compare seeds.

    With m requests, R seeds and errors :math:`s_{ir}`, the sum of
    :math:`(x_{ir} - \bar x_i)^2 / \bar{s_i^2}` is chi-square with m (R - 1) degrees of
    freedom if errors are normal and as printed. Only errors that are too small fail.
    """
    yield _errors(session)


def _errors(session: Session) -> Finding:
    pairs = _pairs(session)
    replies = [session.ask.score(pairs)]
    if not any(reply.error for reply in replies[0]):
        return untold(ERRORS, "it prints none")
    for seed in range(1, session.plan.seeds):
        try:
            other = session.ask.backend.reopened(seed=str(seed))
        except Exception as err:  # of code that is not ours
            return untold(ERRORS, f"it takes no seed: {one_line(err)}")
        replies.append(session.ask.over(other).score(pairs))
    scores = np.array([[reply.log_p for reply in row] for row in replies])
    printed = np.array([[reply.error for reply in row] for row in replies])
    usable = np.isfinite(scores).all(0) & (printed > 0).all(0)
    if not usable.any():
        return untold(ERRORS, "no request has one with every seed")
    spread = scores[:, usable].var(0, ddof=1)
    squares = (printed[:, usable] ** 2).mean(0)
    degrees = int(usable.sum()) * (len(replies) - 1)
    statistic = float((spread / squares).sum() * (len(replies) - 1))
    ratio = math.sqrt(statistic / degrees)
    if statistic <= chi2.isf(session.level, degrees):
        return holds(
            ERRORS,
            f"{len(replies)} seeds, {int(usable.sum())} requests: spread is "
            f"{ratio:.2g} of what is printed",
        )
    worst = int(np.argmax(np.where(usable, scores.var(0, ddof=1), -1)))
    return fails(
        ERRORS,
        f"{len(replies)} seeds spread {ratio:.3g} times as far as printed errors say",
        context=pairs[worst][0],
        continuation=pairs[worst][1],
        log_p=scores[:, worst].tolist(),
        stderr=printed[:, worst].tolist(),
    )


def _pairs(session: Session) -> list[Pair]:
    rng = session.rng("errors")
    places = session.places(session.plan.seeded, rng)
    return [(context, rest) for context, rest in places]
