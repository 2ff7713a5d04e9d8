"""Several processes give the numbers of one, and one summary of all requests."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lm_latent_eval.harness.backends import LatentKGLM
from lm_latent_eval.harness.wrappers.cot import LatentCoT
from tests import tiny_causal
from tests.conftest import PROJECT
from tests.environment import HANGS, of_worker
from tests.rounding import agree
from tests.stock_tasks import evaluated
from tests.tiny_checkpoint import conditional, rolling
from tests.wrappers.cot import tiny as thinking

WORKER = """
import json, sys
import torch
from tests.harness import test_processes

torch.set_num_threads(1)
function, *arguments, out = sys.argv[1:]
said = getattr(test_processes, function)(*arguments)
if said:
    with open(out, "w") as file:
        json.dump(said, file)
"""

TASK = """
task: tiny_questions
custom_dataset: !function functions.questions
output_type: multiple_choice
test_split: test
doc_to_text: "{{context}}"
doc_to_choice: "{{choices}}"
doc_to_target: answer
target_delimiter: ""
metric_list:
  - metric: acc
    aggregation: mean
  - metric: acc_norm
    aggregation: mean
"""

FUNCTIONS = """
from datasets import Dataset

def questions(**_):
    return {{"test": Dataset.from_list({})}}
"""

TEXTS = ["Ada saw the fox " * 5 + ".", "Bo.", "the fox saw Bo . " * 5 + "a", "a zebra"]
"""lm-eval would give both long ones to the first of two processes."""

ACCELERATE = (
    # "multi_gpu" starts processes; where there is no GPU they take the CPU. With
    # --cpu, accelerate starts one process, whatever --num_processes says.
    *("-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"),
    *("--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"),
    *("--main_process_port", "0"),
)
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


def launch(folder, how, function, *arguments):
    """Call a function of this module alone, or in several processes."""
    script, out = folder / "worker.py", folder / "out.json"
    script.write_text(WORKER)
    done = subprocess.run(
        [sys.executable, *how, *map(str, [script, function, *arguments, out])],
        cwd=folder,
        env=of_worker(),
        capture_output=True,
        text=True,
        timeout=HANGS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(out.read_text())


def questions(contexts, choices):
    """Return rows of as many questions."""
    return [
        {"context": context, "choices": choices, "answer": n % 3}
        for n, context in enumerate(contexts)
    ]


QUESTIONS = questions(
    ["Ada saw", "the", "Bo saw the", "fox", "the fox saw"], [" the fox", " Bo.", " Ada"]
)


def write_tasks(folder, texts, rows=QUESTIONS):
    """Write a text, and below ``tasks`` the questions."""
    (folder / "text.txt").write_text(texts)
    (folder / "tasks").mkdir()
    (folder / "tasks" / "tiny_questions.yaml").write_text(TASK)
    (folder / "tasks" / "functions.py").write_text(FUNCTIONS.format(rows))
    return folder


def score(checkpoint, folder, cache):
    """Score without a cache, with an empty one, and with what it then holds."""
    runs = []
    for use_cache in (None, cache, cache):
        lm = LatentKGLM(pretrained=checkpoint, num_samples=15, device="cpu")
        scored, score_texts = [], lm._scorer.score_texts

        def scoring(queries, scored=scored, score_texts=score_texts):
            scored.extend(len(query.text) for query in queries)
            return score_texts(queries)

        lm._scorer.score_texts = scoring
        results = evaluated(
            lm,
            ["latent_perplexity", "tiny_questions"],
            [str(PROJECT / "tasks"), f"{folder}/tasks"],
            metadata={"text_file": f"{folder}/text.txt"},
            use_cache=use_cache,
        )
        work = lm.gather_object(sum(scored), 0)
        if lm.rank == 0:
            said = results["config"]["latent_eval"]
            runs.append([results["results"], said, lm.world_size, work])
    return runs


@pytest.mark.nightly
def test_several_processes_give_the_numbers_of_one(kglm_directory, tmp_path):
    write_tasks(tmp_path, "\n".join(TEXTS))
    asked = ("score", kglm_directory, tmp_path)
    alone = launch(tmp_path, (), *asked, tmp_path / "alone")
    for number, how in enumerate((ACCELERATE, TORCHRUN)):
        two = launch(tmp_path, how, *asked, tmp_path / f"two-{number}")
        assert_the_same(two, alone)


def assert_the_same(two, alone):
    for runs in (alone, two):
        for cached in runs[1:]:
            assert_close(cached[0], runs[0][0])
    assert [r[2] for r in alone] == [1, 1, 1]
    assert [r[2] for r in two] == [2, 2, 2]
    assert_close(two[0][0], alone[0][0])
    # Both processes have about as much to do, and no text is scored twice.
    assert sum(two[0][3]) == alone[0][3][0] == sum(map(len, TEXTS))
    assert max(two[0][3]) < 0.6 * sum(two[0][3])
    # 4 texts and 5 questions of 3 options; no copy that pads a process's share.
    for runs in (alone, two):
        assert runs[0][1]["requests"] == runs[1][1]["requests"] == 4 + 15
        assert runs[0][1]["bound_of_log_likelihood"] == {
            "stochastic lower": 2,
            "exact": 9,  # few latents: all were found
            "none": 8,
        }
        # Nothing was estimated where the cache knew every answer.
        assert runs[2][1]["requests"] == 0
    for name, value in alone[0][1].items():
        assert two[0][1][name] == close_to(value), name


def assert_close(found, expected):
    """Compare tables of results; rounding depends on who shares a batch with whom."""
    assert found.keys() == expected.keys()
    for task, values in expected.items():
        assert found[task].keys() == values.keys()
        for name, value in values.items():
            assert found[task][name] == close_to(value), (task, name)


def close_to(value):
    is_number = isinstance(value, float)
    return pytest.approx(value, rel=1e-9, nan_ok=True) if is_number else value


def score_or_die(checkpoint, folder, cache, killed):
    """Score with a cache; the second process is killed when it has an answer."""
    lm = LatentKGLM(checkpoint, num_samples=15, batch_size=1, device="cpu")
    told, work, score_texts = Path(killed), [], lm._scorer.score_texts

    def scoring(queries):
        for answer in score_texts(queries):
            yield answer  # is in the cache when the next one is asked for
            work.append(answer.index)
            if lm.rank == 1 and not told.exists():
                told.touch()
                os.kill(os.getpid(), signal.SIGKILL)

    lm._scorer.score_texts = scoring
    tasks, text = str(PROJECT / "tasks"), {"text_file": f"{folder}/text.txt"}
    results = evaluated(
        lm, ["latent_perplexity"], tasks, metadata=text, use_cache=cache
    )
    works = lm.gather_object(len(work), 0)
    return results and [results["results"], works]


@pytest.mark.nightly
@pytest.mark.skipif(os.name != "posix", reason="kills as POSIX does")
def test_a_lost_rank_ends_the_job_and_the_cache_keeps_its_answers(
    kglm_directory, tmp_path
):
    write_tasks(tmp_path, "\n".join(TEXTS))
    asked = ("score_or_die", kglm_directory, tmp_path)
    alone, _ = launch(tmp_path, (), *asked, tmp_path / "alone", tmp_path / "nobody")
    two = (*asked, tmp_path / "two", tmp_path / "killed")
    with pytest.raises(AssertionError, match="SIGKILL"):
        launch(tmp_path, TORCHRUN, *two)
    found, works = launch(tmp_path, TORCHRUN, *two)
    assert works[1] == len(TEXTS) / 2 - 1, "its first text is not scored again"
    assert_close(found, alone)


# -- thoughts ------------------------------------------------------------------------

CONTEXTS = ["a b", "c", "b b c a", "a c", "c c c", "b", "a a", "c b a"]


def think(directory, tasks, out):
    """Answer the questions; return what results say of accuracy and thoughts."""
    options = {
        **thinking.OPTIONS,
        **{"proposal": "hinted", "close": "forced", "max_think_tokens": 4},
        **{"num_samples": 20, "batch_size": 1, "device": "cpu"},
    }
    lm = LatentCoT(pretrained=str(directory), **options)
    results = evaluated(lm, ["tiny_questions"], str(tasks), out=out)
    if results is None:  # a process that is not the first
        return None
    said = dict(results["config"]["latent_eval"]["thoughts"])
    del said["files"]
    return {"acc": results["results"]["tiny_questions"]["acc,none"], **said}


@pytest.mark.nightly
def test_two_processes_think_as_one(tmp_path):
    network, tasks = tmp_path / "network", tmp_path / "tasks"
    tiny_causal.save(network, thinking.tokenizer(), thinking.network().model)
    write_tasks(tmp_path, "", questions(CONTEXTS, [" a", " b c", " c"]))
    one, two = tmp_path / "one", tmp_path / "two"
    said = think(network, tasks, one)
    assert launch(tmp_path, ACCELERATE, "think", network, tasks, two) == said

    def thoughts(out):
        [path] = out.rglob("thoughts_*.jsonl")
        return [*map(json.loads, path.read_text("utf-8").splitlines())]

    assert len(thoughts(one)) == len(CONTEXTS)
    assert agree(thoughts(two), thoughts(one))


# -- one process that is told of others ----------------------------------------------


def test_what_pads_a_process_is_not_in_the_summary(backend):
    lm = backend(num_samples=5)
    (text,) = rolling("the fox")
    lm.loglikelihood_rolling([text, text])
    assert len(lm.reported) == 1
    (text,) = conditional(("the", " fox"))
    text.repeats = 2
    lm.loglikelihood([text, text, text])
    assert len(lm.reported) == 3


def test_diagnostics_are_gathered_at_the_barrier(backend, monkeypatch):
    """There all processes meet; ``get_model_info`` is for one process alone."""
    lm = backend(num_samples=5)
    monkeypatch.setattr(type(lm), "world_size", 2)
    gathered = []
    monkeypatch.setattr(
        type(lm._processes), "gather", lambda _, items: gathered.append(items) or items
    )
    lm.loglikelihood_rolling(rolling("the fox", "Bo"))
    assert not gathered
    lm.barrier()
    # Diagnostics, rows of a record, texts without a number, and what was not scored.
    assert [len(items) for items in gathered] == [2, 0, 0, 0]
    assert lm.get_model_info()["latent_eval"]["requests"] == 2
    assert len(gathered) == 4
    lm.barrier()
    assert [len(items) for items in gathered] == [2, *[0] * 7]


LEAVES = """
import sys
from torch import distributed
from lm_latent_eval.harness.processes import _leave

store, rank = sys.argv[1], int(sys.argv[2])
for i in range(10):
    distributed.init_process_group(
        "gloo", init_method=f"file://{store}-{i}", rank=rank, world_size=2
    )
    everything = [None, None] if rank == 0 else None
    distributed.gather_object(["answer"] * 1000, everything, dst=0)
    _leave()
    assert not distributed.is_initialized()
"""


@pytest.mark.nightly
def test_a_group_is_left_right_after_the_last_answer(tmp_path):
    """Of torch 2.6 such an end waited for ever, within ten times."""
    script = tmp_path / "leaves.py"
    script.write_text(LEAVES)
    command = [sys.executable, str(script), str(tmp_path / "store")]
    both = [
        subprocess.Popen([*command, rank], env=of_worker(), stderr=subprocess.PIPE)
        for rank in ("0", "1")
    ]
    for process in both:
        _, stderr = process.communicate(timeout=HANGS)
        assert process.returncode == 0, stderr.decode()[-3000:]
