"""Blocks and rules of unmasking against all that can be written, listed."""

from __future__ import annotations

import math
from itertools import product

import pytest

from lm_latent_eval.wrappers.mdm import orders
from lm_latent_eval.wrappers.mdm.batches import answer_all
from lm_latent_eval.wrappers.mdm.predictions import Blocks, TargetTokens
from lm_latent_eval.wrappers.mdm.unmasking import NAMES, Unmasking
from tests.wrappers.mdm.listed import MASK, WORDS, Listed

RULES_OF_ALL = [
    *(Unmasking(name, k) for name in NAMES for k in (1, 2)),
    *(
        Unmasking(name, k, threshold)
        for name in ("confidence", "low_confidence")
        for k in (1, 2)
        for threshold in (0.4, 0.7)
    ),
]


def log_p(network, rule, blocks=None):
    """Log p of every text by the implementation, and passes of each."""
    texts = list(product(WORDS, repeat=network.length))
    cut = Blocks(blocks, MASK)
    jobs, owner = [], []
    for n, text in enumerate(texts):
        for block in cut.of(TargetTokens((), text)):
            sums = orders.log_p_path if rule.follows else orders.log_p_exact
            jobs.append((block, sums(len(block), rule)))
            owner.append(n)
    total, passes = [0.0] * len(texts), [0] * len(texts)
    for job, found in answer_all(network.reader(), rule, jobs):
        value = found.value[0] if rule.follows else found.value
        total[owner[job]] += value
        passes[owner[job]] += found.passes
    return dict(zip(texts, total, strict=True)), passes


@pytest.mark.parametrize("blocks", [None, 1, 2])
@pytest.mark.parametrize("rule", RULES_OF_ALL, ids=str)
def test_every_text_has_the_probability_of_all_that_can_be_drawn(rule, blocks):
    for ties in (False, True):
        network = Listed(ties=ties)
        wanted = network.written(rule, blocks)
        found, _ = log_p(network, rule, blocks)
        assert math.fsum(map(math.exp, found.values())) == pytest.approx(1, abs=1e-12)
        for text, value in found.items():
            assert math.exp(value) == pytest.approx(wanted[text], abs=1e-12)
