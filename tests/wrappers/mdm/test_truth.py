"""Estimators of masked diffusion models against every order of a few tokens, listed."""

from __future__ import annotations

import math
from collections import Counter
from itertools import permutations

import pytest
import torch

from lm_latent_eval.estimators import certified_log_likelihood
from lm_latent_eval.inference.streams import Streams
from lm_latent_eval.wrappers.mdm import estimators, orders
from lm_latent_eval.wrappers.mdm.targets import TargetTokens
from lm_latent_eval.wrappers.mdm.unmasking import RULES, Unmasking
from tests.wrappers.mdm import tiny

SIX = TargetTokens((tiny.BEGIN, 5), (6, 7, 8, 5, 9, 10), (tiny.END,))
FOUR = TargetTokens((), (7, 6, 11, 5))


@pytest.fixture(scope="module")
def reader():
    return tiny.denoiser()


@pytest.fixture(scope="module")
def six(reader):
    return tiny.Truth(reader, SIX).all_orders()


@pytest.fixture(scope="module")
def four(reader):
    truth = tiny.Truth(reader, FOUR).all_orders()
    assert truth.std() > 0.3, "premise: orders differ"
    return truth


def log_mean(log_p) -> float:
    return float(log_p.logsumexp(0)) - math.log(len(log_p))


def numbers(seed):
    """Independent numbers for each (replicate, n)."""

    def drawn(replicate, number):
        generator = torch.Generator().manual_seed(seed * 1000 + replicate)
        return torch.rand(number, generator=generator, dtype=torch.float64)

    return drawn


def test_the_recursion_is_the_mean_over_all_720_orders(reader, six):
    assert len(six) == 720
    found = tiny.ask(reader, SIX, orders.log_p_exact(6))
    assert found.value == pytest.approx(log_mean(six), abs=1e-10)
    assert found.passes == 2**6 - 1


def test_the_bound_by_every_set_is_the_mean_over_all_orders(reader, six):
    found = tiny.ask(reader, SIX, estimators.elbo(6, 63, numbers(0)))
    assert found.value.value == pytest.approx(float(six.mean()), abs=1e-10)
    assert found.passes == 63 and not found.value.drawn
    assert found.value.stderr == 0.0
    assert float(six.mean()) < log_mean(six) - 0.01, "premise: a bound, and not tight"


def unbiased(values, truth):
    """Hold a mean to its own standard error."""
    stderr = float(values.std()) / math.sqrt(len(values))
    assert stderr < 0.1, "premise: precise enough to notice an error"
    assert abs(float(values.mean()) - truth) < 5 * stderr


@pytest.mark.parametrize("num_samples", [3, 8, 11, 40])
def test_the_bound_is_estimated_without_bias(reader, six, num_samples):
    jobs = [
        (SIX, estimators.elbo(6, num_samples, numbers(seed))) for seed in range(300)
    ]
    found = dict(tiny.answer_all(reader, tiny.ANY_ORDER, jobs))
    values = torch.tensor([f.value.value for f in found.values()], dtype=torch.float64)
    unbiased(values, float(six.mean()))
    if num_samples < estimators.REPLICATES:
        assert all(f.value.stderr is None for f in found.values())
        return
    errors = torch.tensor([f.value.stderr for f in found.values()], dtype=torch.float64)
    # Variances, whose estimates are unbiased: chi-square with so many degrees in all.
    ratio = float(errors.square().mean() / values.var())
    freedom = len(values) - 1
    assert abs(math.log(ratio)) < 5 * math.sqrt(2 / freedom + 2 / (7 * len(values)))


def test_all_places_are_masked_equally_often():
    for seed in range(50):
        chosen = estimators.masks(7, 10, numbers(seed)(0, 8))
        each = chosen.sum(0)
        assert int(each.max() - each.min()) <= 1
        counts = estimators.mask_counts(7, 10, float(numbers(seed)(0, 8)[0]))
        assert chosen.sum(1).tolist() == counts.tolist()


