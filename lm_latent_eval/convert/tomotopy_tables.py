"""Topics of tomotopy files, read by tomotopy in a process with limits.

That reader is C++, which damaged files crash or keep busy without end, and it unpickles
a part of each file. The process has limits of time and memory, and unpickles nothing;
still, what a file does to C++ is not known: it must be trusted.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from lm_latent_eval.models.lda.training import TopicTables, tables_of
from lm_latent_eval.registry import require

SECONDS, PACE = 10, 1 << 20
"""Seconds that reading may take, and bytes that it reads in each of those besides."""
WAITS = 20
"""Times as long that reading may wait for a processor that others use, too."""
LEAST, MULTIPLE = 1 << 30, 20
"""Bytes of memory that reading may take, and bytes for each of the file."""


def read_tables(path: Path) -> TopicTables:
    """Read a file's topics in another process.

    Raises:
        ValueError: If that process finds no topics, crashes, or exceeds its limits.
        ModuleNotFoundError: If tomotopy is not installed.
    """
    require("tomotopy", extra="topics")
    with tempfile.TemporaryDirectory() as folder:
        tables = Path(folder, "tables.npz")
        command = [sys.executable, "-m", __name__, str(path.absolute()), str(tables)]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=WAITS * _seconds(path),
            )
        except subprocess.TimeoutExpired as err:
            raise _refused(path, "its reader finds no end") from err
        if done.returncode:
            said = done.stderr.splitlines()[-1:] or [f"status {done.returncode}"]
            raise _refused(path, f"its reader ended with: {said[0]:.200}")
        with np.load(tables, allow_pickle=False) as found:
            words = bytes(found["words"]).decode().split("\n")
            return TopicTables(words, found["phi"], found["alpha"])


def _refused(path: Path, why: str) -> ValueError:
    return ValueError(f"{path} holds no topic model of tomotopy ({why})")


def _seconds(path: Path) -> int:
    return SECONDS + path.stat().st_size // PACE


def _limit(path: Path) -> None:
    """Limit the memory and time of this process; elsewhere than on Linux, not here."""
    if sys.platform != "linux":
        return
    import resource

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    memory = pages * resource.getpagesize() + LEAST + MULTIPLE * path.stat().st_size
    seconds = int(sum(os.times()[:2])) + _seconds(path)
    for limit, most in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(limit)
        if hard != resource.RLIM_INFINITY:
            most = min(most, hard)
        resource.setrlimit(limit, (most, hard))


def _main(path: Path, output: Path) -> None:
    """Read the file in this process."""
    tomotopy = require("tomotopy", extra="topics")
    pickle.loads = lambda *_, **__: {}  # of what the model was made with
    _limit(path)
    found = tables_of(tomotopy.LDAModel.load(str(path)), lowercase=False)
    words = "\n".join(found.words).encode()
    np.savez(
        output, words=np.frombuffer(words, np.uint8), phi=found.phi, alpha=found.alpha
    )


if __name__ == "__main__":
    _main(Path(sys.argv[1]), Path(sys.argv[2]))
