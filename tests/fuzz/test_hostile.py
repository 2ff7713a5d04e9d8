"""Hostile files in numbers: the same numbers or one clear line, within limits.

What may stand in a pickle, a file of torch or an archive of AllenNLP has tests in
``tests/convert``.
"""

from __future__ import annotations

import json
import random
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lm_latent_eval.convert.archive import read_archive
from lm_latent_eval.convert.rnng import read as read_model
from lm_latent_eval.report import numbers as report_numbers
from lm_latent_eval.report import results
from lm_latent_eval.report.thoughts import text as thought_text
from lm_latent_eval.report.thoughts import thought_files
from lm_latent_eval.scoring import files, records
from lm_latent_eval.scoring.interface import scorer_of
from lm_latent_eval.scoring.model import load
from lm_latent_eval.scoring.records import row_of
from lm_latent_eval.text.words import SPECIAL_WORDS
from lm_latent_eval.wrappers.cot import thoughts
from lm_latent_eval.wrappers.cot.prompts import Ending
from lm_latent_eval.wrappers.cot.thoughts import Thought, Thoughts
from tests import allennlp_archive, kglm_archives
from tests.fuzz import hostile
from tests.fuzz.hostile import Subject
from tests.fuzz.law import Broken, Refused, command, finite, outcome, share
from tests.memory_limit import little
from tests.report.test_compare import SAMPLE, hf_folder
from tests.test_laws import UNNORMALISED
from tests.time_limit import Late

TEXTS = ["the fox saw Ada .", "zebra  Bo", "the", "Ada saw the fox ."]
UNFINISHED = "not finished"
SETTINGS = {"model": "m", "checkpoint": "c", "unk": "spelled", "vocabulary": "v"}


# -- what is damaged -----------------------------------------------------------------


def _scores(folder) -> list[float]:
    estimates = load(folder, device="cpu").log_likelihood(TEXTS, num_samples=3)
    return [estimate.log_evidence for estimate in estimates]


def _numbers(path) -> list[Any] | str:
    found = results.read(path)
    rows = [
        (record.task, name, number)
        for record in found
        for name, number in report_numbers.numbers(record).items()
    ]
    # One that was killed has any of its numbers, as has what lacks a last line.
    finished = bool(found) and all(record.finished for record in found)
    return rows if finished else UNFINISHED


def _thoughts(path) -> list[str]:
    return [thought_text(file) for file in thought_files(path)]


def _weights(path) -> dict[str, list[Any]]:
    return {name: tensor.tolist() for name, tensor in read_model(path)[0].items()}


def _archive(path) -> tuple[Any, ...]:
    found = read_archive(path)
    weights = {name: tensor.tolist() for name, tensor in found.weights.items()}
    return found.config, weights, found.vocabulary


@pytest.fixture(scope="module")
def checkpoints(folders):
    """Return every tiny model."""
    return [Subject(name, Path(path), _scores) for name, path in folders.items()]


@pytest.fixture(scope="module")
def resume(folders):
    """Return what goes on with a file of estimates, and returns what it finds."""
    scorer = scorer_of(load(folders["kglm"], device="cpu").checkpoint, {"seed": 3})

    def go_on(path) -> list[float]:
        found = files.score_file(scorer, TEXTS, path)
        return [answer.estimate.log_evidence for answer in found]

    return go_on


@pytest.fixture(scope="module")
def outputs(tmp_path_factory, resume):
    """Return results of every form."""
    root = tmp_path_factory.mktemp("outputs")
    resume(root / "estimates.jsonl")
    answers = files.read_record(root / "estimates.jsonl").answers
    records.write(root / "r.parquet", "t", SETTINGS, [row_of(a) for a in answers])
    with records.journal(root / f"r{records.UNFINISHED}", SETTINGS) as add:
        for answer in answers:
            add("t", answer)
    about = {"task": "t", "close": "natural", "proposal": "prior"}
    about |= {"num_samples": 3, "max_think_tokens": 3, "seed": 0}
    thoughts.write_thoughts(
        root / "thoughts.parquet",
        {**SETTINGS, **about, "model_temperature": 1.0},
        [_thought(n) for n in range(6)],
        str,
    )
    layer = torch.nn.Linear(3, 2, bias=False)
    content = {"model": layer, "idx2word": dict(enumerate(SPECIAL_WORDS))}
    torch.save(content, root / "model.pt")
    contents = allennlp_archive.files(*kglm_archives.golden_archive("A"))
    archive = allennlp_archive.write_tar(root / "model.tar.gz", contents)
    return [
        Subject("estimates", root / "estimates.jsonl", _numbers),
        Subject("estimates that are gone on with", root / "estimates.jsonl", resume),
        Subject("a record", root / "r.parquet", _numbers),
        Subject("an unfinished record", root / f"r{records.UNFINISHED}", _numbers),
        Subject("thoughts", root / "thoughts.parquet", _thoughts),
        Subject("a model of the original RNNG", root / "model.pt", _weights),
        Subject("an archive of AllenNLP", archive, _archive),
    ]


def _thought(n: int) -> thoughts.Kept:
    generator = torch.Generator().manual_seed(n)
    log_p = torch.rand(3, generator=generator, dtype=torch.float64).log()
    found = Thoughts(
        f"t/{n}",
        f"question {n}",
        (),
        (" yes", " no"),
        tuple(Thought((1, 2, k), Ending.CLOSED) for k in range(3)),
        log_p,
        log_p,
        torch.rand(2, 3, generator=generator, dtype=torch.float64).log(),
        (True, False),
    )
    return thoughts.Kept(n, found, (1.0, 0.0))


