"""Scores of single questions, whoever wrote them: what comparisons of runs read.

Log-likelihoods of texts, with bounds and errors of draws, are a ``Record``; everything
else that a run says of single questions is ``Scores``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lm_latent_eval.scoring.records import Record


@dataclass(frozen=True)
class Score:
    """What one answer to a question earned."""

    question: str
    """What pairs it with the same question of another run."""
    value: float
    repeat: int = 0
    """Which of several answers to the question it is, from 0."""
    digest: str = ""
    """Of what was asked: where two runs have one, both are the same."""
    text: str = ""
    """What was asked, where it is known."""
    fields: Mapping[str, str] = field(default_factory=dict)
    """What else is known of the question: a passage, a source."""
    is_sure: bool = True
    """Whether draws of latents cannot change it."""
    is_tied: bool = False
    """Whether rounding alone chose the answer."""


@dataclass(frozen=True)
class Scores:
    """What a run scored in one task."""

    task: str
    metric: str
    settings: dict[str, Any]
    """What is known of the run: ``model`` at least."""
    rows: Sequence[Score]
    lower_is_better: bool = False
    finished: bool = True


Run = Record | Scores


def number(what: str, value: object) -> float:
    """Return a finite number of a file, true and false being 1 and 0.

    Raises:
        ValueError: If it is none.
    """
    try:
        found = float(value) if isinstance(value, str | int | float) else math.nan
    except (ValueError, OverflowError):
        found = math.nan
    if not math.isfinite(found):
        raise ValueError(f"{what}: expected a number, not {value!a:.40}")
    return found


def as_fields(values: object) -> dict[str, str]:
    """Return what of an object are words or whole numbers."""
    pairs = values.items() if isinstance(values, Mapping) else ()
    return {str(k): str(v) for k, v in pairs if isinstance(v, str | int)}
