"""Commands in processes of their own, which are killed while they write.

The processes are forked from one that has imported everything, so that a kill costs no
seconds of imports. ``CRASH_KILLS`` says how many each command gets.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

KILLS = int(os.environ.get("CRASH_KILLS", "2"))
ENOUGH = 2
"""Kills that every command gets."""
PRELOADED = [
    "lm_latent_eval.distortion.catalog",
    "lm_latent_eval.models.recurrent_training",
    "lm_latent_eval.distortion.report.study",
    "lm_latent_eval.study.tables",
    "lm_latent_eval.distortion.study.run",
    "lm_latent_eval.study.run",
    "matplotlib.pyplot",
    "tests.killing",
]


def _run(arguments: list[str], log: Path) -> None:
    """Run ``lm-latent-eval``."""
    from lm_latent_eval.cli import main

    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number in (1, 2):
        os.dup2(descriptor, number)
    os.cpu_count = lambda: 1  # threads of a study's job: its models are tiny
    sys.exit(main(arguments))


@dataclass(frozen=True)
class Command:
    """A command that can be killed and repeated."""

    arguments: list[str]
    log: Path
    """File of what it prints."""
    progress: Callable[[], int] = lambda: 0
    """How much there is of its output, in any unit."""

    def start(self):
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        process = context.Process(target=_run, args=(self.arguments, self.log))
        process.start()
        return process

    def finish(self) -> int:
        """Run to the end; return how much output there is."""
        process = self.start()
        process.join()
        assert process.exitcode == 0, self.log.read_text()
        return self.progress()

    def kill(self, total: int, seed: int = 0) -> Iterator[None]:
        """Kill it at ``KILLS`` random moments, before the last fifth of its output.

        Yields after each. Many kills may find it finished before the last of them:
        output grows by steps, which one run may take where another was killed.
        """
        moments = random.Random(seed).choices(range(1, total * 4 // 5), k=KILLS)
        for kills, moment in enumerate(sorted(moments)):
            process = self.start()
            while process.is_alive() and self.progress() < moment:
                process.join(0.001)
            process.kill()
            process.join()
            if process.exitcode == 0 and kills >= ENOUGH:
                return
            assert process.exitcode == -signal.SIGKILL, self.log.read_text()
            yield
