"""Compiled loops: where they are kept, with indices checked, and without a compiler."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import lm_latent_eval
from lm_latent_eval.compiled import SOURCES
from lm_latent_eval.inference.pruning import member
from tests.conftest import PROJECT

ROOT = Path(lm_latent_eval.__file__).parent
TINY = """
import numpy as np
np.seterr(over="ignore")  # keys are modulo 2^64
from lm_latent_eval.inference.discrete import PASSES, DiscreteFilter, Weights
from lm_latent_eval.inference.interface import Texts
from lm_latent_eval.models.kglm import candidates
from tests import tiny_models
from tests.kglm_space import walks_of
if {unlisted}:
    candidates.LINKED = candidates.MOST_PAIRS = candidates.FEW = 0
model, text = tiny_models.kglm(tiny_models.full_graph(), spread=0.5), [4, 5, 4]
batch, proposal = tiny_models.batch([text]), model.proposal("adapted")
log_p = model.log_joint(model.encode(batch), walks_of(model, 3)).logsumexp(-1).item()
texts = Texts(model, proposal, batch, [1])
whole = Weights.of(DiscreteFilter(5 * 4000).log_weights(texts))
assert not whole.mark.any(), "premise: all fits"
assert (whole.passes - log_p).abs().max() < 1e-9
found = Weights.of(DiscreteFilter(5 * 4).log_weights(texts))
assert found.passes.isfinite().all()
beam = proposal.beam(proposal.encode(batch), 7)
assert beam.score.logsumexp(1) < log_p
"""


def test_every_file_with_compiled_functions_is_named():
    """A change of any of them is then compiled anew in all that call it."""
    found = {
        path.relative_to(ROOT).as_posix()
        for path in ROOT.rglob("*.py")
        if "\n@compiled\n" in path.read_text()
    }
    assert found == {*SOURCES}


def run(code: str, folder: Path, **more: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(PROJECT), "OMP_NUM_THREADS": "1"}
    environment |= {"NUMBA_CACHE_DIR": str(folder), **more}
    done = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", "-c", code],
        env=environment,
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("unlisted", [False, True])
def test_it_needs_no_compiler(tmp_path, unlisted):
    run(TINY.format(unlisted=unlisted), tmp_path, NUMBA_DISABLE_JIT="1")
    assert not [*tmp_path.iterdir()]


def test_indices_are_checked_in_all_tests():
    """Out of bounds, a loop would read what lies beside an array, or write there."""
    with pytest.raises(IndexError):
        member(np.ones(2), 2, 0.0)


WHERE = """
import logging
logging.basicConfig()
from lm_latent_eval.inference.sorted_lists import sorted_lists
import numpy as np
print(sorted_lists(np.array([0, 2]), np.array([0.0, -np.inf])).tail)
"""


def test_what_is_compiled_is_kept(tmp_path):
    run(WHERE, tmp_path)
    kept = [*tmp_path.rglob("*.nbi")]
    assert kept
    before = [path.stat().st_mtime_ns for path in kept]
    run(WHERE, tmp_path)
    assert [path.stat().st_mtime_ns for path in kept] == before


def test_without_a_folder_to_write_to_it_says_so(tmp_path):
    (tmp_path / "file").write_text("")
    said = run(WHERE, tmp_path / "file")
    assert "set NUMBA_CACHE_DIR" in said
    assert "[1. 0.]" in said


def test_importing_the_package_imports_no_compiler():
    code = "import sys, lm_latent_eval; assert 'numba' not in sys.modules"
    run(code, Path())
