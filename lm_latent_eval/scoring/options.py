"""Options of scoring, checked before anything is loaded.

The two dataclasses are the tables of options that models of latents and all models
have: see ``lm_latent_eval.options``. Neither needs torch.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from lm_latent_eval.options import (
    OptionTable,
    choice,
    one_of,
    option,
    positive,
    whole,
)
from lm_latent_eval.registry import ESTIMATORS
from lm_latent_eval.text.unknown_words import UnknownWords

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

DTYPES = ("float32", "float64")
NARROW = ("float16", "bfloat16")
"""They lose more in a log-likelihood than sampling does (docs/errors.md)."""
BOUNDS = ("lower", "both")


def estimator_names() -> list[str]:
    """List what ``estimator`` can be: ours first."""
    own = ["auto", *ESTIMATORS.ours]
    return [*own, *(name for name in ESTIMATORS.names() if name not in own)]


def _name(name: str, value: Any) -> str | None:
    return None if value in (None, "") else str(value)


def _estimator(name: str, value: Any) -> str | None:
    if value is None or str(value) in ESTIMATORS:
        return _name(name, value)
    return one_of(name, value, estimator_names())


def read_temperature(name: str, value: Any) -> float:
    """Read the temperature of a proposal.

    Raises:
        ValueError: If it is no number, or one at which rounding would decide.
    """
    from lm_latent_eval.models.proposals import check_temperature

    temperature = positive(name, value)
    check_temperature(temperature)
    return temperature


def _batch(name: str, value: Any) -> Any:
    parse_batch_size(value, name)
    return value


@dataclass(frozen=True)
class ScoringOptions(OptionTable):
    """How log-likelihoods are estimated; every field can move a number.

    Attributes:
        estimator: How the sum over the latents is estimated.
        num_samples: K, the samples a text (of ``auto`` at least 20) or the width of a
            beam.
        proposal: What latents are drawn from, one that the checkpoint has.
        temperature: Divides the proposal's scores; above 1 flattens it. From 0.001 to
            1000: beyond, rounding would decide.
        seed: Of all random numbers.
        unk: What an unknown word costs beside p(unknown): its spelling (``spelled``),
            1 / number of unknown types (``penalized``) or nothing (``closed``).
        bounds: ``lower``, or ``both`` for an upper bound of whole texts as well, which
            takes as many draws again.
    """

    estimator: str | None = option(
        None, _estimator, choices=estimator_names, unset="the first that the model has"
    )
    num_samples: int = option(100, partial(whole, least=1))
    proposal: str | None = option(None, _name, unset="the first that the model has")
    temperature: float = option(1.0, read_temperature)
    seed: int = option(0, partial(whole, least=0))
    unk: str | None = option(
        None,
        _name,
        choices=lambda: [*UnknownWords],
        unset="`spelled` with a character model, else `penalized` or `closed`",
    )
    bounds: str = choice("lower", BOUNDS)


@dataclass(frozen=True)
class OpeningOptions(OptionTable):
    """Which model is opened, and how it computes: options of every model.

    Attributes:
        pretrained: Checkpoint directory or hub repository.
        model: Its name, with or without ``latent_``, or ``package.module:Class``.
        revision: Of the repository: a commit, tag or branch.
        batch_size: Texts scored together, or ``auto``: as many as memory allows. Moves
            no number but by rounding.
        max_batch_size: The most that ``auto`` takes.
        device: Where to compute, such as ``cpu``, ``cuda``, ``cuda:1`` or ``mps``,
            which has no float64.
        dtype: Floating type to compute in; ``auto`` is the checkpoint's own.
        log_weights: Whether records beside the results keep log-weights.
    """

    pretrained: str | None = option(None, unset="the demonstration, of ``latent_kglm``")
    model: str | None = option(None, unset="what the directory says")
    revision: str | None = option(None, unset="the newest")
    batch_size: int | str | None = option("auto", _batch, choices=lambda: ("auto",))
    max_batch_size: int | str | None = option(
        None, _batch, unset="64; 128 of ``latent_cot``, 256 of ``latent_tokens``"
    )
    device: str | None = option(
        None, choices=lambda: ("cpu", "cuda", "mps"), unset="a GPU if there is one"
    )
    dtype: str | None = option("auto", choices=lambda: ("auto", *DTYPES))
    log_weights: bool = option(False)


def parse_dtype(value: Any) -> torch.dtype | None:
    """Read a floating type; None, ``auto``, is the checkpoint's."""
    if value is None or value == "auto":
        return None
    import torch

    name = str(value).removeprefix("torch.")
    if name in NARROW:
        raise ValueError(
            f"dtype={name}: its rounding moves log-likelihoods by hundredths of a nat, "
            "more than draws do: give float32, or leave dtype out"
        )
    name = one_of("dtype", name, DTYPES)
    return {"float32": torch.float32, "float64": torch.float64}[name]


def parse_device(value: Any) -> torch.device:
    """Read a device; fall back to the CPU, with a warning, where it is not there."""
    import torch

    if value is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(value)
    except (RuntimeError, TypeError) as err:
        raise ValueError(
            f"device={value!r}: not the name of a device; expected cpu, cuda, cuda:1 "
            "or mps"
        ) from err
    if not _is_there(device):
        logger.warning("device=%s is not there; using the CPU", value)
        return torch.device("cpu")
    return device


def _is_there(device: torch.device) -> bool:
    import torch

    if device.type == "cuda":  # without waking it: processes may be forked yet
        return (device.index or 0) < torch.cuda.device_count()
    try:
        torch.empty(0, device=device).cpu()
    except (AssertionError, ImportError, RuntimeError):
        return False
    return True


def parse_batch_size(value: Any, name: str = "batch_size") -> int | None:
    """Read a batch size; None means "as memory allows" (``auto``, ``auto:N``)."""
    if value is None or str(value).split(":")[0] == "auto":
        return None
    try:
        return whole(name, value, 1)
    except ValueError as err:
        raise ValueError(f"{err}, or auto: as many texts as memory allows") from err
