"""Streamed sums against the estimators on everything at once."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from lm_latent_eval.estimators import (
    corpus_weights,
    effective_sample_size,
    instance_perplexity,
    log_evidence,
    stderr,
)
from lm_latent_eval.study import rows
from lm_latent_eval.study.plan import StudySetting
from lm_latent_eval.study.totals import FEWEST_REPLICATES, RECOMBINED, DrawnRows, Totals
from tests.means import normal

TEXTS, TOKENS, SAMPLES = 11, 66, 60
SETTING = StudySetting("is", "prior", 1.0, SAMPLES)


@pytest.fixture
def log_w():
    """The log-weights of eleven texts, with some weights of zero."""
    log_w = normal(TEXTS, SAMPLES, seed=0, sd=2) - 30
    log_w[2, 7:20] = -torch.inf
    return log_w


@pytest.fixture
def some(log_w):
    return DrawnRows([(n, 0) for n in range(TEXTS)], torch.arange(1, TEXTS + 1), log_w)


def summed(part, sizes=(1, 5, 7, SAMPLES)) -> Totals:
    found = Totals(SAMPLES, sizes, seed=0)
    found.add(part)
    return found


def test_levels_are_sums_of_estimates(some, log_w):
    found = summed(some)
    assert (found.num_texts, found.num_tokens) == (TEXTS, TOKENS)
    for size, level in found.instance.items():
        count = SAMPLES // size
        assert len(level.replicates) == count
        for r, block in enumerate(log_w[:, : count * size].split(size, 1)):
            expected = log_evidence(block).sum().item()
            assert level.replicates[r].item() == pytest.approx(expected, rel=1e-12)
            corpus = log_evidence(corpus_weights(block)).item()
            assert found.corpus_level(size)[r].item() == pytest.approx(corpus, 1e-12)
    everything = found.instance[SAMPLES].replicates[0].item()
    assert found.perplexity(everything) == pytest.approx(
        instance_perplexity(log_evidence(log_w), TOKENS), rel=1e-12
    )


def test_a_recombination_takes_one_replicate_of_each_text(log_w):
    two = DrawnRows([(0, 0), (1, 0)], torch.tensor([1, 1]), log_w[:2])
    level = summed(two, sizes=(10,)).instance[10]
    parts = log_evidence(log_w[:2].unflatten(1, (6, 10)))
    possible = torch.stack([a + b for a, b in itertools.product(*parts)])
    gap = (level.recombined[:, None] - possible).abs()
    assert gap.min(1).values.max() < 1e-12
    # All 36, about as often as each other: 500 draws, chi-square of 35 degrees.
    counts = gap.argmin(1).bincount(minlength=36).double()
    chi_square = ((counts - RECOMBINED / 36).square() / (RECOMBINED / 36)).sum()
    assert counts.min() > 0
    assert chi_square < 35 + 5 * math.sqrt(70)
    assert SAMPLES // 20 < FEWEST_REPLICATES <= SAMPLES // 10, "premise"
    assert len(summed(two, sizes=(20,)).instance[20].recombined) == 0


@pytest.mark.parametrize("count", [5, 12])
def test_fresh_estimates_are_where_they_are_predicted(count):
    """Of 400 corpora each, 95 % have a fresh estimate inside the interval."""
    trials, texts, size = 400, 15, 4
    keys, tokens = [(n, 0) for n in range(texts)], torch.ones(texts, dtype=torch.long)
    inside = 0
    for log_w in normal(trials, texts, (count + 1) * size, seed=count):
        fresh = log_evidence(log_w[:, -size:]).sum()
        found = Totals(count * size, (size,), seed=0)
        found.add(DrawnRows(keys, tokens, log_w[:, :-size]))
        predicted = found.instance[size].predicted()
        low, high = predicted.quantile(torch.tensor([0.025, 0.975]).double())
        inside += int(low <= fresh <= high)
    error = math.sqrt(0.95 * 0.05 / trials)
    assert abs(inside / trials - 0.95) < 4 * error


def test_rows_say_what_the_estimators_say(some, log_w):
    log_w[2, 10:20] = -33  # no replicate of 5 without a weight
    found = summed(some)
    made = list(rows.drawn_rows(SETTING, found, 5, num_configurations=3))
    assert len(made) == 2 * 4
    row = {(r["num_samples"], r["level"]): r for r in made}
    last, corpus, five = row[60, "instance"], row[60, "corpus"], row[5, "instance"]
    log_p = log_evidence(log_w).sum().item()
    # 95 %, and the best of 3 settings x 4 sizes x 2 levels.
    certified = math.exp(-(log_p - math.log(24 / 0.05)) / TOKENS)
    assert last["certified_perplexity"] == pytest.approx(certified, rel=1e-8)
    error = stderr(log_w).square().sum().sqrt().item()
    assert last["log_likelihood_draws_stderr"] == pytest.approx(error, rel=1e-8)
    sizes = effective_sample_size(log_w)
    assert last["effective_sample_size_minimum"] == pytest.approx(sizes.min().item())
    assert last["effective_sample_size_median"] == pytest.approx(sizes.median().item())
    products = effective_sample_size(corpus_weights(log_w)).item()
    assert corpus["effective_sample_size"] == pytest.approx(products, rel=1e-8)
    assert len(five["replicates"]) == 12
    inside = [five["low"] <= p <= five["high"] for p in five["predicted"]]
    assert 0.94 < sum(inside) / RECOMBINED < 0.96
    few = summed(DrawnRows(some.keys[2:], some.num_tokens[2:], log_w[2:]))
    [of_few] = [
        row
        for row in rows.drawn_rows(SETTING, few, 5, num_configurations=1)
        if (row["num_samples"], row["level"]) == (5, "instance")
    ]
    assert "low" not in of_few, "nine texts say too little of other draws"


def test_what_was_missed_is_infinite_and_is_written(some, log_w, tmp_path):
    log_w[4] = -torch.inf
    found = summed(some)
    made = list(rows.drawn_rows(SETTING, found, 5, num_configurations=1))
    assert {row["perplexity"] for row in made} == {"inf"}
    rows.write(tmp_path / "rows.jsonl", made)
    assert rows.read(tmp_path / "rows.jsonl")[0]["perplexity"] == math.inf
