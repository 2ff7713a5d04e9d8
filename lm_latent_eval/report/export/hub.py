"""Results for model repositories of the Hugging Face hub.

``.eval_results/<task>.yaml`` feeds the leaderboards of registered benchmarks, which
hold accuracies; the model card takes every number.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import (
    EvalResult,
    EvalResultEntry,
    ModelCard,
    ModelCardData,
    eval_result_entries_to_yaml,
)

from lm_latent_eval.files import safe_name, write_text
from lm_latent_eval.report.export.statement import (
    Statement,
    section,
    statements_of,
)
from lm_latent_eval.report.numbers import written
from lm_latent_eval.report.tables import error, frame, markdown, rendered, shown
from lm_latent_eval.report.units import Run

TAGS = ("latent-variable-model",)
"""Tags of a new card of a model of ours."""


def export_results(
    runs: Sequence[Run], output: Path, task_id: str | None = None
) -> list[Path]:
    """Write the accuracies of benchmarks into a model repository.

    Args:
        runs: The results; tasks without an accuracy are left out.
        output: The repository's folder.
        task_id: The benchmark's name of the task, where its data sets differ from it.

    Raises:
        ValueError: If there is no accuracy, one is of no data set of the hub, or a
            result lacks what it must state.
    """
    statements = [s for s in statements_of(runs) if "acc" in s.numbers]
    if not statements:
        raise ValueError(
            "there is no accuracy here, and leaderboards of the hub take nothing else: "
            "export likelihoods --to every-eval-ever or model-card"
        )
    entries = {s.run.task: _entry(s, task_id) for s in statements}
    folder = output / ".eval_results"
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for task, entry in entries.items():
        content = yaml.safe_dump(eval_result_entries_to_yaml([entry]), sort_keys=False)
        written.append(folder / f"{safe_name(task)}.yaml")
        write_text(written[-1], content)
    return written


def _entry(statement: Statement, task_id: str | None) -> EvalResultEntry:
    run, config = statement.run, statement.config
    repository = config.get("dataset_path")
    if not isinstance(repository, str) or not re.fullmatch(r"[^/]+/[^/]+", repository):
        raise ValueError(
            f"{run.task} is of no data set of the hub (dataset_path: {repository}): "
            "it has no leaderboard there"
        )
    accuracy, date = statement.numbers["acc"], run.settings.get("date")
    return EvalResultEntry(
        dataset_id=repository,
        task_id=task_id or config.get("dataset_name") or "default",
        value=accuracy.value,
        date=None if date is None else datetime.fromtimestamp(date, UTC).isoformat(),
        notes=f"{statement.note}; standard error over questions "
        f"{error(accuracy.stderr)}",
    )


def export_card(runs: Sequence[Run], output: Path, model_name: str) -> Path:
    """Put the numbers into a model card, new or there: metadata and a section.

    Args:
        runs: The results.
        output: The card, ``README.md`` of a repository.
        model_name: Name of the model in the card's metadata.

    Raises:
        ValueError: If a result lacks what it must state.
    """
    if output.is_dir():
        raise ValueError(f"{output} is a folder: name the README.md in it")
    statements = statements_of(runs)
    is_ours = any("strings_scored" not in run.settings for run in runs if run.answers)
    card: Any = read_card(output, model_name, TAGS if is_ours else ())
    # Results of ours have a bound; those of others stay.
    before = card.data.eval_results or []
    kept = [r for r in before if "bound" not in (r.metric_args or {})]
    results = [result for statement in statements for result in _results(statement)]
    card.data.model_name = card.data.model_name or model_name
    card.data.eval_results = kept + results
    put_section(card, "lm-latent-eval", _section(statements))
    output.parent.mkdir(parents=True, exist_ok=True)
    write_text(output, str(card))
    return output


def _results(statement: Statement) -> list[EvalResult]:
    run = statement.run
    counted = "num_texts" if run.is_of_texts else "num_questions"
    results = []
    for name, number in statement.numbers.items():
        errors = {  # for which a model index has no field
            "standard_error": number.stderr,
            "monte_carlo_standard_error": number.monte_carlo_stderr,
        }
        results.append(
            EvalResult(
                task_type="language-modeling" if run.is_of_texts else "text-generation",
                dataset_type=str(statement.config.get("dataset_path") or run.task),
                dataset_name=run.task,
                # The card has one entry for all results of a data set's configuration.
                dataset_config=run.task,
                metric_type=name,
                metric_value=number.value,
                metric_args={
                    **statement.settings,
                    "bound": statement.bound_of(name),
                    **{of: error for of, error in errors.items() if error is not None},
                },
                dataset_args={
                    counted: statement.num_units,
                    "digest": run.texts_digest,
                },
            )
        )
    return results


def _section(statements: Sequence[Statement]) -> str:
    texts = [s for s in statements if s.run.is_of_texts]
    questions = [s for s in statements if not s.run.is_of_texts]
    parts = {"Likelihoods": texts, "Scores of questions": questions}
    return "\n\n".join(_part(title, part) for title, part in parts.items() if part)


def _part(title: str, statements: Sequence[Statement]) -> str:
    rows = []
    for statement in statements:
        over = "± over texts" if statement.run.is_of_texts else "± over questions"
        for name, number in statement.numbers.items():
            row = {
                "task": statement.run.task,
                "metric": name,
                "value": written(name, number),
                over: error(number.stderr),
            }
            if statement.run.is_of_texts:
                limit = statement.certified(name)
                row["of it Monte Carlo"] = error(number.monte_carlo_stderr)
                row["at most (95 %)"] = "N/A" if limit is None else shown(limit)
            rows.append(row)
    notes = [
        f"{markdown(f'- {s.run.task}: {s.note}.')}\n{section(s.run)}"
        for s in statements
    ]
    table = rendered(frame(rows), "text")
    return "\n\n".join([f"## {title}", table, "\n".join(notes)])


def read_card(path: Path, name: str, tags: Sequence[str] = ()) -> ModelCard:
    """Return a model card that is there, or begin one.

    Args:
        path: The card.
        name: Name of the model in a new card.
        tags: Tags of a new card.
    """
    if path.exists():
        there: ModelCard = ModelCard.load(path)
        return there
    data = ModelCardData(tags=[*tags] or None)
    return ModelCard(f"---\n{data.to_yaml()}\n---\n\n# {name}\n")


def put_section(found: ModelCard, mark: str, text: str) -> None:
    """Write a section of a card, in the place of what it was before if it was there.

    Args:
        found: The card.
        mark: The comment that begins the section, and with a slash ends it.
        text: Text of the section.
    """
    begin, end = f"<!-- {mark} -->", f"<!-- /{mark} -->"
    section = f"{begin}\n{text}\n{end}"
    between = re.compile(f"{re.escape(begin)}.*{re.escape(end)}", re.DOTALL)
    found.text = (
        between.sub(lambda _: section, found.text)
        if between.search(found.text)
        else f"{found.text.rstrip()}\n\n{section}\n"
    )
