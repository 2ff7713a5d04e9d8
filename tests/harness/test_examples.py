"""Packages of others join: the examples' wheels beside ours, in a clean environment."""

from __future__ import annotations

import json
import shutil

import pytest

from tests.conftest import PROJECT

pytestmark = pytest.mark.nightly
PERPLEXITY = "latent_perplexity"
EXAMPLES = {
    "hmm": (PERPLEXITY, "auto", ("the cat saw a dog", "a dog ran")),
    "mixture": (PERPLEXITY, "exact", ("the cat saw a dog", "a dog ran")),
    "state_space": (PERPLEXITY, "smc", ("17 19 18 22", "30 31 29")),
    "vae": (PERPLEXITY, "is", ("the cat saw a dog", "a dog ran")),
    "alignment": ("alignment", "auto", ()),
    "rag": ("rag", "auto", ()),
}
"""Its task, its first estimator, and its texts; it has its own task if it has none."""


@pytest.fixture(scope="module")
def environment(wheel_install):
    for name in EXAMPLES:
        wheel_install.install(str(PROJECT / "examples" / name))
    return wheel_install


@pytest.mark.parametrize("name", EXAMPLES)
def test_its_own_tests_pass(environment, name, tmp_path):
    folder = PROJECT / "examples" / name / "tests"
    options = ("-q", "-p", "no:cacheprovider", "-c", "/dev/null", f"--rootdir={folder}")
    said = environment.run("-m", "pytest", *options, str(folder), cwd=tmp_path)
    assert "passed" in said


@pytest.mark.parametrize("name", EXAMPLES)
def test_stock_command_scores_it(environment, name, tmp_path):
    task, estimator, texts = EXAMPLES[name]
    environment.run("-m", f"latent_{name}", "model", cwd=tmp_path)
    if texts:
        (tmp_path / "texts.txt").write_text("\n".join(texts))
        code = "import lm_latent_eval; print(lm_latent_eval.task_path())"
        tasks = environment.run("-c", code, cwd=tmp_path).strip()
    else:
        own = PROJECT / "examples" / name / "task"
        shutil.copytree(own, tmp_path, dirs_exist_ok=True)
        tasks = "."
    environment.run(
        str(environment.lm_eval),
        *("--model", "latent"),
        *("--model_args", "pretrained=model"),
        *("--tasks", task),
        *("--include_path", tasks),
        *("--metadata", json.dumps({"text_file": "texts.txt"} if texts else {})),
        *("--output_path", "results"),
        cwd=tmp_path,
    )
    (written,) = (tmp_path / "results").rglob("results_*.json")
    content = json.loads(written.read_text())
    assert content["config"]["model"] == "latent"
    ours = content["config"]["latent_eval"]
    assert ours["estimator"] == estimator
    results = content["results"][task]
    if texts:
        assert ours["requests"] == len(texts)
        assert results["token_perplexity,none"] > 1
    else:
        assert ours["conditional_on"]
        assert results["acc,none"] > 0.5, "what is given is read"
