"""The sum over every history, against a list of all histories."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from lm_latent_eval.models.rnng.choices import log_marginal
from lm_latent_eval.models.rnng.crf import num_trees
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.words import END, START
from tests.models.rnng.reference import tiny
from tests.models.rnng.space import every_prefix


@pytest.mark.parametrize("num_words", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("end", [True, False])
def test_it_sums_over_every_history(num_words, end):
    model = tiny(seed=num_words)
    texts = [[*t, *[END] * end] for t in product((1, 4, 5), repeat=num_words)][::5]
    listed = every_prefix(num_words + end, end=end)
    assert listed.after.shape[1] == num_trees(num_words)
    expected = [
        model.log_joint(
            model.encode(TokenBatch.collate([text], first=START)), listed
        ).logsumexp(-1)
        for text in texts
    ]
    found = log_marginal(model.generative, torch.tensor(texts))
    torch.testing.assert_close(found, torch.cat(expected), rtol=0, atol=1e-12)


def test_what_cannot_be_said_has_no_probability():
    model = tiny().generative
    impossible = torch.tensor([[END, 4], [START, 4], [4, START], [0, 0]])
    assert log_marginal(model, impossible)[1:].tolist() == [-torch.inf] * 3
    assert log_marginal(model, torch.tensor([[END]])).tolist() == [-torch.inf]
    both = log_marginal(model, torch.tensor([[4, START, 5], [4, 4, 5]]))
    alone = log_marginal(model, torch.tensor([[4, 4, 5]]))
    assert both[0] == -torch.inf
    torch.testing.assert_close(both[1:], alone, rtol=0, atol=1e-12)
