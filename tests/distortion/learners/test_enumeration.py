"""Exact likelihoods of an RNNG as a learner."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch

from lm_latent_eval.distortion.learners.latent import EveryTree
from lm_latent_eval.estimators import Bound
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.words import START
from tests.distortion.learners.tiny_rnng import (
    END_ID,
    IDS,
    WORDS,
    checkpoint,
    sequences,
)
from tests.models.entitynlm.tiny import entitynlm
from tests.models.rnng.reference import every_prefix, every_tree, trees


def exact(**options):
    return EveryTree(checkpoint(), WORDS, END_ID, **options)


def test_it_sums_over_every_tree():
    model, some = checkpoint().model, sequences(5)
    expected = []
    for ids in some:
        listed = trees([every_tree(len(ids) - 1)], "eos")
        batch = TokenBatch.collate([[IDS[token] for token in ids]], first=START)
        expected.append(model.log_joint(model.encode(batch), listed).logsumexp(-1)[0])
    found = exact().score(some, range(len(some)))
    torch.testing.assert_close(found.log_p, torch.stack(expected), rtol=0, atol=1e-10)
    assert found.stderr.tolist() == [0.0] * len(some)
    assert exact().bound is Bound.EXACT


def test_the_end_is_charged_once():
    """Sequences that end and beginnings that go on total one, at every length.

    Were the end charged twice, or not at all, neither would hold.
    """
    longest, model = 5, checkpoint().model
    every = sequences(longest)
    log_p = exact().score(every, range(len(every))).log_p
    words = torch.tensor([len(ids) - 1 for ids in every])
    ended = [log_p[words == n].exp().sum().item() for n in range(1, longest + 1)]
    begun = []
    for n in range(1, longest + 2):
        texts = [[IDS[t] for t in text] for text in product(WORDS, repeat=n)]
        prefixes = every_prefix(n)
        prefixes = type(prefixes)(
            *(x.expand(len(texts), *x.shape[1:]) for x in prefixes)
        )
        batch = TokenBatch.collate(texts, first=START)
        begun.append(model.log_joint(model.encode(batch), prefixes).exp().sum().item())
    assert begun[0] == pytest.approx(1, abs=1e-12)
    assert min(ended) > 1e-3, "premise"
    for n in range(1, longest + 1):
        assert ended[n - 1] == pytest.approx(begun[n - 1] - begun[n], abs=1e-12)
        assert sum(ended[:n]) == pytest.approx(1 - begun[n], abs=1e-12)


def test_scores_do_not_depend_on_company():
    some = [*sequences(4)[::-1], [END_ID]]
    together = exact().score(some, range(len(some))).log_p
    narrow = exact(batch_size=2).score(some, range(len(some))).log_p
    alone = torch.cat([exact().score([ids], [n]).log_p for n, ids in enumerate(some)])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-10)
    torch.testing.assert_close(together, narrow, rtol=0, atol=1e-10)
    assert together[-1] == -torch.inf, "a sentence has words"
    assert together[:-1].isfinite().all()


def test_bad_input():
    learner = exact(max_words=3)
    with pytest.raises(
        ValueError,
        match="2 of 3 sequences have more than 3 words: number 8 has 4, and 5 trees",
    ):
        learner.score([[2, 1], [2, 2, 2, 2, 1], [2, 3, 2, 3, 1]], [7, 8, 9])
    with pytest.raises(ValueError, match="1 of 1 sequences have no end"):
        learner.score([[2, 2]], [7])
    with pytest.raises(ValueError, match="max_words=0: expected at least 1"):
        exact(max_words=0)
    with pytest.raises(ValueError, match="holds a entitynlm model, whose latents"):
        EveryTree(replace(checkpoint(), name="entitynlm", model=entitynlm()), WORDS, 1)