def test_every_set_of_a_count_is_as_likely():
    """Chi-square over the sets of 2 of 4 places, at each pass."""
    trials = 3000
    seen = torch.zeros(4, 16)
    half = torch.tensor([0.5])
    for seed in range(trials):
        chosen = estimators.masks(4, 4, torch.cat([half, numbers(seed)(0, 4)]))
        number = (chosen * 2 ** torch.arange(4)).sum(-1)
        seen[torch.arange(4), number] += 1
    for row, sets in zip(seen, (4, 6, 4, 1), strict=True):
        possible = row[row > 0]
        expected = trials / len(possible)
        statistic = float(((possible - expected) ** 2 / expected).sum())
        freedom = len(possible) - 1
        assert len(possible) == sets, "every set of the count"
        assert statistic <= freedom + 6 * math.sqrt(2 * freedom)


def weighed(truth, order, temperature):
    """log w and q of an order, by the definition of the proposal."""
    log_q, revealed = 0.0, frozenset()
    for place in order:
        hidden = [i for i in range(len(order)) if i not in revealed]
        rows = truth.rows(revealed)
        log_p = torch.stack([rows[i, truth.target.tokens[i]] for i in hidden])
        score = torch.zeros_like(log_p) if temperature is None else log_p / temperature
        log_q += float(score.log_softmax(0)[hidden.index(place)])
        revealed |= {place}
    number = math.factorial(len(order))
    return truth.log_p(order) - math.log(number) - log_q, math.exp(log_q)


@pytest.mark.parametrize("temperature", [None, 1.0, 0.5, 3.0])
def test_orders_are_drawn_and_weighed_as_defined(reader, four, temperature):
    """Every weight that is drawn is one of the 24, as often as its order's q says."""
    truth, trials = tiny.Truth(reader, FOUR), 4000
    listed = [weighed(truth, o, temperature) for o in permutations(range(4))]
    total = math.fsum(q * math.exp(log_w) for log_w, q in listed)
    assert math.log(total) == pytest.approx(log_mean(four), abs=1e-10)
    asking = orders.log_weights(
        4, trials, Streams([12345], trials), temperature=temperature
    )
    drawn = tiny.ask(reader, FOUR, asking).value
    seen = Counter(round(float(log_w), 8) for log_w in drawn)
    expected = Counter()
    for log_w, q in listed:
        expected[round(log_w, 8)] += q
    assert seen.keys() <= expected.keys()
    for log_w, q in expected.items():
        stderr = math.sqrt(q * (1 - q) / trials)
        assert abs(seen[log_w] / trials - q) < 5 * stderr + 1 / trials


def test_uniform_orders_estimate_without_bias(reader, four):
    asking = orders.log_weights(4, 4000, Streams([12345], 4000))
    log_w = tiny.ask(reader, FOUR, asking).value
    unbiased((log_w - log_mean(four)).exp(), 1.0)


def test_orders_that_agree_share_their_passes(reader):
    found = tiny.ask(reader, FOUR, orders.log_weights(4, 500, Streams([1], 500)))
    assert found.passes == 2**4 - 1


def test_more_orders_begin_with_the_same(reader):
    few, many = (
        tiny.ask(reader, SIX, orders.log_weights(6, k, Streams([7], k))).value
        for k in (5, 20)
    )
    assert few.tolist() == pytest.approx(many[:5].tolist(), rel=1e-12)


def test_the_bounds_are_in_order_on_average(reader, four):
    """elbo <= is <= exact, each told from the next by its standard error."""
    exact = log_mean(four)
    jobs = [(FOUR, orders.log_weights(4, 2, Streams([s], 2))) for s in range(1500)]
    found = dict(tiny.answer_all(reader, tiny.ANY_ORDER, jobs))
    estimates = torch.tensor([log_mean(f.value) for f in found.values()])
    stderr = float(estimates.std()) / math.sqrt(len(estimates))
    assert float(four.mean()) < float(estimates.mean()) - 3 * stderr
    assert float(estimates.mean()) < exact - 3 * stderr


