"""The metrics as ``evaluate`` loads them."""

import evaluate
import pytest

import lm_latent_eval


@pytest.fixture
def metric(request, tmp_path):
    path = lm_latent_eval.metric_path(request.param)
    return evaluate.load(path, cache_dir=str(tmp_path))


def of(name):
    """Ask ``metric`` for one of them."""
    return pytest.mark.parametrize("metric", [name], indirect=True, ids=[name])
