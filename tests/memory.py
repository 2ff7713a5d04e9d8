"""How much memory code takes, measured in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[1]

on_linux = pytest.mark.skipif(
    not Path("/proc/self/status").is_file(), reason="reads /proc/self/status"
)

MEMORY = """
import json, sys, torch
torch.set_num_threads(1)
def memory(what):  # bytes
    lines = open("/proc/self/status").read().splitlines()
    return next(int(x.split()[1]) << 10 for x in lines if x.startswith(what + ":"))
"""


# glibc gives larger blocks back to the system at once. By default it keeps some of
# up to 32 MiB for later, and which ones differs from run to run.
GIVEN_BACK = {"MALLOC_MMAP_THRESHOLD_": "65536"}


def measured(code: str, *arguments: object) -> dict[str, int]:
    """Run code in a fresh process; it prints what it measured."""
    done = subprocess.run(
        [sys.executable, "-c", MEMORY + code, *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=PROJECT,
        env=os.environ | GIVEN_BACK,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
