"""The example of a model that another process computes."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest
import torch

from lm_latent_eval.wrappers.mdm.model import MaskedDiffusion
from tests.conftest import PROJECT
from tests.wrappers import asking
from tests.wrappers.mdm import tiny

EXAMPLE = PROJECT / "examples" / "diffusion"


@pytest.fixture(scope="module")
def remote_class():
    spec = importlib.util.spec_from_file_location("ask", EXAMPLE / "evaluate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Remote


def opened(logits):
    model = MaskedDiffusion.of_function(
        logits, tiny.tokenizer(), version="tiny", max_length=20
    )
    return model.scorer({"estimator": "is", "num_samples": 8}, quiet=True)


@pytest.mark.nightly
def test_another_process_gives_the_same_numbers(tmp_path, remote_class):
    network = tiny.network("bert").model
    network.save_pretrained(tmp_path)
    serve = [sys.executable, str(EXAMPLE / "serve.py"), str(tmp_path)]
    how = ["--auto-class", "AutoModelForMaskedLM", "--dtype", "float64"]
    remote = remote_class([*serve, *how, "--device", "cpu"])
    try:
        there, here = (
            opened(f) for f in (remote, lambda x: network(input_ids=x).logits.float())
        )
        found, wanted = (
            [a.estimate.log_evidence for a in asking.answers(s, "the fox saw", "Bo")]
            for s in (there, here)
        )
    finally:
        remote.close()
    # Scores travel as float32, and are rounded once.
    assert found == pytest.approx(wanted, rel=32 * torch.finfo(torch.float32).eps)


def test_a_process_that_ends_is_told(remote_class):
    remote = remote_class([sys.executable, "-c", "import sys; sys.stdin.read(1)"])
    with pytest.raises(RuntimeError, match="the process that serves the model has end"):
        opened(remote)
    remote.close()


def test_scripts_name_options_that_there_are():
    for script in EXAMPLE.glob("*.sh"):
        assert "NOT RUN HERE" in script.read_text()
        subprocess.run(["sh", "-n", str(script)], check=True)