# -- the law -------------------------------------------------------------------------

SEEDS = st.integers(0, 2**64 - 1)
"""Of what is changed, and how."""


@pytest.fixture(scope="module")
def copies(tmp_path_factory) -> Path:
    """Return where copies go."""
    return tmp_path_factory.mktemp("copies") / "copy"


def hold(subject: Subject, said: str) -> Any:
    """Read a changed file within limits, and return what comes of it."""
    try:
        with little(hostile.MEMORY, hostile.SECONDS):
            return outcome(lambda: subject.numbers(subject.path))
    except (Broken, Late) as err:
        raise AssertionError(f"{subject.name}, {said}: {err}") from err


@cache
def _expected(subject: Subject) -> Any:
    """Return the numbers of a file that nobody changed."""
    expected = subject.numbers(subject.path)
    assert expected, "premise: there is something to read"
    return expected


@share(1)
@given(seed=SEEDS)
def test_damage_is_refused_or_moves_nothing(checkpoints, outputs, copies, seed):
    rng = random.Random(seed)
    subject = rng.choice([rng.choice(checkpoints), rng.choice(outputs)])
    expected = _expected(subject)
    copied = subject.copy(copies)
    said = rng.choice((hostile.flip, hostile.flip, hostile.cut))(copied, rng)
    found = hold(copied, said)
    if isinstance(found, Refused) or found == UNFINISHED:
        return
    if isinstance(expected, list) and isinstance(expected[0], float):  # in any batch
        assert found == pytest.approx(expected, rel=1e-12), (subject.name, said)
    else:
        assert repr(found) == repr(expected), (subject.name, said)


@share(1)
@given(seed=SEEDS)
def test_checkpoints_with_a_new_manifest_are_refused_or_have_numbers(
    checkpoints, copies, seed
):
    rng = random.Random(seed)
    copied = rng.choice(checkpoints).copy(copies)
    said = hostile.remanifest(copied, rng)
    found = hold(copied, said)
    if not isinstance(found, Refused):
        finite(f"{copied.name}, {said}", *found)
        known = copied.name not in UNNORMALISED
        assert not known or max(found) <= 1e-9, (said, "no log-probabilities")


COMMANDS = {
    "recompute": ("recompute", "{a}"),
    "explain": ("explain", "{a}"),
    "compare": ("compare", "{a}", "{b}"),
    "report": ("report", "{a}", "{b}", "--output", "{out}.html"),
    "model card": (
        *("export", "{a}", "--to", "model-card", "--model-id", "me/mine"),
        *("--output", "{out}.md"),
    ),
    "an archive": (
        *("export", "{a}", "--to", "every-eval-ever", "--output", "{out}"),
        *("--model-id", "me/mine", "--organization", "us"),
        *("--relationship", "first_party"),
    ),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory, outputs):
    """Return what lm-eval leaves of a model of ours and of another."""
    root = tmp_path_factory.mktemp("runs")
    found = files.read_record(outputs[0].path).answers
    answers = [replace(answer, unspelled=0, respaced=0) for answer in found]
    ours = {**SETTINGS, "estimator": "is", "num_samples": 3, "proposal": "prior"}
    ours |= {"temperature": 1.0, "seed": 3, "samples_per_request": [3, 3]}
    (root / "ours").mkdir()
    records.write(
        root / "ours" / "record_t_1.parquet", "t", ours, [row_of(a) for a in answers]
    )
    config = {"model": "latent_kglm", "checkpoint_digest": "c"}
    config["latent_eval"] = {**ours, "records": {"t": "record_t_1.parquet"}}
    numbers = {"word_perplexity,none": 23.4, "word_perplexity_stderr,none": 1.5}
    content = {"config": config, "results": {"t": numbers}, "configs": {"t": {}}}
    content |= {"lm_eval_version": "0.4.9", "date": 1.5e9, "model_name": "x"}
    (root / "ours" / "results_1.json").write_text(json.dumps(content))
    other = hf_folder(root / "other")
    lines = [
        SAMPLE | {"doc_id": n, "arguments": {"gen_args_0": {"arg_0": text}}}
        for n, text in enumerate(TEXTS)
    ]
    log = "".join(json.dumps(line) + "\n" for line in lines)
    (other / "samples_t_1.jsonl").write_text(log)
    return [
        Subject(path.name, path, lambda path: path) for path in (root / "ours", other)
    ]


@share(0.3)
@given(seed=SEEDS)
def test_results_that_are_changed_are_refused_or_shown(runs, copies, seed):
    rng = random.Random(seed)
    copied = rng.choice(runs).copy(copies)
    said, line = hostile.results(copied, rng), COMMANDS[rng.choice([*COMMANDS])]
    places = {"a": copied.path, "b": runs[1].path, "out": copies / "out"}
    argv = [part.format(**places) for part in line]
    hold(replace(copied, numbers=lambda _: command(*argv)), f"{argv}, {said}")


@pytest.mark.parametrize("name", COMMANDS)
def test_results_that_nobody_changed_are_shown(runs, tmp_path, name):
    for run, other in (runs, runs[::-1]):
        places = {"a": run.path, "b": other.path, "out": tmp_path / "out"}
        found = command(*(part.format(**places) for part in COMMANDS[name]))
        assert not isinstance(found, Refused), found
