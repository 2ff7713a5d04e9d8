"""How log-likelihoods are estimated, checked before anything is loaded."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import torch

from lm_latent_eval.arguments import one_of, positive, whole
from lm_latent_eval.inference import REGISTRY
from lm_latent_eval.models.proposals import check_temperature

logger = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "float64": torch.float64}
"""Narrower types lose more in a log-likelihood than sampling does."""


@dataclass(frozen=True)
class ScoringOptions:
    """How log-likelihoods are estimated; every field can move a number.

    Attributes:
        estimator: ``auto`` (what a text asks for), ``mixed`` (search and draws),
            ``is`` (importance sampling), ``beam`` (beam marginalization), ``smc``
            (particle filters) or ``exact`` (models without latents); None is the
            model's first.
        num_samples: K, samples a text, or the width of the beam; ``auto`` takes up to
            4K. With ``target_stderr`` the size of the pilot.
        proposal: One that the checkpoint has; None is the one that reads most.
        temperature: Divides the proposal's scores; above 1 flattens it. From 0.001 to
            1000: beyond, rounding would decide.
        seed: Of all random numbers.
        unk: What an unknown word costs, see ``UnknownWords``; None is ``spelled`` where
            the checkpoint has a character model.
        target_stderr: Choose K a text, from a pilot, for this Monte Carlo standard
            error of its log-likelihood in nats; the number comes from fresh draws.
        max_samples: The most that ``target_stderr`` may choose.
        bounds: ``lower``, or ``both`` for an upper bound of whole texts as well, which
            takes as many draws again.
    """

    estimator: str | None = None
    num_samples: int = 100
    proposal: str | None = None
    temperature: float = 1.0
    seed: int = 0
    unk: str | None = None
    target_stderr: float | None = None
    max_samples: int = 100_000
    bounds: str = "lower"

    @classmethod
    def parse(cls, **arguments: Any) -> ScoringOptions:
        """Check and convert arguments as they come from a command line.

        Raises:
            ValueError: If there is no such argument, or a value is not one that it can
                have.
        """
        names = [field.name for field in fields(cls)]
        for name in arguments:
            one_of("argument", name, names)
        read = {name: _READ[name](name, value) for name, value in arguments.items()}
        options = cls(**read)
        if options.target_stderr is not None and options.max_samples < 2:
            raise ValueError(
                f"max_samples={options.max_samples}: a standard error needs at least 2"
            )
        return options


def _name(name: str, value: Any) -> str | None:
    return None if value in (None, "") else str(value)


def _estimator(name: str, value: Any) -> str | None:
    if value is None:
        return None
    if str(value) in REGISTRY:
        return str(value)
    return one_of(name, value, ["auto", *REGISTRY.names()])


def _temperature(name: str, value: Any) -> float:
    temperature = positive(name, value)
    check_temperature(temperature)
    return temperature


_READ: dict[str, Callable[[str, Any], Any]] = {
    "estimator": _estimator,
    "num_samples": partial(whole, least=1),
    "proposal": _name,
    "temperature": _temperature,
    "seed": partial(whole, least=0),
    "unk": _name,
    "target_stderr": lambda name, value: (
        None if value is None else positive(name, value)
    ),
    "max_samples": partial(whole, least=1),
    "bounds": lambda name, value: one_of(name, str(value), ["lower", "both"]),
}


def parse_dtype(value: Any) -> torch.dtype | None:
    """Read a floating type; ``auto`` is that of the checkpoint."""
    if value is None or value == "auto":
        return None
    return DTYPES[one_of("dtype", str(value).removeprefix("torch."), list(DTYPES))]


def parse_device(value: Any) -> torch.device:
    """Read a device; fall back to the CPU, with a warning, where it is not there."""
    if value is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(value)
    except (RuntimeError, TypeError) as err:
        raise ValueError(
            f"device={value!r}: not the name of a device; expected cpu, cuda or cuda:1"
        ) from err
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        logger.warning("device=%s is not there; using the CPU", value)
        return torch.device("cpu")
    if device.type not in ("cpu", "cuda"):
        logger.warning("device=%s is not supported; using the CPU", value)
        return torch.device("cpu")
    return device


def parse_batch_size(value: Any) -> int | None:
    """Read a batch size; None means "as memory allows" (``auto``, ``auto:N``)."""
    if value is None or str(value).split(":")[0] == "auto":
        return None
    return whole("batch_size", value, 1)
