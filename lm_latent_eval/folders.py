"""Folders of the task files and of the Hugging Face ``evaluate`` modules.

    evaluate.load(lm_latent_eval.metric_path("contrastive_entropy"))
    lm_eval --include_path DIR, TaskManager(include_path=lm_latent_eval.task_path())

A checkout has them in ``tasks/`` and ``metrics/``, an installed wheel inside the
package.
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
    """Folder that ``evaluate.load`` takes.

    Raises:
        ValueError: If the metric is unknown; the nearest names are listed.
        FileNotFoundError: If the installation lacks it.

    Example:
        >>> Path(metric_path("information_rate"), "information_rate.py").is_file()
        True
    """
    if name not in METRICS:
        near = difflib.get_close_matches(name, METRICS) or METRICS
        raise ValueError(f"no metric {name!r}; there is {', '.join(near)}")
    return str(_home(Path("metrics", name, f"{name}.py")) / "metrics" / name)


def task_path() -> str:
    """Folder of our task files.

    Raises:
        FileNotFoundError: If the installation lacks it.

    Example:
        >>> Path(task_path(), "demo", "latent_demo.yaml").is_file()
        True
    """
    return str(_home(Path("tasks", "perplexity", "latent_perplexity.yaml")) / "tasks")


def _home(file: Path) -> Path:
    """Folder that has a file: the package or its parent."""
    package = Path(__file__).parent
    for home in (package, package.parent):
        if (home / file).is_file():
            return home
    raise FileNotFoundError(f"{file} is not installed beside {package}")
