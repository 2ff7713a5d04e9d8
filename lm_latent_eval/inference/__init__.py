"""Inference: a model and a proposal in, an estimate out.

- ``interface``: what an estimator is; an estimator a module: ``importance``, ``beam``
  (and exact sums), ``discrete``, ``smc``, ``annealing``;
- ``steps``, ``unfolding``, ``cuts``: draws and searches of left-to-right latents;
- ``particles``: weighted latents of a text that is read piece by piece; ``streams``:
  random numbers; ``ragged``: arrays;
- ``consistency``: checks of models and proposals that other packages bring.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from lm_latent_eval.inference.annealing import AnnealedImportanceSampling
from lm_latent_eval.inference.beam import BeamMarginalization, Exact
from lm_latent_eval.inference.discrete import DiscreteFilter
from lm_latent_eval.inference.importance import ImportanceSampling
from lm_latent_eval.inference.interface import Estimator
from lm_latent_eval.inference.smc import ParticleFilter
from lm_latent_eval.options import one_of
from lm_latent_eval.registry import ESTIMATORS


def estimator_class(name: str) -> type[Estimator]:
    """Return the class of an estimator by name; of ``auto``, the one that it widens.

    Raises:
        ValueError: If there is none, or what another package names is none.
    """
    found = DiscreteFilter if name == "auto" else ESTIMATORS[name]
    if not (isinstance(found, type) and issubclass(found, Estimator)):
        raise ValueError(
            f"estimator={name}: {found!r} is no class below "
            "lm_latent_eval.inference.Estimator, which says what reports need to know"
        )
    return found


def estimator_named(name: str, offered: Sequence[str]) -> Callable[[int], Estimator]:
    """Return an estimator: one of ours that suits a model, or another package's.

    Args:
        name: Its name, or ``package.module:Class``.
        offered: Those of ours that the model names.

    Raises:
        ValueError: If there is none, or it is one of ours that does not suit.
    """
    if name in ESTIMATORS.ours or name not in ESTIMATORS:
        one_of("estimator", name, offered)
    return cast(Callable[[int], Estimator], estimator_class(name))
