"""``lm-latent-eval tasks``: print the folder that ``lm_eval --include_path`` takes."""

from __future__ import annotations

import argparse

from lm_latent_eval.cli.arguments import Commands
from lm_latent_eval.task import task_path


def add_to(commands: Commands, said: str) -> None:
    """Add the command."""
    tasks = commands.add_parser(
        "tasks",
        help=said,
        example="lm-latent-eval tasks",
    )
    tasks.set_defaults(run=_tasks)


def _tasks(args: argparse.Namespace) -> None:
    print(task_path())
