"""Workers of Ray find what one process does, when one of them is killed as well."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pyarrow.parquet as pq
import pytest

from lm_latent_eval import settings
from lm_latent_eval.cli import main
from lm_latent_eval.report.results import read
from lm_latent_eval.scoring import workers
from lm_latent_eval.scoring.records import row_of, table_of
from lm_latent_eval.scoring.workers import blocks
from tests.conftest import PROJECT
from tests.rounding import agree

TEXTS = ["Ada saw the fox .", "the fox saw Bo.", "a zebra", "Ada", "the fox"] * 4
SCRIPT = """
import os, signal, sys
from pathlib import Path

from lm_latent_eval.scoring.workers import Opening, score_corpus

checkpoint, data, output, killed = sys.argv[1:]

class Dying(Opening):
    def scorer(self):
        scorer, here = super().scorer(), os.getpid()
        score_texts = scorer.score_texts

        def scoring(queries):
            told = Path(killed)
            # Once, by the worker that is given this text.
            if any(q.index == 8 for q in queries) and not told.exists():
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


@pytest.mark.slow
def test_a_killed_worker_loses_nothing(spelled_directory, data, tmp_path, capsys):
    """In a folder that an interrupted run has left, with a file cut short."""
    pytest.importorskip("ray", reason="the extra ray is not installed")
    command = ["estimate", str(spelled_directory), "--data", str(data)]
    command += ["--num-samples", "20", "--batch-size", "1", "--device", "cpu"]
    assert main([*command, "--output", str(tmp_path / "alone.jsonl")]) == 0
    [alone] = read(tmp_path / "alone.jsonl")

    output, killed = tmp_path / "scores", tmp_path / "killed"
    settings.claim(output, alone.settings, workers.KIND)
    kept, cut = output / "kept.parquet", output / "cut.parquet"
    # Rows that no model would give show whether they are found again.
    known = [replace(answer, unspelled=99) for answer in alone.answers[3:7]]
    pq.write_table(table_of([row_of(answer) for answer in known]), kept)
    cut.write_bytes(kept.read_bytes()[:-9])
    (tmp_path / "script.py").write_text(SCRIPT)
    run(tmp_path / "script.py", spelled_directory, data, output, killed)
    assert killed.exists(), "premise"
    assert not cut.exists()
    [found] = read(output)
    assert found.finished
    assert agree([*found.answers], [*alone.answers[:3], *known, *alone.answers[7:]])
    assert found.texts_digest == alone.texts_digest
    assert found.settings == alone.settings

    capsys.readouterr()
    other = [*command, "--workers", "2", "--output", str(output), "--seed", "7"]
    assert main(other) == 2
    assert "of another scored corpus (seed is 0 there" in capsys.readouterr().err


def run(*arguments):
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "RAY_AUTH_MODE": "disabled"}
        | {"PYTHONPATH": os.pathsep.join([str(PROJECT), *sys.path])},
        capture_output=True,
        text=True,
        timeout=550,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_blocks_have_what_is_left():
    texts = ["a b", "c", "d e f", "g", "h"]
    found = [block.to_pydict() for block in blocks(texts, {1}, 4)]
    assert found == [
        {"document": [0, 2], "text": ["a b", "d e f"]},
        {"document": [3, 4], "text": ["g", "h"]},
    ]


def test_workers_need_a_folder(spelled_directory, data, capsys):
    command = ["estimate", str(spelled_directory), "--data", str(data)]
    assert main([*command, "--workers", "2"]) == 2
    assert "--workers need an --output" in capsys.readouterr().err


def test_ray_is_asked_for(spelled_directory, data, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    command = ["estimate", str(spelled_directory), "--data", str(data)]
    assert main([*command, "--workers", "2", "--output", str(tmp_path)]) == 2
    assert "pip install 'lm-latent-eval[ray]'" in capsys.readouterr().err
