"""Runs of any evaluation that is read here: what each found of single questions.

A run is a folder or file of lm-eval (0.4 or 0.5), of ours, of inspect_ai (JSON) or of
Every Eval Ever. Tables with a column a side are in ``columns``.
"""

from __future__ import annotations

from pathlib import Path

from lm_latent_eval.plain_json import parse
from lm_latent_eval.report import archives, inspect_logs, results
from lm_latent_eval.report.scores import Run, Scores
from lm_latent_eval.text.files import read_text


def read(path: Path, metric: str | None = None) -> list[Run]:
    """Read what a run found, one a task.

    Args:
        path: A folder or a file.
        metric: What to compare by, where a run has several; None is log-likelihood or
            accuracy, or the first that there is.

    Raises:
        FileNotFoundError: If there is none.
        ValueError: If it lacks what each question was found to have; it says which
            command makes that.
    """
    if path.is_dir():
        if others := _of_others(path, metric):
            return others
        if any(path.rglob(f"*{inspect_logs.ENDING}")):
            inspect_logs.refuse_container(next(iter(sorted(path.rglob("*.eval")))))
    elif path.suffix == inspect_logs.ENDING and path.exists():
        inspect_logs.refuse_container(path)
    elif path.name.endswith(archives.SAMPLES):
        stem = path.name.removesuffix(archives.SAMPLES)
        return read(path.with_name(f"{stem}.json"), metric)
    elif path.suffix == ".json" and path.exists():
        found = _of_file(path, metric)
        if found is not None:
            return [*found]
    return [*results.read_runs(path, metric=metric, documents=True)]


def _of_others(folder: Path, metric: str | None) -> list[Run]:
    """Read what inspect_ai or Every Eval Ever left in a folder, a task each."""
    if any(folder.rglob(results.RESULTS)):
        return []
    found: dict[str, Scores] = {}
    for file in sorted(folder.rglob("*.json")):
        for run in _of_file(file, metric) or ():
            if run.task in found:
                raise ValueError(
                    f"{folder} has several results of {run.task}: name one file of it, "
                    "or those of several seeds joined by commas"
                )
            found[run.task] = run
    return [*found.values()]


def _of_file(path: Path, metric: str | None) -> list[Scores] | None:
    """Read a file of theirs; None if it is lm-eval's, or nobody's."""
    content = parse(read_text(path), infinities=True)
    if inspect_logs.is_log(content):
        return inspect_logs.read(path, content, metric)
    if archives.is_aggregate(content):
        return archives.read(path, content, metric)
    return None
