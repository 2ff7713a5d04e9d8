"""Clean environments to install into, without downloading anything.

Each environment is new and sees the running environment's third-party packages
through a folder of links that leaves us out, so nothing of ours leaks in.
"""

from __future__ import annotations

import os
import site
import subprocess
import sys
import venv
from importlib.metadata import entry_points
from pathlib import Path

from tests.conftest import PROJECT

OURS = ("lm_latent_eval", "_lm_latent_eval")
HANGS = 1800
"""Seconds after which a process hangs that a test has launched, however busy we are."""


def of_worker(**more: str) -> dict[str, str]:
    """The environment of a process that a test launches: this checkout, one thread."""
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(PROJECT),
        "CUDA_VISIBLE_DEVICES": "",
        **more,
    }


class Environment:
    """A virtual environment with every third-party package but ours."""

    def __init__(self, root: Path, without: tuple[str, ...] = ()) -> None:
        """Make it.

        Args:
            root: Where.
            without: How names begin of others that it is not to have.
        """
        self.root = root
        venv.create(root, symlinks=True)
        scripts = root / ("Scripts" if os.name == "nt" else "bin")
        self.python = scripts / "python"
        links = root / "third_party"
        links.mkdir()
        for folder in site.getsitepackages():
            for entry in Path(folder).iterdir():
                link = links / entry.name
                if not entry.name.startswith(OURS + without) and not link.exists():
                    link.symlink_to(entry)
        (self.site_packages / "third_party.pth").write_text(f"{links}\n")

        # What pip makes of lm-eval's own console script, for this environment.
        (command,) = entry_points(group="console_scripts", name="lm_eval")
        self.lm_eval = scripts / "lm_eval"
        self.lm_eval.write_text(
            f"import sys\nfrom {command.module} import {command.attr}\n"
            f"sys.exit({command.attr}())\n"
        )

    @property
    def site_packages(self) -> Path:
        code = "import sysconfig; print(sysconfig.get_path('purelib'))"
        return Path(self.run("-c", code).strip())

    def install(self, *arguments: str) -> None:
        pip("--python", str(self.python), "install", "--no-build-isolation", *arguments)

    def run(self, *arguments: str, cwd: Path = PROJECT) -> str:
        """Run this environment's Python; its standard output."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        done = subprocess.run(
            [str(self.python), *arguments],
            env={
                **kept,
                "HF_HUB_OFFLINE": "1",
                "HF_HOME": str(self.root / "huggingface"),
            },
            cwd=cwd,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout

    def imported_from(self) -> Path:
        code = "import lm_latent_eval; print(lm_latent_eval.__file__)"
        return Path(self.run("-c", code, cwd=self.root).strip()).parent


def pip(*arguments: str) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "--disable-pip-version-check"),
            *arguments,
            *("--no-deps", "--no-index"),
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
