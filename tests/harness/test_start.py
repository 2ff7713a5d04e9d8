"""What opening a model imports: counted, since seconds depend on the machine."""

from __future__ import annotations

import subprocess
import sys

from tests import tiny_checkpoint

FOREIGN = """
import sys
import datasets, lm_eval.evaluator, lm_eval.models.dummy
from transformers import AutoTokenizer, PreTrainedModel

host = set(sys.modules)
from lm_latent_eval.harness.backends import LatentKGLM

model = LatentKGLM()
ours = set(sys.modules) - host
new = {name.partition(".")[0] for name in ours}
known = {"lm_eval", "transformers", "lm_latent_eval", "lm_latent_eval_bridge"}
print(*sorted(new - known - {*sys.stdlib_module_names}))
print(*sorted({"arviz_stats", "scipy.signal", "scipy.stats"} & ours))
"""


def test_opening_a_model_imports_what_its_hosts_do():
    """Half a second each: Pareto k, bootstraps and plots wait until they are asked."""
    found = subprocess.run(
        [sys.executable, "-c", FOREIGN], check=True, capture_output=True, text=True
    )
    packages, later = found.stdout.splitlines()
    assert packages == "", "besides lm-eval's and transformers' own"
    assert later == "", "imported on first use"


OURS = """
import sys
import torch
from transformers import PreTrainedModel

host = set(sys.modules)
import lm_latent_eval

lm_latent_eval.load(sys.argv[1])
new = set(sys.modules) - host
print(*sorted(name for name in new if name.partition(".")[0] == "transformers"))
ours = [name.split(".")[1:] for name in new if name.startswith("lm_latent_eval.")]
print(*sorted({name[1] for name in ours if name[0] == "models" and len(name) > 1}))
print(*sorted({name[0] for name in ours}))
"""
NOT_YET = {
    "cli",
    "contrastive",
    "convert",
    "demo",
    "distortion",
    "harness",
    "ledger",
    "networks",
    "report",
    "study",
    "testing",
    "training",
    "wrappers",
}
"""What opening a model has no use for."""
OF_ANY_MODEL = {"checkpoint", "learning", "pretrained", "proposals", "recurrent"}
REGISTERS = {"auto_factory", "modeling_auto"}
"""Modules by which ``AutoModel`` is told of a model."""


def test_opening_a_model_imports_that_model_alone(tmp_path):
    """Nothing of other models, of what reports, trains or converts, or of hosts."""
    tiny_checkpoint.write(tmp_path, tiny_checkpoint.kglm())
    found = subprocess.run(
        [sys.executable, "-c", OURS, str(tmp_path)],
        check=True,
        capture_output=True,
        text=True,
    )
    hosts, models, floors = (set(line.split()) for line in found.stdout.splitlines())
    assert {name.rpartition(".")[2] for name in hosts} <= REGISTERS
    assert models - OF_ANY_MODEL == {"kglm"}
    assert "inference" in floors and not floors & NOT_YET
