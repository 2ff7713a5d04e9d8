"""What would make a number better: advice from its errors and diagnostics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lm_latent_eval.estimators import Bound
from lm_latent_eval.estimators.importance import WORTH_LESS, enough_samples


def advice(values: dict[str, Any], ours: dict[str, Any]) -> Iterator[str]:
    """Say what would make a task's numbers better, or that nothing would.

    Args:
        values: Of a task, as lm-eval writes them.
        ours: How they were made.
    """
    unknown = values.get("texts_without_monte_carlo_error,none")
    if unknown is None:
        return
    number, checks = ours.get("num_samples", 1), ours.get("checks", True)
    strict = {*ours.get("bound_of_log_likelihood", ())} == {str(Bound.STRICT_LOWER)}
    proposal, best = ours.get("proposal"), ours.get("default_proposal")
    if unknown and strict:
        yield (
            "How far a beam's bound is from the truth is not known. estimator=auto "
            "adds what the beam left out, and an error."
        )
    elif unknown and not checks:
        yield (
            "Nothing has checked these draws. estimator=auto searches as well, sums "
            "what it finds, and gives an error where the two agree."
        )
    elif unknown:
        yield (
            f"Wider searches still find more of {unknown:g} texts, or search and draws "
            f"contradict each other. num_samples={4 * number} would look further."
        )
    if unknown and best and proposal != best:
        yield f"proposal={best}, the model's own, would draw what p asks for."
    error = values.get("token_perplexity_monte_carlo_error,none")
    over_texts = values.get("token_perplexity_stderr,none")
    if not isinstance(error, float) or not isinstance(over_texts, float) or not error:
        return
    if error > WORTH_LESS * over_texts:
        more = enough_samples(number, error, over_texts)
        yield (
            f"About num_samples={more} would make the Monte Carlo error a fifth of "
            "that over texts, below which it hardly counts."
        )
    else:
        yield "More samples would hardly make ± smaller: what counts is more texts."
