"""Path of the task files, for ``lm_eval --include_path`` and ``TaskManager``.

A checkout has them in ``tasks/``, an installed wheel inside the package.
"""

from __future__ import annotations

from pathlib import Path

_ONE_OF_THEM = Path("perplexity", "latent_perplexity.yaml")


def task_path() -> str:
    """Return the folder of our task files.

    Raises:
        FileNotFoundError: If the installation lacks it.

    Example:
        >>> Path(task_path(), "demo", "latent_demo.yaml").is_file()
        True
    """
    package = Path(__file__).parent
    for folder in (package / "tasks", package.parent / "tasks"):
        if (folder / _ONE_OF_THEM).is_file():
            return str(folder)
    raise FileNotFoundError(f"no task files are installed beside {package}")
