"""The law of this suite: a result, or one clear sentence, and never another number.

What is given to a part of the package, however odd, ends in a result without NaN or in
an error that our own code raises, in one line.
"""

from __future__ import annotations

import contextlib
import io
import math
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import settings

import lm_latent_eval
from lm_latent_eval.cli import main

OURS = str(Path(lm_latent_eval.__file__).parent)
CLEAR = (ValueError, TypeError, OSError, FloatingPointError, ModuleNotFoundError)
"""Errors that a caller may be expected to understand."""


class Broken(AssertionError):
    """An error that is not one clear sentence of ours, or a number that moved."""


@dataclass(frozen=True)
class Refused:
    """What was not done, and why."""

    reason: str


def share(part: float) -> settings:
    """Return settings for a part of the profile's examples."""
    # What CI finds, it finds again; `make fuzz` looks for what nobody has seen.
    profile = settings()
    return settings(
        max_examples=max(1, round(profile.max_examples * part)),
        derandomize=settings.get_current_profile_name() != "fuzz",
    )


def outcome(call: Callable[[], Any]) -> Any:
    """Return what a call returns, or ``Refused``.

    Raises:
        Broken: If it raises anything but one clear sentence of ours.
    """
    try:
        return call()
    except AssertionError:
        raise
    except Exception as err:
        message = str(err)
        clear = isinstance(err, CLEAR) and _is_ours(err)
        if clear and message.strip() and "\n" not in message:
            return Refused(message)
        raise Broken(f"{type(err).__name__}: {message}") from err


def command(*argv: str) -> str | Refused:
    """Run ``lm-latent-eval``; return what it prints, or ``Refused``.

    Raises:
        Broken: If it ends in anything but a result or one line on standard error.
    """
    said, printed = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(printed):
            status = main(argv)
    except SystemExit as end:  # argparse, after its usage
        status = end.code
    except Exception as err:
        raise Broken(f"{argv}: {err!r}") from err
    if status == 0:
        return printed.getvalue()
    lines = said.getvalue().splitlines()
    alone = len(lines) == 1 or "usage:" in said.getvalue()
    if status != 2 or not alone or "lm-latent-eval" not in lines[-1]:
        raise Broken(f"status {status} of {argv}: {said.getvalue()!r}")
    return Refused(lines[-1])


def finite(what: str, *numbers: float) -> None:
    """Check that numbers are numbers."""
    if not all(math.isfinite(number) for number in numbers):
        raise Broken(f"{what}: {numbers} without a word")


def _is_ours(err: BaseException) -> bool:
    """Whether a statement of ours raised it, or the system on a file that it names."""
    if isinstance(err, OSError) and err.filename is not None:
        return True
    last = traceback.extract_tb(err.__traceback__)[-1]
    return last.filename.startswith(OURS) and (last.line or "").startswith("raise")
