"""What opening a model imports: counted, since seconds depend on the machine."""

from __future__ import annotations

import subprocess
import sys

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
