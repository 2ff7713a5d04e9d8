"""The law of this suite: a result, or one clear sentence, and never another number.

What is given to a part of the package, however odd, ends in a result without NaN or in
an error that our own code raises, in one line. Anything else is a *traceback*: an error
that somebody else's code or an accident of ours has raised. What must not move a number
and does is a *silent difference*. Both fail the test that finds them, and are counted.
"""

from __future__ import annotations

import contextlib
import io
import math
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import settings

import lm_latent_eval
from lm_latent_eval.cli import main

OURS = str(Path(lm_latent_eval.__file__).parent)
CLEAR = (ValueError, TypeError, OSError, FloatingPointError, ModuleNotFoundError)
"""Errors that a caller may be expected to understand."""


class Traceback(AssertionError):
    """An error that is not one clear sentence of ours."""


class SilentDifference(AssertionError):
    """A number that moved without a word."""


@dataclass(frozen=True)
class Refused:
    """What was not done, and why."""

    reason: str


@dataclass
class Tally:
    """What one test has tried; the same fault found again while shrinking is one."""

    inputs: int = 0
    refused: int = 0
    tracebacks: set[str] = field(default_factory=set)
    differences: set[str] = field(default_factory=set)


tally = Tally()
"""Of the test that runs."""


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
        Traceback: If it raises anything but one clear sentence of ours.
    """
    tally.inputs += 1
    try:
        return call()
    except CLEAR as err:
        message = str(err)
        if _is_ours(err) and message.strip() and "\n" not in message:
            tally.refused += 1
            return Refused(message)
        raise _traceback(err) from err
    except AssertionError:
        raise
    except Exception as err:
        raise _traceback(err) from err


def command(*argv: str) -> str | Refused:
    """Run ``lm-latent-eval``; return what it prints, or ``Refused``.

    Raises:
        Traceback: If it ends in anything but a result or one line on standard error.
    """
    tally.inputs += 1
    said, printed = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(printed):
            status = main(argv)
    except SystemExit as end:  # argparse, after its usage
        status = end.code
    except Exception as err:
        raise _traceback(err) from err
    if status == 0:
        return printed.getvalue()
    line = said.getvalue().splitlines()[-1:]
    if status != 2 or not line or "lm-latent-eval" not in line[0]:
        found = f"status {status} of {argv}: {said.getvalue()!r}"
        tally.tracebacks.add(found)
        raise Traceback(found)
    if "usage:" not in said.getvalue() and len(said.getvalue().splitlines()) > 1:
        found = f"more than one line of {argv}: {said.getvalue()!r}"
        tally.tracebacks.add(found)
        raise Traceback(found)
    tally.refused += 1
    return Refused(line[0])


def finite(what: str, *numbers: float) -> None:
    """Check that numbers are numbers."""
    if not all(math.isfinite(number) for number in numbers):
        tally.differences.add(what)
        raise SilentDifference(f"{what}: {numbers} without a word")


def same(what: str, found: Any, expected: Any, tolerance: float = 1e-9) -> None:
    """Check that a result is another one, or was refused.

    Numbers may differ by rounding: by a relative ``tolerance``.
    """
    if isinstance(found, Refused):
        return
    if isinstance(found, float):
        equal = math.isclose(found, expected, rel_tol=tolerance, abs_tol=tolerance)
    else:
        equal = found == expected
    if not equal:
        tally.differences.add(what)
        raise SilentDifference(f"{what}: {found!r:.200}, not {expected!r:.200}")


def _is_ours(err: BaseException) -> bool:
    """Whether a statement of ours raised it, or the system on a file that it names."""
    if isinstance(err, OSError) and err.filename is not None:
        return True
    last = traceback.extract_tb(err.__traceback__)[-1]
    return last.filename.startswith(OURS) and (last.line or "").startswith("raise")


def _traceback(err: BaseException) -> Traceback:
    frames = traceback.extract_tb(err.__traceback__)
    ours = [f for f in frames if f.filename.startswith(OURS)] or list(frames)
    where = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}"
    found = f"{type(err).__name__} at {where}"
    tally.tracebacks.add(found)
    return Traceback(f"{found}: {err}")
