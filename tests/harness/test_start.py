"""What opening a model imports: counted, since seconds depend on the machine."""

import os
import subprocess
import sys
from textwrap import indent

import pytest

HARNESS = """
import datasets, lm_eval.evaluator, lm_eval.models.dummy
from transformers import AutoTokenizer

host = set(sys.modules)
from lm_latent_eval.harness.backends import LatentKGLM

model = LatentKGLM()
ours = set(sys.modules) - host
new = {name.partition(".")[0] for name in ours}
known = {"lm_eval", "transformers", "lm_latent_eval", "lm_latent_eval_bridge", "psutil"}
assert not new - known - {*sys.stdlib_module_names}, "besides those of the hosts"
# Half a second each: bootstraps and plots wait until they are asked.
assert not {"scipy.signal", "scipy.stats"} & ours
"""
PYTHON = """
host = set(sys.modules)
import lm_latent_eval
from lm_latent_eval.demo import CHECKPOINT

model = lm_latent_eval.load(CHECKPOINT)
new = set(sys.modules) - host
hosts = {name.split(".")[2] for name in new if name.startswith("transformers.models.")}
assert hosts <= {"auto"}, "AutoModel is told of a model"
ours = [name.split(".")[1:] for name in new if name.startswith("lm_latent_eval.")]
models = {name[1] for name in ours if name[0] == "models" and len(name) > 1}
of_any = {"checkpoint", "learning", "pretrained", "proposals", "recurrent"}
assert models - of_any == {"kglm"}
floors = {name[0] for name in ours}
assert "inference" in floors, "premise"
needless = "cli contrastive convert distortion harness networks report study"
assert not floors & {*needless.split(), "testing", "training", "wrappers"}
assert "lm_latent_eval.ledger.journal" not in new
[text] = model.log_likelihood(["She is here."], estimator="is", num_samples=100)
assert text.pareto_k is not None, "premise"
later = set(sys.modules) - host - new
assert not {"scipy.signal", "scipy.stats"} & later
assert not {name for name in later if name.startswith("transformers.")}
import lm_latent_eval.extend

assert not {"lm_eval", "evaluate", "matplotlib"} & set(sys.modules)
"""


# Both have imported this, which takes seconds: once for the two.
BOTH = f"""
import os, sys
import torch
from transformers import PreTrainedModel

if os.fork() == 0:
{indent(PYTHON, "    ")}
else:
{indent(HARNESS, "    ")}
    assert os.wait()[1] == 0
"""


@pytest.mark.nightly
@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks as POSIX does")
def test_opening_a_model_imports_that_model_alone():
    """Nothing of other models, of what reports, trains or converts, or of hosts."""
    done = subprocess.run([sys.executable, "-c", BOTH], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
