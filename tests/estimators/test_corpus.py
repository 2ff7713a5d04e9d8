"""A corpus's number at both levels, its errors and certificate: by hand, by trials."""

import math
from dataclasses import replace

import pytest
import torch

from lm_latent_eval.estimators import (
    Bound,
    CorpusEstimate,
    CorpusRate,
    Estimate,
    certified_log_likelihood,
    certified_perplexity,
    corpus_perplexity,
    corpus_weights,
    effective_sample_size,
    instance_perplexity,
    log_evidence,
    stderr,
)
from tests.means import log_normal, normal, uniform

LOG_Q = torch.tensor([0.5, 0.1, 0.4], dtype=torch.float64).log()

LOG_JOINT = torch.tensor(  # two inputs, three latents each
    [[0.1, 0.15, 0.02], [0.3, 0.0, 0.05]], dtype=torch.float64
).log()


def test_corpus_level_is_unbiased_by_enumeration():
    draws = torch.cartesian_prod(*[torch.arange(3)] * 4).view(-1, 2, 2)  # (.., N, K)
    chance = LOG_Q[draws].sum((-2, -1)).exp()
    log_w = (LOG_JOINT - LOG_Q)[torch.arange(2)[:, None], draws]

    estimates = torch.stack([log_evidence(corpus_weights(rows)) for rows in log_w])

    exact = LOG_JOINT.logsumexp(-1).sum()
    assert (chance * (estimates - exact).exp()).sum() == pytest.approx(1, abs=1e-12)


def test_products_can_vanish_where_no_input_does():
    log_w = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).log()

    assert log_evidence(log_w).isfinite().all()
    assert corpus_weights(log_w).tolist() == [-math.inf] * 2
    found = CorpusEstimate.of([*log_w], torch.tensor([1, 1]))
    assert found.corpus is None and found.corpus_effective_sample_size == 0
    assert found.instance.value == pytest.approx(2)
    assert found.curve == ((1, None), (2, pytest.approx(2)))


# -- estimates of corpora -----------------------------------------------------------


TOKENS = torch.tensor([5, 9, 2])


def test_corpus_level_takes_the_draws_that_every_input_has():
    log_w = normal(3, 40, seed=1) - torch.tensor([[20.0], [35.0], [4.0]])
    ragged = [log_w[0], log_w[1, :7], log_w[2, :30]]

    found = CorpusEstimate.of(ragged, TOKENS)

    assert found.corpus_num_samples == 7
    assert found.corpus.value == pytest.approx(corpus_perplexity(log_w[:, :7], 16))
    assert found.corpus_effective_sample_size == pytest.approx(
        effective_sample_size(corpus_weights(log_w[:, :7])).item()
    )
    whole = [log_evidence(row).item() for row in ragged]
    certified = certified_perplexity(torch.tensor(whole), 16)
    assert found.certified == pytest.approx(certified)
    assert found.instance.value == pytest.approx(math.exp(-sum(whole) / 16))
    assert found.curve[-1][0] == 7


def test_a_perplexity_that_no_float_holds():
    rare = torch.tensor([-800.0, -900.0], dtype=torch.float64)
    found = CorpusEstimate.of([rare], torch.tensor([1]))
    assert found.instance.value == found.corpus.value == math.inf
    assert found.certified == found.estimates[0].perplexity == math.inf
    assert found.curve == ((1, math.inf), (2, math.inf))
    assert instance_perplexity(rare[:1], 1) == corpus_perplexity([rare], 1) == math.inf
    sure = CorpusEstimate.of([rare[:1].expand(2)], torch.tensor([1]))
    assert sure.instance.draws_stderr == sure.corpus.draws_stderr == 0


# -- rates and their errors ---------------------------------------------------------


def drawn(log_p, error, **more):
    """Return the estimate of a text as draws give it, by its log-evidence and error."""
    exact = Estimate.exact(log_p, num_tokens=1)
    return replace(exact, **{"stderr": error, "draws_stderr": error, **more})


APART = [drawn(-8.0, 0.3), drawn(-2.0, 0.4)]
MISSING = drawn(-5.0, 0.3, stderr=math.hypot(0.3, 0.4))
AVERAGE = drawn(-9.0, 2.0, bound=Bound.ESTIMATED_LOWER)
LOGARITHM = replace(AVERAGE, bound=Bound.STOCHASTIC_LOWER)
BIAS = 3 * 0.1**2 / 2


