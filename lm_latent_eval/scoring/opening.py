"""Opening of models and choice of their settings, by either scoring interface.

Options that have no effect are warned of.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

import torch

from lm_latent_eval.estimators import Bound
from lm_latent_eval.inference import estimator_class
from lm_latent_eval.inference.unfolding import SearchedProposal
from lm_latent_eval.models import checkpoint, model_class, without_prefix
from lm_latent_eval.models.checkpoint import Checkpoint
from lm_latent_eval.models.pretrained import Pretrained
from lm_latent_eval.models.proposals import NoLatents
from lm_latent_eval.options import one_of
from lm_latent_eval.registry import ESTIMATORS
from lm_latent_eval.scoring.interface import TextModel, TextScorer
from lm_latent_eval.scoring.options import (
    OpeningOptions,
    ScoringOptions,
    parse_batch_size,
    parse_device,
    parse_dtype,
)
from lm_latent_eval.scoring.scorer import Scorer


def open_model(
    path: str | Path,
    *,
    model: str | None = None,
    revision: str | None = None,
    options: Mapping[str, Any] | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
) -> Checkpoint | TextModel:
    """Open a directory or hub repository through the interface that its model has.

    Args:
        path: The directory or repository.
        model: The model's name, lm-eval's for it (``latent_kglm``) or
            ``package.module:Class``; None is what is there.
        revision: Commit, tag or branch of the repository.
        options: Options for ``scorer_of``, whose errors in those of latent models are
            raised before anything is loaded.
        dtype: Floating type to compute in; None is that of the file.
        device: Where to compute.

    Raises:
        ValueError: If there is no model, no such model, or it is incomplete.
    """
    directory = checkpoint.directory_of(path, revision)
    model = model and without_prefix(model)
    name = model or checkpoint.name_in(directory)
    kind = model_class(name) if name else None
    if isinstance(kind, type) and issubclass(kind, TextModel):
        return kind.open_directory(directory, dtype=dtype, device=torch.device(device))
    if name:
        _parsed(options or {}, name)
    return checkpoint.load_checkpoint(
        directory, expected=model, dtype=dtype, device=device
    )


def scorer_of(
    opened: Checkpoint | TextModel,
    options: Mapping[str, Any],
    *,
    batch_size: int | str | None = None,
    max_batch_size: int | str | None = None,
    quiet: bool = False,
) -> TextScorer:
    """Choose settings of an opened model: see ``TextModel.scorer``.

    Options of a latent model that have no effect on likelihoods are warned of, once a
    process.
    """
    if not isinstance(opened, Checkpoint):
        return opened.scorer(
            options, batch_size=batch_size, max_batch_size=max_batch_size, quiet=quiet
        )
    parsed = _parsed(options, opened.name)
    for names, why in _without_effect(parsed, opened.name, opened.model):
        if idle := [name for name in names if name in options]:
            _warn(f"{', '.join(idle)}: no effect on likelihoods, {why}")
    if max_batch_size is not None and parse_batch_size(batch_size) is not None:
        _warn(f"max_batch_size: no effect, batch_size={batch_size} is given")
    return Scorer(
        opened,
        parsed,
        batch_size=batch_size,
        max_batch_size=max_batch_size,
        quiet=quiet,
    )


def _parsed(options: Mapping[str, Any], name: str | None) -> ScoringOptions:
    names = ScoringOptions.names()
    if unknown := [option for option in options if option not in names]:
        every = [*OpeningOptions.names(), *names]
        near = get_close_matches(unknown[0], every, n=1)
        raise ValueError(
            f"{unknown[0]!r} is not an argument of latent_{name}; expected "
            f"{', '.join(every)}{f' (did you mean {near[0]}?)' if near else ''}"
        )
    estimator = options.get("estimator")
    if name and estimator not in (None, "") and str(estimator) not in ESTIMATORS:
        one_of("estimator", estimator, model_class(name).estimators)
    return ScoringOptions.parse(options)


logger = logging.getLogger(__name__)

_OF_DRAWS = ("num_samples", "proposal", "temperature", "seed", "bounds")
_UNTEMPERED = {("kglm", "adapted"), ("rnng", "crf")}
"""Model and proposal whose beams are the same at every temperature: they rank by p, or
by scores of whole latents, whose order no division changes."""


def _without_effect(
    options: ScoringOptions, model: str, latent_lm: Pretrained
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield names of options, and why they have no effect."""
    estimator = options.estimator or latent_lm.estimators[0]
    method = estimator_class(estimator)
    if method.bound is Bound.EXACT:
        yield _OF_DRAWS, "which are exact: nothing is drawn"
        return
    if isinstance(latent_lm.proposal(None, 1.0), NoLatents):
        yield _OF_DRAWS, f"latent_{model} has no latents"
        return
    if options.bounds == "both" and not method.checks:
        why = f"an upper bound comes with an error, and estimator={estimator} has none"
        yield ("bounds",), why
    if method.own_proposal and isinstance(
        latent_lm.proposal(None, 1.0), SearchedProposal
    ):
        why = f"estimator={estimator} searches by {latent_lm.proposal_names[0]}"
        yield ("proposal", "temperature"), why
    if not method.seeded:
        yield ("seed",), f"estimator={estimator} draws nothing"
        proposal = options.proposal or latent_lm.proposal_names[0]
        if (model, proposal) in _UNTEMPERED:
            yield ("temperature",), f"searches by {proposal} do not depend on it"


@cache
def _warn(message: str) -> None:
    logger.warning("%s", message)


@dataclass(frozen=True)
class Opening:
    """Arguments with which a command, or each of its workers, opens its scorer."""

    checkpoint: str
    """Path or repository that every machine has."""
    options: dict[str, Any]
    model: str | None = None
    revision: str | None = None
    batch_size: int | str | None = None
    max_batch_size: int | str | None = None
    device: str | None = None
    dtype: str | None = None

    @property
    def needs_gpu(self) -> bool:
        """Whether each worker is to have one for itself."""
        device = self.device or parse_device(None).type
        return device.startswith("cuda")

    def scorer(self, *, quiet: bool = True) -> TextScorer:
        """Load the model.

        Raises:
            ValueError: If there is none, or a setting is impossible.
        """
        opened = open_model(
            self.checkpoint,
            model=self.model,
            revision=self.revision,
            options=self.options,
            dtype=parse_dtype(self.dtype),
            device=parse_device(self.device),
        )
        return scorer_of(
            opened,
            self.options,
            batch_size=self.batch_size,
            max_batch_size=self.max_batch_size,
            quiet=quiet,
        )
