"""Left-to-right estimates are those of MALLET, whose authors published them.

``tests/reference/mallet.json`` has what MALLET (commit 2de54cb) says of four documents;
``benchmarks/mallet.py`` tells how it was run.
"""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

from lm_latent_eval.inference import LeftToRightEstimator
from lm_latent_eval.inference.streams import stream_key
from lm_latent_eval.models.lda.training import TopicTables
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.words import SPECIAL_WORDS, START
from tests.conftest import PROJECT

CASE = json.loads((PROJECT / "tests" / "reference" / "mallet.json").read_text())
DRAWS = 10_000


@pytest.fixture(scope="module")
def log_predicted(tmp_path_factory):
    """What each of many particles says of each word, nats, (D, K, T)."""
    counts = np.array(CASE["counts"]) + CASE["beta"]
    words = [f"w{n}" for n in range(len(counts))]
    tables = TopicTables(words, counts.T, np.array(CASE["alpha"]))
    model = tables.write(tmp_path_factory.mktemp("topics"))
    first = len(SPECIAL_WORDS)
    texts = [[first + word for word in text] for text in CASE["documents"]]
    keys = [stream_key(0, f"mallet/{n}") for n in range(len(texts))]
    batch = TokenBatch.collate(texts, first=START)
    return LeftToRightEstimator(DRAWS).log_predicted(model, batch, keys)


@pytest.mark.parametrize("particles", [1, 10])
def test_the_published_estimate_is_that_of_mallet(log_predicted, particles):
    # Particles are independent, so any ten of them are a run of ten.
    runs = log_predicted.unflatten(1, (-1, particles))
    found = LeftToRightEstimator(particles).word_by_word(runs)
    said = CASE["log_p"][str(particles)]
    stderr = found.std(1) / math.sqrt(found.shape[1])
    error = torch.tensor(said["stderr"]).double().hypot(stderr)
    assert (error < 0.03).all(), "premise: precise enough to notice"
    off = (found.mean(1) - torch.tensor(said["mean"]).double()) / error
    assert (off.abs() < 5).all(), off
