"""Sums over every thought of a tiny network, and what draws make of them."""

from __future__ import annotations

import math

import pytest
import torch

from lm_latent_eval.estimators import Bound, certified_log_likelihood
from lm_latent_eval.scoring.texts import Query
from lm_latent_eval.wrappers.cot.prompts import Ending
from lm_latent_eval.wrappers.cot.thoughts import Thought
from tests.wrappers.cot import tiny
from tests.wrappers.cot.tiny import ANSWERS, QUESTION

DRAWN = 4096


@pytest.fixture(scope="module")
def network():
    return tiny.network()


def asked(question=QUESTION, answers=ANSWERS, name="task/0"):
    return [Query(n, name, answer, question) for n, answer in enumerate(answers)]


def found(scorer, queries):
    by_index = {a.index: a for a in scorer.score_continuations(queries)}
    return [by_index[n] for n in range(len(queries))]


def test_thoughts_that_are_listed_are_all_there_are(network):
    prompt = [*network.tokenizer.encode(QUESTION), tiny.THINK]
    total = sum(math.exp(tiny.log_p(network, prompt, z)) for z in tiny.every_thought())
    assert total == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("close", ["natural", "forced"])
@pytest.mark.parametrize("heat", [1.0, 1.7])
def test_all_thoughts_read_sum_to_the_truth(network, close, heat):
    """No draw is in it: what is read of a thought and of its answers is right."""
    scorer = tiny.scorer(network, close=close, model_temperature=heat)
    thoughts = [
        Thought(z, scorer.marks.ending(z) or Ending.TRUNCATED)
        for z in tiny.every_thought()
    ]
    [question] = scorer._questions(asked())
    read = scorer._thinker.answer(question, thoughts)
    totals = (read.log_p + read.log_p_answers).exp().sum(-1).tolist()
    wanted = [tiny.exact(network, QUESTION, a, close, heat) for a in ANSWERS]
    assert totals == pytest.approx(wanted, rel=1e-10)


@pytest.mark.parametrize("proposal", ["prior", "hinted"])
@pytest.mark.parametrize("close", ["natural", "forced"])
def test_draws_are_unbiased(network, proposal, close):
    scorer = tiny.scorer(
        network, 512, proposal=proposal, close=close, num_samples=DRAWN
    )
    answers = found(scorer, asked())
    for answer, text in zip(answers, ANSWERS, strict=True):
        estimate = answer.estimate
        exact = tiny.exact(network, QUESTION, text, close)
        ratio = (torch.tensor(estimate.log_weights).double() - math.log(exact)).exp()
        error = ratio.std().item() / math.sqrt(DRAWN)
        assert 0 < error < 0.05, "premise: precise enough to notice a mistake"
        assert abs(ratio.mean().item() - 1) < 5 * error
        assert estimate.bound is Bound.STOCHASTIC_LOWER
        assert estimate.stderr is None and estimate.num_samples == DRAWN


def test_hints_bound_the_weights_and_are_shared(network):
    scorer = tiny.scorer(network, 512, proposal="hinted", num_samples=256)
    kept = tiny.keeping(scorer)
    found(scorer, asked())
    [thoughts] = kept
    assert bool((thoughts.log_ratios <= math.log(2) + 1e-12).all())
    assert bool((thoughts.log_ratios < 0).any())
    assert bool((thoughts.log_weights <= math.log(2) + 1e-12).all())


def test_hints_are_drawn_as_the_mixture_says(network):
    """Frequencies against q(z), summed over its prompts by another reading."""
    scorer = tiny.scorer(network, 512, proposal="hinted", num_samples=DRAWN)
    kept = tiny.keeping(scorer)
    found(scorer, asked())
    [thoughts] = kept
    cut = network.tokenizer.encode
    prompts = [[*cut(f"{a} {QUESTION}"), tiny.THINK] for a in ANSWERS]
    own = [*cut(QUESTION), tiny.THINK]
    counts = dict.fromkeys(tiny.every_thought(), 0)
    for thought in thoughts.drawn:
        counts[thought.tokens] += 1
    chi2, cells = 0.0, 0
    for z, count in counts.items():
        q = math.exp(tiny.log_p(network, own, z)) / 2
        q += sum(math.exp(tiny.log_p(network, p, z)) for p in prompts) / 2 / 3
        if count:
            place = [t.tokens for t in thoughts.drawn].index(z)
            assert thoughts.log_q[place].item() == pytest.approx(math.log(q), abs=1e-9)
        if (expected := DRAWN * q) >= 5:
            chi2 += (count - expected) ** 2 / expected
            cells += 1
    assert cells > 10, "premise: many thoughts are likely"
    # Five standard deviations above the mean of chi-square with as many degrees.
    assert chi2 < cells + 5 * math.sqrt(2 * cells)


def test_certificates_hold(network):
    """Each fails with probability 5 % at most: so many trials, five deviations."""
    trials, at_most = 400, 0.05
    queries = [
        query
        for n in range(trials)
        for query in asked(answers=ANSWERS[1:2], name=f"task/{n}")
    ]
    queries = [Query(n, q.name, q.text, q.context) for n, q in enumerate(queries)]
    answers = found(tiny.scorer(network, 800, num_samples=2, close="forced"), queries)
    truth = math.log(tiny.exact(network, QUESTION, ANSWERS[1], "forced"))
    one = torch.tensor([a.estimate.log_evidence for a in answers])
    above = sum(certified_log_likelihood(x[None], 1 - at_most) > truth for x in one)
    spread = math.sqrt(trials * at_most * (1 - at_most))
    assert above <= trials * at_most + 5 * spread
    # Markov's bound at a level where estimates do exceed the truth, so it can fail.
    half = sum(certified_log_likelihood(x[None], 0.2) > truth for x in one)
    assert 0 < half <= trials * 0.8 + 5 * math.sqrt(trials * 0.16)
    assert len({a.stream for a in answers}) == trials


@pytest.mark.parametrize("proposal", ["prior", "hinted"])
def test_greedy_is_the_argmax_of_the_marginals(network, proposal):
    """Against marginals of every continuation so far, all thoughts summed over."""
    scorer = tiny.scorer(
        network, 512, proposal=proposal, close="forced", num_samples=DRAWN
    )
    words = [f" {word}" for word in tiny.WORDS]
    first = max(words, key=lambda w: tiny.exact(network, QUESTION, w, "forced"))
    pairs = [first + word for word in words]
    p = [tiny.exact(network, QUESTION, pair, "forced") for pair in pairs]
    second = pairs[p.index(max(p))]
    other = next(word for word in words if word != first)
    texts = (first, second, other, other + words[0])
    hits = [a.is_greedy for a in found(scorer, asked(answers=texts))]
    assert hits == [True, True, False, False]
