"""Where the Hugging Face ``evaluate`` modules are, and what they share.

    evaluate.load(lm_latent_eval.metric_path("contrastive_entropy"))

A checkout has them in ``metrics/``, an installed wheel inside the package. Nothing here
imports ``evaluate``.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

METRICS = (
    "contrastive_entropy",
    "distortion_error",
    "importance_perplexity",
    "information_rate",
)


def metric_path(name: str) -> str:
    """Return the folder that ``evaluate.load`` takes.

    Raises:
        ValueError: If there is no such metric; the nearest names are listed.
        FileNotFoundError: If the installation lacks it.

    Example:
        >>> Path(metric_path("information_rate"), "information_rate.py").is_file()
        True
    """
    if name not in METRICS:
        near = difflib.get_close_matches(name, METRICS) or METRICS
        raise ValueError(f"no metric {name!r}; there is {', '.join(near)}")
    package = Path(__file__).parent
    for home in (package / "metrics", package.parent / "metrics"):
        if (home / name / f"{name}.py").is_file():
            return str(home / name)
    raise FileNotFoundError(f"metrics/{name} is not installed beside {package}")


def complete(
    inputs: Mapping[str, Any],
    needed: Sequence[str],
    optional: Sequence[str] = (),
    *,
    stored: int = 0,
) -> dict[str, Any]:
    """Check the columns given to a metric and fill the optional ones with None.

    ``evaluate`` itself takes all columns or none, and of a missing one says only that
    it has no length.

    Args:
        inputs: Keyword arguments of ``compute``.
        needed: Columns without which there is no result.
        optional: Columns that may be missing.
        stored: Rows that came by ``add`` before; then no column is needed.

    Raises:
        ValueError: If a needed column is missing.

    Example:
        >>> complete({"a": [1, 2]}, ["a"], ["b"])
        {'a': [1, 2], 'b': [None, None]}
        >>> complete({"a": [1, 2]}, ["a", "b"])
        Traceback (most recent call last):
        ...
        ValueError: missing: b (compute needs a and b)
    """
    columns = (*needed, *optional)
    given = [name for name in columns if inputs.get(name) is not None]
    if not given and stored:
        return dict(inputs)
    missing = [name for name in needed if name not in given]
    if missing:
        raise ValueError(
            f"missing: {', '.join(missing)} (compute needs {' and '.join(needed)})"
        )
    rows = len(inputs[given[0]])
    return {**inputs, **{c: [None] * rows for c in columns if c not in given}}
