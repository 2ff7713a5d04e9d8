"""Reads what was found by whatever found it, as records.

A result is a folder of ``lm_eval --output_path``, one of its files, or a file or folder
of ``lm-latent-eval estimate``. Models that are not ours leave no record; what they
found is in the sample log of ``--log_samples``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from lm_latent_eval.file_names import beside, regular
from lm_latent_eval.resuming.folder import SETTINGS_FILE
from lm_latent_eval.scoring import records, workers
from lm_latent_eval.scoring.answer import Answer
from lm_latent_eval.scoring.files import read_record
from lm_latent_eval.scoring.records import UNFINISHED, Record
from lm_latent_eval.text import strict_json

RESULTS = "results_*.json"
WHOLE_TEXTS = "loglikelihood_rolling"
"""What lm-eval calls tasks of them."""


def read(path: Path) -> list[Record]:
    """Read the records of a result, one a task.

    Raises:
        FileNotFoundError: If there is no result.
        ValueError: If there are those of several models, or it lacks what each text
            was found to have.
    """
    if path.is_dir():
        return _folder(path)
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist")
    if path.suffix == ".json":
        return _results(path)
    if path.suffix == ".parquet" or path.name.endswith(UNFINISHED):
        return records.read(path)
    return [read_record(path)]


def newest(folder: Path) -> Path | None:
    """Return the results of the last run that is finished below a folder.

    Raises:
        ValueError: If there are runs of several models.
    """
    files = sorted(folder.rglob(RESULTS), key=lambda path: path.stat().st_mtime)
    if len(folders := sorted({file.parent for file in files})) > 1:
        names = ", ".join(str(path) for path in folders)
        raise ValueError(f"{folder} has results of several models: name one of {names}")
    return files[-1] if files else None


def _folder(folder: Path) -> list[Record]:
    if (folder / SETTINGS_FILE).is_file():
        return [workers.read(folder)]
    if results := newest(folder):
        return _results(results)
    unfinished = sorted(folder.rglob(f"record_*{UNFINISHED}"))
    if found := records.read_unfinished(unfinished):
        return found
    raise FileNotFoundError(
        f"{folder} has no {RESULTS}: run lm_eval with --output_path {folder}"
    )


def _results(path: Path) -> list[Record]:
    content = strict_json.read(path)
    try:
        config = content["config"]
        ours = config.get("latent_eval", {}).get("records", {})
        named = {"name": config.get("model_args") or {}, **_about(content)}
        found = []
        for listed, task in content["configs"].items():
            name = task.get("task", listed)  # without that of a group
            if name in ours:
                [record] = records.read(beside(path, ours[name]))
                found.append(Record(name, {**named, **record.settings}, record.answers))
            elif (log := _sample_log(path, listed)).exists():
                settings = {**named, "model": config["model"], **_foreign(config)}
                whole = task.get("output_type") == WHOLE_TEXTS
                answers = list(_logged(log, whole=whole))
                found.append(Record(name, settings, answers))
    except (KeyError, TypeError, AttributeError, IndexError) as err:
        raise ValueError(f"{path} holds no results of lm_eval ({err!r})") from err
    if not found:
        raise ValueError(
            f"{path} says nothing of single texts: models of ours leave a record "
            "beside it; run other models with --log_samples"
        )
    return found


def _about(content: dict[str, Any]) -> dict[str, Any]:
    """Return what lm-eval knows about a run, for archives."""
    return {
        "lm_eval": content.get("lm_eval_version"),
        "date": content.get("date"),
        "model_name": content.get("model_name"),
        "configs": content.get("configs", {}),
    }


def _sample_log(results: Path, task: str) -> Path:
    stamp = results.stem.removeprefix("results_")
    return beside(results, f"samples_{task}_{stamp}.jsonl")


def _foreign(config: dict[str, Any]) -> dict[str, Any]:
    """Describe a model that is not ours."""
    by_words = config["model"] == "kenlm"
    return {
        "checkpoint": config.get("model_sha") or config.get("checkpoint_digest"),
        "strings_scored": not by_words,
        "tokens_are": "words, and the ends of sentences"
        if by_words
        else "pieces of its own tokenizer; no end of a text is charged",
        "estimator": "exact",
    }


def _logged(path: Path, *, whole: bool) -> Iterator[Answer]:
    """Yield the answers in a sample log of lm-eval.

    Args:
        path: The log.
        whole: Whether they are of whole texts, which are not greedy nor the contrary:
            lm-eval 0.5 writes False there.

    Raises:
        ValueError: If its answers are no log-likelihoods.
    """
    lines = [json.loads(line) for line in regular(path).read_text("utf-8").splitlines()]
    for sample in (line for line in lines if line["filter"] == lines[0]["filter"]):
        arguments = [[*asked.values()] for asked in sample["arguments"].values()]
        for option, (asked, answers) in enumerate(
            zip(arguments, sample["resps"], strict=True)
        ):
            log_p, *greedy = answers[0] if isinstance(answers[0], list) else answers
            if not isinstance(asked[-1], str):
                raise ValueError(
                    f"{path} is of generated texts, which have no likelihood"
                )
            answer = Answer.exact(log_p, asked[-1], "".join(asked[:-1]))
            yield replace(
                answer,
                index=sample["doc_id"],
                option=option,
                words=_count(sample, "word_perplexity", answer.words),
                bytes=_count(sample, "bits_per_byte", answer.bytes),
                is_greedy=greedy[0] == "True" if greedy and not whole else None,
                accuracy=sample.get("acc"),
            )


def _count(sample: dict[str, Any], metric: str, otherwise: int) -> int:
    """Return what a task divides by: the text's words, say."""
    term = sample.get(metric)
    return int(term[1]) if isinstance(term, list) and len(term) == 2 else otherwise


__all__ = ["newest", "read"]
