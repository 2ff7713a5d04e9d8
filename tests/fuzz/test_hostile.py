"""Hostile files in numbers: the same numbers or one clear line, within limits.

What may stand in a pickle, a file of torch or an archive of AllenNLP has tests in
``tests/convert``, and damaged rows of a ledger in ``tests/test_ledger.py``.
"""

from __future__ import annotations

import json
import math
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from lm_latent_eval import manifest, parquet
from lm_latent_eval.convert.archive import read_archive
from lm_latent_eval.convert.rnng import read as read_model
from lm_latent_eval.report import numbers as report_numbers
from lm_latent_eval.report import results
from lm_latent_eval.scoring import files, records
from lm_latent_eval.scoring.model import load
from lm_latent_eval.scoring.opening import scorer_of
from lm_latent_eval.text.words import SPECIAL_WORDS
from tests import allennlp_archive, kglm_archives
from tests.fuzz.law import Broken, Refused, command, finite, outcome, share
from tests.limits import Late, little
from tests.report.test_compare import SAMPLE, lm_eval_folder, write
from tests.test_laws import UNNORMALISED

SECONDS, MEMORY = 300.0, 1 << 29
"""What a file of some kilobytes may take, however busy the machine is."""
TEXTS = ["the fox saw Ada .", "zebra  Bo", "the", "Ada saw the fox ."]
UNFINISHED = "not finished"
SETTINGS = {"model": "m", "checkpoint": "c", "unk": "spelled", "vocabulary": "v"}


@dataclass(frozen=True)
class Subject:
    """A file or folder of ours, and the numbers that are read from it."""

    name: str
    path: Path
    numbers: Callable[[Path], Any]

    def copy(self, folder: Path) -> Subject:
        """Put a copy of it into a folder, in the place of what is there."""
        shutil.rmtree(folder, ignore_errors=True)
        copied = folder / self.path.name
        if self.path.is_dir():
            shutil.copytree(self.path, copied)
        else:
            folder.mkdir()
            shutil.copy(self.path, copied)
        return Subject(self.name, copied, self.numbers)

    def files(self) -> list[Path]:
        """Return its files, in the order of their names."""
        if not self.path.is_dir():
            return [self.path]
        return sorted(path for path in self.path.iterdir() if path.is_file())


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
        files.score_into(scorer, TEXTS, path)
        found = files.read_record(path).answers
        return [answer.estimate.log_evidence for answer in found]

    return go_on


@pytest.fixture(scope="module")
def outputs(tmp_path_factory, resume):
    """Return results of every form."""
    root = tmp_path_factory.mktemp("outputs")
    resume(root / "estimates.jsonl")
    answers = files.read_record(root / "estimates.jsonl").answers
    write(records.Record("t", SETTINGS, answers), root / "r.parquet")
    with records.journal(root / f"r{records.UNFINISHED}", SETTINGS) as add:
        for answer in answers:
            add("t", answer)
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
        Subject("a model of the original RNNG", root / "model.pt", _weights),
        Subject("an archive of AllenNLP", archive, _archive),
    ]


SEEDS = st.integers(0, 2**64 - 1)
"""Of what is changed, and how."""


@pytest.fixture(scope="module")
def copies(tmp_path_factory) -> Path:
    """Return where copies go."""
    return tmp_path_factory.mktemp("copies") / "copy"


def hold(subject: Subject, said: str) -> Any:
    """Read a changed file within limits, and return what comes of it."""
    try:
        with little(MEMORY, SECONDS):
            return outcome(lambda: subject.numbers(subject.path))
    except (Broken, Late) as err:
        raise AssertionError(f"{subject.name}, {said}: {err}") from err


# -- damage --------------------------------------------------------------------------