def test_certificates_hold_as_often_as_they_say(reader, four):
    """p-hat exceeds p / delta in at most a share delta of trials (Markov)."""
    exact, delta = log_mean(four), 0.5
    jobs = [(FOUR, orders.log_weights(4, 1, Streams([s], 1))) for s in range(2000)]
    found = dict(tiny.answer_all(reader, tiny.ANY_ORDER, jobs))
    wrong = sum(
        certified_log_likelihood(f.value, 1 - delta) > exact for f in found.values()
    )
    assert wrong <= delta * len(found)
    assert sum(float(f.value) > exact for f in found.values()), "premise: it can fail"


@pytest.mark.parametrize("rule", RULES)
def test_a_path_is_a_distribution(reader, rule):
    """Over every text of two tokens: the order follows from what is revealed alone."""
    words = [w for w in range(len(tiny.VOCABULARY)) if w != tiny.MASK]
    targets = [TargetTokens((5,), (a, b), (6,)) for a in words for b in words]
    rule = Unmasking(rule)
    jobs = [(target, orders.log_p_path(2, rule)) for target in targets]
    found = dict(tiny.answer_all(reader, rule, jobs))
    log_p = torch.tensor([f.value[0] for f in found.values()], dtype=torch.float64)
    assert float(log_p.exp().sum()) == pytest.approx(1.0, abs=1e-10)
    greedy = [targets[n] for n, f in found.items() if f.value[1]]
    assert len(greedy) == 1, "one text is what its own unmasking writes"


def test_a_path_follows_its_rule(reader):
    truth, revealed, total = tiny.Truth(reader, SIX), frozenset(), 0.0
    while len(revealed) < 6:
        rows = truth.rows(revealed)
        hidden = [i for i in range(6) if i not in revealed]
        place = max(hidden, key=lambda i: float(rows[i].max()))
        total += float(rows[place, SIX.tokens[place]])
        revealed |= {place}
    surest, left = Unmasking("confidence"), Unmasking("left_to_right")
    found = tiny.ask(reader, SIX, orders.log_p_path(6, surest), surest)
    assert found.value[0] == pytest.approx(total, abs=1e-10) and found.passes == 6
    in_order = tiny.ask(reader, SIX, orders.log_p_path(6, left), left)
    assert in_order.value[0] == pytest.approx(truth.log_p(range(6)), abs=1e-10)


def test_greedy_is_what_unmasking_writes(reader):
    written = list(SIX.tokens)
    truth = None
    for _ in range(7):  # a fixed point: each token is what is predicted there
        truth = tiny.Truth(reader, TargetTokens(SIX.before, tuple(written), SIX.after))
        revealed = frozenset()
        while len(revealed) < 6:
            rows = truth.rows(revealed)
            hidden = [i for i in range(6) if i not in revealed]
            place = max(hidden, key=lambda i: float(rows[i].max()))
            best = int(rows[place].argmax())
            if written[place] != best:
                written[place] = best
                break
            revealed |= {place}
        else:
            break
    assert len(revealed) == 6, "premise: found"
    assert tiny.ask(reader, truth.target, orders.is_greedy(6)).value
    assert tiny.ask(
        reader, truth.target, orders.log_p_path(6, Unmasking("confidence"))
    ).value[1]
    other = TargetTokens(
        SIX.before, (*written[:5], (written[5] + 1) % 12 or 5), SIX.after
    )
    assert not tiny.ask(reader, other, orders.is_greedy(6)).value


def test_batches_of_any_size_give_the_same(reader):
    def everything(size):
        one = tiny.denoiser(batch_size=size)
        jobs = [
            (SIX, estimators.elbo(6, 20, numbers(1))),
            (FOUR, estimators.elbo(4, 9, numbers(2))),
            (SIX, estimators.elbo(6, 12, numbers(3))),
        ]
        found = dict(tiny.answer_all(one, tiny.ANY_ORDER, jobs))
        return [found[n].value.value for n in range(3)]

    assert everything(1) == pytest.approx(everything(64), rel=1e-12)
    assert everything(7) == pytest.approx(everything(64), rel=1e-12)
