"""The next line of lm-eval, in an environment of its own: the same numbers.

``make next`` runs all tests of the harness with it.
"""

import json
import subprocess
import sys

import lm_eval
import pytest
import yaml

from lm_latent_eval.scoring import records
from tests import stock_tasks
from tests.conftest import PROJECT
from tests.environment import Environment
from tests.harness.test_processes import close_to
from tests.harness.test_stock_tasks import REPEATED

pytestmark = pytest.mark.nightly

NEXT = "lm_eval==0.5.0.dev1"
TASKS = ["latent_demo", "latent_demo_facts", "wikitext", "blimp_adjunct_island", "said"]
"""Whole texts and choices, of ours and lm-eval's own, and generated text."""
SAID = {name: value for name, value in REPEATED.items() if name != "repeats"}
SAID |= {"task": "said", "generation_kwargs": {"until": ["."], "max_gen_toks": 6}}


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory):
    """Return an environment with our wheel and lm-eval 0.5, and nothing of 0.4."""
    folder = tmp_path_factory.mktemp("next")
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    command += ["download", "--no-deps", "--retries", "0", "--timeout", "20"]
    done = subprocess.run(
        [*command, "--dest", str(folder), NEXT], capture_output=True, text=True
    )
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["?"])[-1]
        pytest.skip(f"no package index has {NEXT} here: {reason}")
    environment = Environment(folder / "environment", without=("lm_eval",))
    (built,) = folder.glob("*.whl")
    environment.install(str(built), str(wheel))
    return environment


def test_it_prints_the_numbers_of_this_one(environment, tmp_path, stock_data):
    (tmp_path / "said.jsonl").write_text('{"text": "He"}\n{"text": "She"}\n')
    (tmp_path / "said.yaml").write_text(yaml.safe_dump(SAID))
    expected = lm_eval.simple_evaluate(
        model="latent_kglm",
        model_args={"num_samples": 20},
        batch_size=1,
        tasks=TASKS,
        task_manager=stock_tasks.tasks([str(tmp_path), str(PROJECT / "tasks")]),
        limit=2,
        bootstrap_iters=0,
    )
    environment.run(
        *("-m", "lm_eval", "--model", "latent_kglm"),
        *("--model_args", "num_samples=20"),
        *("--tasks", ",".join([*TASKS[:-1], "said.yaml"])),
        *("--include_path", str(PROJECT / "tasks"), "--limit", "2"),
        *("--output_path", "results", "--log_samples"),
        cwd=tmp_path,
    )
    [written] = tmp_path.rglob("results_*.json")
    found = json.loads(written.read_text())
    version = environment.run("-c", "import lm_eval; print(lm_eval.__version__)")
    assert version.strip() == NEXT.partition("==")[2]
    assert found["config"]["latent_eval"]["requests"] == 2 + 2 * 4 + 2 + 2 * 2
    for task in TASKS:
        for name, value in expected["results"][task].items():
            # 0.5 would bootstrap the errors of stock tasks, and none of ours.
            if "stderr" not in name or task == "latent_demo":
                there = found["results"][task][name]
                assert there == close_to(value), (task, name)
    files = found["config"]["latent_eval"]["records"]
    for task, whole in (("latent_demo", True), ("latent_demo_facts", False)):
        [record] = records.read(written.with_name(files[task]))
        for answer in record.answers:
            assert (answer.is_greedy is None) == (answer.accuracy is None) == whole
            assert 0 < answer.words < answer.bytes
    said = {s["doc_id"]: s["resps"] for s in expected["samples"]["said"]}
    [log] = tmp_path.rglob("samples_said_*.jsonl")
    for line in map(json.loads, log.read_text().splitlines()):
        assert line["resps"] == said[line["doc_id"]]
