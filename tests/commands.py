"""Runs the commands that pages show: ``python -m tests.commands README.md ...``.

All in one new directory, one after the other, with the programs beside this Python.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

PROGRAMS = ("lm_eval ", "lm-latent-eval ", "python -m lm_latent_eval")


def commands(page: str) -> Iterator[str]:
    r"""Yield the commands of a page: lines of its ``bash`` blocks with our programs.

    Example:
        >>> page = "```bash\nlm_eval --model x \\\n    --tasks y\nls\n```\n"
        >>> [*commands(page)]
        ['lm_eval --model x --tasks y']
    """
    for block in re.findall(r"(?ms)^```bash\n(.*?)^```$", page):
        for command in re.sub(r"\\\n\s*", "", block).splitlines():
            if command.startswith(PROGRAMS):
                yield command


def run(pages: list[str]) -> None:
    """Run what the pages show, and stop at the first command that fails."""
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    shown = [c for page in pages for c in commands(Path(page).read_text("utf-8"))]
    with tempfile.TemporaryDirectory() as folder:
        for command in dict.fromkeys(shown):
            start = time.monotonic()
            subprocess.run(
                ["sh", "-c", command],
                cwd=folder,
                env={**os.environ, "PATH": programs},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL if "-v" not in sys.argv else None,
                check=True,
            )
            print(f"{time.monotonic() - start:6.0f} s  {command}", flush=True)


if __name__ == "__main__":
    run([argument for argument in sys.argv[1:] if argument != "-v"])