def damage(subject: Subject, rng: random.Random) -> str:
    """Flip a bit of a file, or leave its beginning."""
    file = rng.choice(subject.files())
    content = bytearray(file.read_bytes())
    at = rng.randrange(8 * len(content))
    if rng.random() < 1 / 3:
        os.truncate(file, at // 8)
        return f"{at // 8} bytes of {file.name}"
    content[at // 8] ^= 1 << at % 8
    file.write_bytes(content)
    return f"bit {at} of {file.name}"


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
    said = damage(copied, rng)
    found = hold(copied, said)
    if isinstance(found, Refused) or found == UNFINISHED:
        return
    if isinstance(expected, list) and isinstance(expected[0], float):  # in any batch
        assert found == pytest.approx(expected, rel=1e-12), (subject.name, said)
    else:
        assert repr(found) == repr(expected), (subject.name, said)


# -- checkpoints that are given a new manifest -----------------------------------------

_NESTED: Any = []
for _ in range(300):
    _NESTED = [_NESTED]
VALUES: tuple[Any, ...] = (
    *(0, 1, -1, 2, 3, 7, 10**6, 2**31, 2**63, 10**30, 0.5, -0.0, 1e300, 1e-300),
    *(math.inf, -math.inf, math.nan, None, True, False, "", "1", "nan", "../..", "é"),
    *([], [0], [1, 2], [-1], [None], [[]], {}, {"a": 1}, _NESTED, "\ud800", "a\nb"),
    *("a" * 10_000, list(range(3000))),
)


def _inner(value: Any, rng: random.Random) -> Any:
    """Change something within a value."""
    if isinstance(value, dict) and value:
        key = rng.choice(sorted(value))
        if rng.random() < 0.2:
            return {name: each for name, each in value.items() if name != key}
        return value | {key: _inner(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.7:
        at = rng.randrange(len(value))
        changes = ([], [value[at]] * 2, [_inner(value[at], rng)])  # gone, twice, other
        return [*value[:at], *rng.choice(changes), *value[at + 1 :]]
    if type(value) in (int, float) and rng.random() < 0.4:
        return value * rng.choice((-1, 2, 0, 100, 10**9))
    return rng.choice(VALUES)


def _json(file: Path, rng: random.Random) -> str:
    changed = _inner(json.loads(file.read_text(encoding="utf-8")), rng)
    file.write_text(json.dumps(changed))
    return f"{changed!r:.300}"


def _tensors(file: Path, rng: random.Random) -> str:
    tensors = load_file(file)
    with safe_open(file, "pt") as opened:
        about = opened.metadata() or {}
    if about and rng.random() < 0.2:
        name = rng.choice(sorted(about))
        about[name] = rng.choice(("", "1", "a\nb", "{", "[" * 3000, '{"shape": 3}'))
        save_file(tensors, file, about)
        return f"{name} = {about[name]!r:.80}"
    name, kind = rng.choice(sorted(tensors)), rng.choice([*TENSORS])
    value = tensors.pop(name)
    changed = TENSORS[kind](value if value.ndim else value.view(1))
    if changed is not None:
        tensors[name] = changed.contiguous()
    save_file(tensors, file, about)
    return f"{name}: {kind}"


def _set(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def change(tensor: torch.Tensor) -> torch.Tensor:
        changed = tensor.clone().flatten()
        changed[-1:] = value if tensor.is_floating_point() else -1
        return changed.view(tensor.shape)

    return change


TENSORS: dict[str, Callable[[torch.Tensor], torch.Tensor | None]] = {
    "gone": lambda tensor: None,
    "NaN": _set(math.nan),
    "-inf": _set(-math.inf),
    "huge": _set(1e300),
    "empty": lambda tensor: tensor[:0],
    "of no axes": lambda tensor: tensor.sum(),
    "turned": lambda tensor: tensor.t() if tensor.ndim == 2 else tensor.flip(0),
    "in bfloat16": lambda tensor: tensor.bfloat16(),
    "complex": lambda tensor: tensor.to(torch.complex64),
}


def remanifest(subject: Subject, rng: random.Random) -> str:
    """Change a field or a tensor of a checkpoint, and write its manifest."""
    files = [path for path in subject.files() if path.name != "manifest.json"]
    config = next(path for path in files if path.name == "config.json")
    file = config if rng.random() < 0.5 else rng.choice(files)
    said = (_json if file.suffix == ".json" else _tensors)(file, rng)
    manifest.write(subject.path)
    return f"{file.name}: {said}"


@share(1)
@given(seed=SEEDS)
def test_checkpoints_with_a_new_manifest_are_refused_or_have_numbers(
    checkpoints, copies, seed
):
    rng = random.Random(seed)
    copied = rng.choice(checkpoints).copy(copies)
    said = remanifest(copied, rng)
    found = hold(copied, said)
    if not isinstance(found, Refused):
        finite(f"{copied.name}, {said}", *found)
        known = copied.name not in UNNORMALISED
        assert not known or max(found) <= 1e-9, (said, "no log-probabilities")


# -- results of lm-eval --------------------------------------------------------------


def alter(subject: Subject, rng: random.Random) -> str:
    """Change a value in results or a sample log, or in what a record says of itself."""
    file = rng.choice(subject.files())
    if file.suffix == ".jsonl":
        lines = file.read_text().splitlines()
        at = rng.randrange(len(lines))
        lines[at] = json.dumps(_inner(json.loads(lines[at]), rng))
        file.write_text("\n".join(lines) + "\n")
        return f"line {at + 1}: {lines[at]:.200}"
    if file.suffix == ".json":
        return _json(file, rng)
    table, name = pq.read_table(file), b"lm_latent_eval"
    about = _inner(json.loads(table.schema.metadata[name]), rng)
    if not isinstance(about, dict):
        about = {}
    parquet.write(file, table, name, about)
    return f"{about!r:.300}"


COMMANDS = {
    "recompute": "recompute {a}",
    "explain": "explain {a}",
    "compare": "compare {a} {b}",
    "report": "report {a} {b} --output {out}.html",
    "model card": "export {a} --to model-card --model-id me/mine --output {out}.md",
    "an archive": "export {a} --to every-eval-ever --model-id me/mine --output {out} "
    "--organization us --relationship first_party",
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory, outputs):
    """Return what lm-eval leaves of a model of ours and of another."""
    root = tmp_path_factory.mktemp("runs")
    found = files.read_record(outputs[0].path)
    answers = [replace(a, unspelled=0, respaced=0) for a in found.answers]
    ours = {**SETTINGS, "estimator": "is", "num_samples": 3, "proposal": "prior"}
    ours |= {"temperature": 1.0, "seed": 3, "histories_per_request": [3, 3]}
    (root / "ours").mkdir()
    write(records.Record("t", ours, answers), root / "ours" / "record_t_1.parquet")
    config = {"model": "latent_kglm", "checkpoint_digest": "c"}
    config["latent_eval"] = {**ours, "records": {"t": "record_t_1.parquet"}}
    numbers = {"word_perplexity,none": 23.4, "word_perplexity_stderr,none": 1.5}
    content = {"config": config, "results": {"t": numbers}, "configs": {"t": {}}}
    content |= {"lm_eval_version": "0.4.9", "date": 1.5e9, "model_name": "x"}
    (root / "ours" / "results_1.json").write_text(json.dumps(content))
    samples = [
        SAMPLE | {"doc_id": n, "arguments": {"gen_args_0": {"arg_0": text}}}
        for n, text in enumerate(TEXTS)
    ]
    other = lm_eval_folder(root / "other", "t", samples, {}, sha="abc")
    return [
        Subject(path.name, path, lambda path: path) for path in (root / "ours", other)
    ]


@share(0.3)
@given(seed=SEEDS)
def test_results_that_are_changed_are_refused_or_shown(runs, copies, seed):
    rng = random.Random(seed)
    copied = rng.choice(runs).copy(copies)
    said, line = alter(copied, rng), COMMANDS[rng.choice([*COMMANDS])]
    places = {"a": copied.path, "b": runs[1].path, "out": copies / "out"}
    argv = [part.format(**places) for part in line.split()]
    hold(replace(copied, numbers=lambda _: command(*argv)), f"{argv}, {said}")


@pytest.mark.parametrize("name", COMMANDS)
def test_results_that_nobody_changed_are_shown(runs, tmp_path, name):
    for run, other in (runs, runs[::-1]):
        places = {"a": run.path, "b": other.path, "out": tmp_path / "out"}
        found = command(*(part.format(**places) for part in COMMANDS[name].split()))
        assert not isinstance(found, Refused), found