@pytest.mark.parametrize(
    ("texts", "units", "streams", "total", "of_draws"),
    [
        # Errors add in squares, biases (half of their squares) as they are.
        (APART, [2, 8], None, math.hypot(0.5, 0.125), None),
        # What draws miss has one direction: too low by the same in every text.
        (
            [MISSING] * 100,
            [1] * 100,
            None,
            math.hypot(0.3 * 10, 100 * (0.3**2 / 2 + 0.4)),
            math.hypot(3, 4.5),
        ),
        # Texts that share their draws err together.
        ([drawn(-5.0, 0.1)] * 3, [1] * 3, None, math.hypot(0.1 * 3**0.5, BIAS), None),
        ([drawn(-5.0, 0.1)] * 3, [1] * 3, "aab", math.hypot(0.2, 0.1, BIAS), None),
        # An average of log-weights has no bias of a logarithm.
        ([AVERAGE] * 4, [3] * 4, None, 2 * math.sqrt(4), None),
        ([LOGARITHM] * 4, [3] * 4, None, math.hypot(4, 8), None),
    ],
)
def test_monte_carlo_errors_by_hand(texts, units, streams, total, of_draws):
    rate = CorpusRate.nats(texts, torch.tensor(units), streams)
    assert rate.monte_carlo_stderr == pytest.approx(total / sum(units))
    assert rate.draws_stderr == pytest.approx((of_draws or total) / sum(units))
    if texts[0] == texts[-1]:
        assert rate.stderr == pytest.approx(rate.monte_carlo_stderr), "none differs"


def test_errors_of_texts_that_differ_by_hand():
    units = torch.tensor([2, 8])
    nats, bits, ppl = (
        rate(APART, units)
        for rate in (CorpusRate.nats, CorpusRate.bits, CorpusRate.perplexity)
    )
    assert nats.value == 1
    # rates 8 / 2 and 2 / 8, of 0.2 and 0.8 of the units; biases are in no spread
    spread = abs(8 / 2 - 2 / 8) / math.sqrt(2)
    expected = math.hypot(spread * math.hypot(0.2, 0.8), 0.125 / 10)
    assert nats.stderr == pytest.approx(expected)
    assert ppl.value == pytest.approx(2**bits.value)
    assert ppl.stderr == pytest.approx(ppl.value * bits.stderr * math.log(2))


def test_copies_of_a_text_say_no_more_of_other_texts():
    exact = [Estimate.exact(log_p, num_tokens=1) for log_p in (-8.0, -2.0, -8.0)]
    rate = CorpusRate.nats(exact, torch.tensor([1, 1, 1]), "aba")
    # rates 8 and 2 of two texts, of which one has two thirds of the units
    expected = abs(8 - 2) / math.sqrt(2) * math.hypot(2 / 3, 1 / 3)
    assert rate.stderr == pytest.approx(expected)
    assert CorpusRate.nats(exact[::2], torch.tensor([1, 1]), "aa").stderr is None


def test_corners_of_errors():
    one = CorpusRate.bits([drawn(-8.0, 0.3)], torch.tensor([2]))
    assert one.stderr is None and one.monte_carlo_stderr > 0, "over texts"
    most = CorpusRate.perplexity([drawn(-9e5, 0.0)] * 2, torch.tensor([1, 1]))
    assert (most.value, most.stderr) == (math.inf, 0.0)
    unknown = [*APART, drawn(-1.0, math.inf, stderr=None)]
    rate = CorpusRate.bits(unknown, torch.tensor([3, 3, 3]))
    assert rate.monte_carlo_stderr is None and rate.stderr is None
    assert rate.draws_stderr == math.inf


@pytest.mark.parametrize(("num_texts", "trials"), [(1, 2000), (200, 200)])
def test_intervals_of_a_corpus_cover_the_truth(num_texts, trials):
    """Weights of effective size near 40 of 100: errors of 200 texts lose to the bias
    of their logarithms unless that is counted."""
    num_samples, sigma = 100, 0.95
    covered = without_bias = 0
    for log_w in log_normal(trials, num_texts, num_samples, seed=num_texts, sd=sigma):
        errors, found = stderr(log_w).tolist(), log_evidence(log_w).tolist()
        texts = [drawn(n, e) for n, e in zip(found, errors, strict=True)]
        rate = CorpusRate.nats(texts, torch.ones(num_texts, dtype=torch.long))
        covered += abs(rate.value) <= 1.96 * rate.monte_carlo_stderr
        plain = math.hypot(*errors) / num_texts
        without_bias += abs(rate.value) <= 1.96 * plain

    noise = 3 * math.sqrt(0.93 * 0.07 / trials)
    assert covered / trials >= 0.93 - noise
    if num_texts == 200:
        assert without_bias / trials < 0.9, "premise: the bias matters"


# -- certificates ---------------------------------------------------------------------
# The truth is log p(x) = 0 for every text. Markov's inequality is tight on a weight
# that is 20 with chance 1/20 and 0 otherwise; ``spiky`` comes close to it, so that a
# bound that pays too little is caught.


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
