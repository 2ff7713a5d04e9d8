"""Warn about options that have no effect."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from functools import cache

from lm_latent_eval.estimators import Bound
from lm_latent_eval.inference import estimator_class
from lm_latent_eval.inference.unfolding import StepProposal
from lm_latent_eval.models.checkpoint import Checkpoint
from lm_latent_eval.scoring.evaluation import Model
from lm_latent_eval.scoring.options import ScoringOptions, parse_batch_size

logger = logging.getLogger(__name__)

_OF_DRAWS = ("num_samples", "proposal", "temperature", "seed", "max_samples", "bounds")
_UNTEMPERED = {("kglm", "adapted"), ("rnng", "crf")}
"""Model and proposal whose beams are the same at every temperature: they rank by p, or
by scores of whole latents, whose order no division changes."""


def warn_of_idle(
    given: Collection[str], options: ScoringOptions, checkpoint: Checkpoint
) -> None:
    """Warn, once a process, of options that move no likelihood.

    Args:
        given: Names of the options that a user has chosen.
        options: All of them.
        checkpoint: The model.
    """
    for names, why in _without_effect(options, checkpoint.name, checkpoint.model):
        if idle := [name for name in names if name in given]:
            _warn(f"{', '.join(idle)}: no effect on likelihoods, {why}")


def warn_of_batch_sizes(
    batch_size: int | str | None, max_batch_size: int | str | None
) -> None:
    """Warn where a largest batch is given beside the size of all."""
    if max_batch_size is not None and parse_batch_size(batch_size) is not None:
        _warn(f"max_batch_size: no effect, batch_size={batch_size} is given")


def _without_effect(
    options: ScoringOptions, model: str, latent_lm: Model
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield names of options, and why they have no effect."""
    estimator = options.estimator or latent_lm.estimators[0]
    does = estimator_class(estimator)
    if does.bound is Bound.EXACT:
        yield _OF_DRAWS, "which are exact: nothing is drawn"
        return
    if options.target_stderr is None:
        yield ("max_samples",), "it bounds what target_stderr chooses: give that, too"
    if options.bounds == "both" and not does.checks:
        why = f"an upper bound comes with an error, and estimator={estimator} has none"
        yield ("bounds",), why
    if does.own_proposal and isinstance(latent_lm.proposal(None, 1.0), StepProposal):
        why = f"estimator={estimator} searches by {latent_lm.proposal_names[0]}"
        yield ("proposal", "temperature"), why
    if not does.seeded:
        yield ("seed",), f"estimator={estimator} draws nothing"
        proposal = options.proposal or latent_lm.proposal_names[0]
        if (model, proposal) in _UNTEMPERED:
            yield ("temperature",), f"searches by {proposal} do not depend on it"


@cache
def _warn(message: str) -> None:
    logger.warning("%s", message)
