"""How log-likelihoods are estimated, checked before anything is loaded."""

from __future__ import annotations

import difflib
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import torch

from lm_latent_eval.inference import ESTIMATORS

logger = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "float64": torch.float64}
"""Narrower types lose more in a log-likelihood than sampling does."""


@dataclass(frozen=True)
class ScoringOptions:
    """How log-likelihoods are estimated; every field can move a number.

    Attributes:
        estimator: ``is`` (importance sampling), ``beam`` (beam marginalization) or
            ``exact`` (models without latents); None is the model's first.
        num_samples: K, samples a text, or the width of the beam; with
            ``target_stderr`` the size of the pilot.
        proposal: One that the checkpoint has; None is the one that reads most.
        temperature: Divides the proposal's scores; above 1 flattens it.
        seed: Of all random numbers.
        unk: What an unknown word costs, see ``UnknownWords``; None is ``spelled`` where
            the checkpoint has a character model.
        target_stderr: Choose K a text, from a pilot, for this Monte Carlo standard
            error of its log-likelihood in nats; the number comes from fresh draws.
        max_samples: The most that ``target_stderr`` may choose.
    """

    estimator: str | None = None
    num_samples: int = 100
    proposal: str | None = None
    temperature: float = 1.0
    seed: int = 0
    unk: str | None = None
    target_stderr: float | None = None
    max_samples: int = 100_000

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


def whole(name: str, value: Any, least: int) -> int:
    """Read a whole number."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # 1e3, say, on a command line
    try:
        number = int(str(value))
    except ValueError:
        number = least - 1
    if number < least:
        raise ValueError(
            f"{name}={value!r}: expected a whole number of at least {least}"
        )
    return number


def positive(name: str, value: Any) -> float:
    """Read a positive finite number."""
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not (0 < number < math.inf):
        raise ValueError(f"{name}={value!r}: expected a positive number")
    return number


def one_of(name: str, value: Any, names: Sequence[str]) -> str:
    """Read one of several names."""
    if value not in names:
        near = difflib.get_close_matches(str(value), names)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise ValueError(f"{name}={value!r}: expected one of {', '.join(names)}{hint}")
    return str(value)


def _name(name: str, value: Any) -> str | None:
    return None if value in (None, "") else str(value)


_READ: dict[str, Callable[[str, Any], Any]] = {
    "estimator": lambda name, value: (
        None if value is None else one_of(name, value, list(ESTIMATORS))
    ),
    "num_samples": partial(whole, least=1),
    "proposal": _name,
    "temperature": positive,
    "seed": partial(whole, least=0),
    "unk": _name,
    "target_stderr": lambda name, value: (
        None if value is None else positive(name, value)
    ),
    "max_samples": partial(whole, least=1),
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
