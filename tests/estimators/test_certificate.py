"""Coverage of the certificate, with the truth at log p(x) = 0 for every text.

Markov's inequality is tight on a weight that is 20 with chance 1/20 and 0 otherwise;
``spiky`` comes close to it, so that a bound that pays too little is caught.
"""

import math

import pytest
import torch

from lm_latent_eval.estimators import (
    certified_log_likelihood,
    certified_perplexity,
    log_evidence,
)
from tests.means import log_normal, uniform

CORPORA = 4000


def spiky(*shape, seed, high=21.0, chance=0.04):
    """Log-weights of mean 1: ``high`` now and then, else a little."""
    low = (1 - chance * high) / (1 - chance)
    hit = uniform(*shape, seed=seed) < chance
    return torch.where(hit, high, low).log()


def violations(log_evidences, **options):
    """Return how often the certificate of a corpus, a row, exceeds the truth, 0."""
    bounds = [certified_log_likelihood(row, **options) for row in log_evidences]
    return sum(bound > 0 for bound in bounds) / len(bounds)


def margin(rate):
    """Return five standard errors of a frequency over the corpora."""
    return 5 * math.sqrt(rate * (1 - rate) / CORPORA)


@pytest.mark.parametrize("confidence", [0.5, 0.8, 0.95])
@pytest.mark.parametrize(
    "log_w",
    [
        log_normal(CORPORA, 10, 4, seed=0, sd=0.3),
        log_normal(CORPORA, 10, 4, seed=1, sd=2.0),
        spiky(CORPORA, 1, 1, seed=2),
        spiky(CORPORA, 3, 2, seed=3, high=9.0, chance=0.1),
        spiky(CORPORA, 1, 1, seed=4, high=2.0 + 1e-9, chance=0.499),
        spiky(CORPORA, 5, 1, seed=11, high=1.95, chance=0.5),  # copies, drawn anew
        log_normal(CORPORA, 10, 4, seed=12, sd=0.5).sum(1, True),  # the corpus level
    ],
)
def test_holds_at_its_confidence(log_w, confidence):
    delta = 1 - confidence

    rate = violations(log_evidence(log_w), confidence=confidence)

    assert rate <= delta + margin(delta)


@pytest.mark.parametrize(
    ("num_seeds", "high", "chance", "is_tight"),
    [(20, 21.0, 0.04, False), (10, 201.0, 0.0049, True)],
)
def test_best_of_many_seeds_must_be_paid_for(num_seeds, high, chance, is_tight):
    """A lucky draw exceeds the price of one seed, and in the second case of all."""
    shape = CORPORA, num_seeds, 1
    per_seed = log_evidence(spiky(*shape, seed=num_seeds, high=high, chance=chance))
    best = per_seed.max(-1, keepdim=True).values

    one, unpaid = violations(per_seed[:, :1]), violations(best)
    paid = violations(best, num_configurations=num_seeds)

    lucky = 1 - (1 - chance) ** num_seeds
    assert abs(one - chance) < margin(chance), "a smaller price would not do"
    assert abs(unpaid - lucky) < margin(lucky)
    assert paid == (unpaid if is_tight else 0)
    assert paid <= 0.05 + margin(0.05)


def test_copies_that_share_draws_must_be_paid_for():
    copies = 5
    repeated = log_evidence(spiky(CORPORA, 1, 1, seed=8)).expand(-1, copies)
    others = log_evidence(log_normal(CORPORA, 10, 100, seed=9, sd=0.2))
    corpus = torch.cat([repeated, others], dim=-1)

    half = log_evidence(spiky(CORPORA, 1, 1, seed=10, high=1.95, chance=0.5))
    unpaid = violations(half.expand(-1, copies))

    assert unpaid > 0.4, "five copies of one lucky draw exceed log 20"
    assert violations(half.expand(-1, copies), multiplicity=copies) == 0
    paid = violations(corpus, multiplicity=copies)
    assert 0.02 < paid <= 0.05 + margin(0.05), "and the price is nearly tight"


def test_the_price_in_nats():
    log_evidences = torch.tensor([-30.0, -12.0])
    for options, price in (
        ({}, math.log(20)),
        ({"confidence": 0.99}, math.log(100)),
        ({"num_configurations": 6}, math.log(120)),
        ({"multiplicity": 3}, 3 * math.log(20)),
        ({"multiplicity": 3, "num_configurations": 6}, 3 * math.log(120)),
    ):
        bound = certified_log_likelihood(log_evidences, **options)
        assert bound == pytest.approx(-42 - price)
        for num_tokens in (10, torch.tensor([7, 3])):
            found = certified_perplexity(log_evidences, num_tokens, **options)
            assert found == pytest.approx(math.exp((42 + price) / 10))
