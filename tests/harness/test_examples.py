"""Packages of others join: the examples' wheels beside ours, in a clean environment."""

from __future__ import annotations

import json

import pytest

from tests.conftest import PROJECT

pytestmark = pytest.mark.slow
EXAMPLES = {"hmm": "latent_hmm", "mixture": "latent_mixture"}
TEXTS = ("the cat saw a dog", "a dog ran")


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
    environment.run("-m", EXAMPLES[name], "model", cwd=tmp_path)
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    code = "import lm_latent_eval; print(lm_latent_eval.task_path())"
    environment.run(
        str(environment.lm_eval),
        *("--model", "latent"),
        *("--model_args", "pretrained=model"),
        *("--tasks", "latent_perplexity"),
        *("--include_path", environment.run("-c", code, cwd=tmp_path).strip()),
        *("--metadata", json.dumps({"text_file": "texts.txt"})),
        *("--output_path", "results"),
        cwd=tmp_path,
    )
    (written,) = (tmp_path / "results").rglob("results_*.json")
    content = json.loads(written.read_text())
    assert content["config"]["model"] == "latent"
    ours = content["config"]["latent_eval"]
    assert ours["requests"] == len(TEXTS)
    assert ours["estimator"] == {"hmm": "auto", "mixture": "exact"}[name]
    results = content["results"]["latent_perplexity"]
    assert results["token_perplexity,none"] > 1
