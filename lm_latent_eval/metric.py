"""Paths of the Hugging Face ``evaluate`` modules.

    evaluate.load(lm_latent_eval.metric_path("contrastive_entropy"))

A checkout has them in ``metrics/``, an installed wheel inside the package.
"""

from __future__ import annotations

import difflib
from pathlib import Path

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
