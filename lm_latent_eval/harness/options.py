"""What ``--model_args`` may say, checked before anything is loaded."""

from __future__ import annotations

import difflib
import logging
import math
from dataclasses import dataclass
from typing import Any

import torch

from lm_latent_eval.inference import ESTIMATORS

logger = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "float64": torch.float64}
"""Narrower types lose more in a log-likelihood than sampling does."""


@dataclass(frozen=True)
class EvaluationOptions:
    """How log-likelihoods are estimated; every field can move a number."""

    estimator: str
    num_samples: int
    proposal: str
    temperature: float
    seed: int
    unk: str
    target_stderr: float | None
    max_samples: int

    @classmethod
    def parse(cls, **arguments: Any) -> EvaluationOptions:
        """Check and convert arguments as they come from a command line.

        Raises:
            ValueError: If a value is not one that the argument can have.
        """
        target = arguments.pop("target_stderr")
        options = cls(
            estimator=one_of("estimator", arguments.pop("estimator"), list(ESTIMATORS)),
            num_samples=whole("num_samples", arguments.pop("num_samples"), 1),
            max_samples=whole("max_samples", arguments.pop("max_samples"), 1),
            seed=whole("seed", arguments.pop("seed"), 0),
            temperature=positive("temperature", arguments.pop("temperature")),
            target_stderr=None if target is None else positive("target_stderr", target),
            **arguments,
        )
        if options.target_stderr is not None and options.estimator != "is":
            raise ValueError(
                f"target_stderr needs estimator=is: estimator={options.estimator} has "
                "no Monte Carlo error to aim at"
            )
        return options


def whole(name: str, value: Any, least: int) -> int:
    """Read a whole number."""
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
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not (0 < number < math.inf):
        raise ValueError(f"{name}={value!r}: expected a positive number")
    return number


def one_of(name: str, value: Any, names: list[str]) -> str:
    """Read one of several names."""
    if value not in names:
        near = difflib.get_close_matches(str(value), names)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise ValueError(f"{name}={value!r}: expected one of {', '.join(names)}{hint}")
    return str(value)


def parse_dtype(value: Any) -> torch.dtype | None:
    """Read a floating type; ``auto`` is that of the checkpoint."""
    if value is None or value == "auto":
        return None
    if isinstance(value, torch.dtype):
        return value
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
