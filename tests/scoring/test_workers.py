"""Workers of Ray find what one process does, when one of them is killed as well."""

import os
import subprocess
import sys
from dataclasses import replace
from threading import Event
from types import ModuleType, SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from lm_latent_eval.cli import main
from lm_latent_eval.report.results import read
from lm_latent_eval.scoring import files, opening, workers
from lm_latent_eval.scoring.answer import Answer, MissedTextsError
from lm_latent_eval.scoring.opening import Opening
from lm_latent_eval.scoring.records import FORMAT, row_of
from lm_latent_eval.scoring.workers import score_corpus
from lm_latent_eval.text.corpora import TextFile
from tests.conftest import PROJECT
from tests.environment import HANGS, of_worker
from tests.limits import at_most, within
from tests.rounding import agree
from tests.scoring.test_files import seen

TEXTS = ["Ada saw the fox .", "the fox saw Bo.", "a zebra", "Ada", "the fox"] * 4
SCRIPT = """
import os, signal, sys
from pathlib import Path

from lm_latent_eval.scoring import workers
from lm_latent_eval.scoring.opening import Opening
from lm_latent_eval.scoring.workers import score_corpus

checkpoint, data, output, killed, times = sys.argv[1:]
once = times == "once"
workers.AT_ONCE = 200  # so that blocks are read while others are scored

class Dying(Opening):
    def scorer(self):
        scorer, here = super().scorer(), os.getpid()
        score_texts = scorer.score_texts

        def scoring(queries):
            told = Path(killed)
            # By the worker that is given this text: once, or whichever it is.
            if any(q.index == 8 for q in queries) and not (once and told.exists()):
                told.write_text(str(here))
                os.kill(here, signal.SIGKILL)
            return score_texts(queries)

        scorer.score_texts = scoring
        return scorer

opening = Dying(checkpoint, {"num_samples": 20}, batch_size=1, device="cpu")
score_corpus(opening, Path(data), Path(output), workers=2, words=12)
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "texts.txt"
    path.write_text("\n".join(TEXTS) + "\n")
    return path


@pytest.mark.nightly
def test_a_killed_worker_loses_nothing(spelled_directory, data, tmp_path):
    """Beside what an interrupted run has left."""
    pytest.importorskip("ray", reason="the extra ray is not installed")
    command = ["estimate", str(spelled_directory), "--data", str(data)]
    command += ["--num-samples", "20", "--batch-size", "1", "--device", "cpu"]
    assert main([*command, "--output", str(tmp_path / "alone.jsonl")]) == 0
    [alone] = read(tmp_path / "alone.jsonl")

    output, killed = tmp_path / "scores", tmp_path / "killed"
    # Rows that no model would give show whether they are found again.
    known = [replace(answer, unspelled=99) for answer in alone.answers[3:7]]
    with files._journal(output).going_on(alone.settings, None) as rows:
        for answer in known:
            rows.add(row_of(answer))
    (tmp_path / "script.py").write_text(SCRIPT)
    run(tmp_path / "script.py", spelled_directory, data, output, killed, "once")
    assert killed.exists(), "premise"
    [found] = read(output)
    assert found.finished
    assert agree([*found.answers], [*alone.answers[:3], *known, *alone.answers[7:]])
    assert found.texts_digest == alone.texts_digest
    assert found.settings == alone.settings


@pytest.mark.nightly
def test_a_text_that_kills_every_worker_ends_the_run(spelled_directory, data, tmp_path):
    pytest.importorskip("ray", reason="the extra ray is not installed")
    (tmp_path / "script.py").write_text(SCRIPT)
    output, killed = tmp_path / "scores", tmp_path / "killed"
    with pytest.raises(AssertionError, match=r"workers died 4 times at the same texts"):
        run(tmp_path / "script.py", spelled_directory, data, output, killed, "always")
    assert killed.exists(), "premise"
    [found] = read(output)
    assert not found.finished


def run(*arguments):
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        env=of_worker(
            RAY_AUTH_MODE="disabled",
            PYTHONPATH=os.pathsep.join([str(PROJECT), *sys.path]),
        ),
        capture_output=True,
        text=True,
        timeout=HANGS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_texts_that_two_workers_scored_count_once(
    spelled_directory, data, tmp_path, monkeypatch, caplog
):
    """Ray gives a block out again when a worker is lost, or what it has found."""
    answers = [replace(Answer.exact(-n, text), index=n) for n, text in enumerate(TEXTS)]
    found = [row_of(answer) for answer in [*answers[:12], *answers[9:]]]
    monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))
    monkeypatch.setattr(workers, "_rows", lambda *_: iter(found))
    opening = Opening(str(spelled_directory), {"num_samples": 5}, device="cuda:1")
    score_corpus(opening, data, tmp_path / "scores", workers=2)
    record = files.read_record(tmp_path / "scores")
    assert record.finished
    assert "device=cuda:1 is not there" not in caplog.text, "it is left to workers"
    assert record.answers == answers
    assert len((tmp_path / "scores").read_text().splitlines()) == 1 + len(TEXTS)


def test_texts_without_a_number_are_named(
    spelled_directory, data, tmp_path, monkeypatch
):
    found = [
        row_of(replace(Answer.exact(-n, text), index=n))
        for n, text in enumerate(TEXTS)
        if n not in (3, 5)
    ]
    monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))
    monkeypatch.setattr(workers, "_rows", lambda *_: iter(found))
    opening = Opening(str(spelled_directory), {"num_samples": 5}, device="cpu")
    with pytest.raises(
        MissedTextsError, match=r"^text/3 has.*Likewise text/5 .18 of 20"
    ):
        score_corpus(opening, data, tmp_path / "scores", workers=2)
    record = files.read_record(tmp_path / "scores")
    assert len(record.answers) == 18 and not record.finished


@pytest.mark.parametrize("said", [-1, 3.0, "3", True, None, [], 10**12, 10**400])
def test_any_number_of_texts_is_refused_or_costs_nothing(tmp_path, said):
    settings = {"format": FORMAT, "num_texts": said}
    row = row_of(Answer.exact(-3.0, "a text"))
    files._file(tmp_path / "lines").write(settings, [row])
    with files._journal(tmp_path / "killed").going_on(settings, None) as rows:
        rows.add(row)
    for path in (tmp_path / "lines", tmp_path / "killed"):
        with at_most(1 << 26), within(10):
            if type(said) is int and 0 < said < 10**400:
                [found] = read(path)
                assert len(found.answers) == 1 and not found.finished
            else:
                with pytest.raises(ValueError, match=r"settings say no num_texts but"):
                    read(path)


def test_a_worker_opens_the_revision_and_takes_the_gpu_that_was_asked_for(monkeypatch):
    asked = {}
    monkeypatch.setattr(opening, "open_model", lambda *_, **how: asked.update(how))
    monkeypatch.setattr(opening, "scorer_of", lambda *_, **__: None)
    Opening("someone/model", {}, revision="abc", device="cpu").scorer()
    assert asked["revision"] == "abc"
    for device, there, needed in (
        (None, True, True),
        (None, False, False),
        ("cuda:1", False, True),
        ("cpu", True, False),
    ):
        monkeypatch.setattr("torch.cuda.is_available", lambda there=there: there)
        assert Opening("x", {}, device=device).needs_gpu == needed


class Rays:
    """Ray as it answers where there is none."""

    def __init__(self, init):
        self.init, self.data = init, self
        self.exceptions = SimpleNamespace(
            RayTaskError=KeyError, ActorDiedError=IndexError, RayError=LookupError
        )
        self.asked: dict[str, Any] = {}

    def is_initialized(self):
        return False

    def __getattr__(self, name):
        return self

    def __call__(self, *_, **given):
        self.asked |= given
        return self

    def iter_batches(self, **_):
        raise LookupError("a node\n is lost")


@pytest.mark.parametrize("why", ["timed out\n during startup", None])
def test_ray_that_does_not_start_is_one_line(
    spelled_directory, data, tmp_path, capsys, monkeypatch, why
):
    waits = Event()

    def init(**_):
        if why is None:
            waits.wait(HANGS)
        raise Exception(why)  # as Ray does

    monkeypatch.setattr(workers, "START", 0.1)
    monkeypatch.setitem(sys.modules, "ray", Rays(init))
    output = tmp_path / "scores"
    command = ["estimate", str(spelled_directory), "--data", str(data), "--device"]
    assert main([*command, "cpu", "--workers", "2", "--output", str(output)]) == 2
    waits.set()
    [line] = capsys.readouterr().err.splitlines()
    why = "timed out during startup" if why else "no answer within"
    assert line.startswith(f"lm-latent-eval: Ray did not start ({why}")
    assert f"kept beside {output}, and the same command goes on" in line


@pytest.mark.parametrize(
    ("device", "share"), [("cuda", 0.125), ("cuda", 1), ("cpu", 0)]
)
def test_a_worker_s_share_of_a_gpu_reaches_ray(
    spelled_directory, data, tmp_path, monkeypatch, device, share
):
    ray = Rays(lambda **_: None)
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    given = {"gpus_per_worker": share} if share not in (0, 1) else {}
    opening = Opening(str(spelled_directory), {}, device=device)
    with pytest.raises(OSError, match=r"^Ray failed \(a node is lost\): what was sco"):
        score_corpus(opening, data, tmp_path / "scores", workers=2, **given)
    assert ray.asked["num_gpus"] == share
    assert ray.asked["fn_constructor_args"][0].device == device


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--gpus-per-worker 0.5", "no effect without --workers"),
        ("--gpus-per-worker 0.5 --workers 2 --device cpu", "without --device cuda"),
        ("--gpus-per-worker 0 --workers 2 --device cuda", "expected a number above 0"),
        ("--gpus-per-worker nan --workers 2 --device cuda", "expected a number above"),
        ("--shard 3/2", r"shard '3/2': expected i/n"),
    ],
)
def test_shares_that_are_none(
    spelled_directory, data, tmp_path, refused, options, said
):
    command = ["estimate", spelled_directory, "--data", data, *options.split()]
    assert said in refused(*command, "--output", tmp_path / "scores")


@pytest.mark.parametrize("after", [TEXTS[:5], [*TEXTS, "Bo"], [*TEXTS[:-1], "Bo"]])
def test_a_file_that_changes_while_it_is_read_is_refused(data, tmp_path, after):
    path = tmp_path / "texts.txt"
    path.write_bytes(data.read_bytes())
    file = TextFile(path)
    read = workers._Reader(file, [True] * len(TEXTS), 12, seen(TEXTS))
    assert sum(len(block["texts"][0]) for block in read(pa.table({}))) == len(TEXTS)
    path.write_text("\n".join(after) + "\n")
    with pytest.raises(ValueError, match="changed while it was read"):
        [*read(pa.table({}))]


def test_ray_is_asked_for(spelled_directory, data, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    command = ["estimate", str(spelled_directory), "--data", str(data)]
    assert main([*command, "--workers", "2", "--output", str(tmp_path)]) == 2
    assert "pip install 'lm-latent-eval[ray]'" in capsys.readouterr().err
