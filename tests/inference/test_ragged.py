"""Ragged rows against plain loops over lists."""

from __future__ import annotations

import math
from fractions import Fraction

import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from lm_latent_eval.inference.ragged import in_groups, invert_cdf, segment_logsumexp

PROBABILITY = st.one_of(
    st.just(0.0), st.floats(0.01, 1.0), st.sampled_from([1e-300, 1e-30, 1e-17, 1e-8])
)
ROWS = st.lists(st.lists(PROBABILITY, max_size=6), min_size=1, max_size=6)
UNIFORM = st.one_of(
    st.floats(2.0**-53, 1 - 2.0**-53), st.sampled_from([2.0**-53, 0.5, 1 - 2.0**-53])
)


def normalised(rows: list[list[float]]) -> list[list[float]]:
    """Rows of distributions, as every caller has them, some without any mass."""
    return [[p / sum(row) if sum(row) > 0.01 else 0.0 for p in row] for row in rows]


@given(st.lists(st.integers(0, 9), max_size=9), st.integers(1, 20))
def test_groups_are_as_large_as_they_may(sizes, limit):
    every = torch.arange(len(sizes))
    size = torch.tensor(sizes, dtype=torch.long)
    groups = list(in_groups((every, size), size, limit))
    assert torch.cat([rows for rows, _ in groups]).tolist() == every.tolist()
    assert [sizes[r] for rows, _ in groups for r in rows] == sizes
    total = [int(own.sum()) for _, own in groups]
    for (rows, _), elements in zip(groups, total, strict=True):
        assert elements <= limit or len(rows) == 1
    for elements, (_, following) in zip(total, groups[1:], strict=False):
        assert elements + following[0] > limit, "the next row did not fit"


def test_rows_are_summed_with_the_gradients_of_a_softmax():
    value = torch.tensor([-900.3, -902.0, 805.0, -math.inf]).double()
    value.requires_grad_()
    row = torch.tensor([0, 0, 2, 2])
    summed = segment_logsumexp(value, row, 3)
    sums = value[:2].logsumexp(0), torch.tensor(-math.inf), value[2:].logsumexp(0)
    torch.testing.assert_close(summed, torch.stack(sums).double())
    summed[[0, 2]].sum().backward()
    wanted = torch.cat([value[:2].detach().softmax(0), torch.ones(1), torch.zeros(1)])
    torch.testing.assert_close(value.grad, wanted)


@given(ROWS, st.data())
def test_a_draw_inverts_the_distribution_function(rows, data):
    """Against exact fractions, but for numbers within 1e-12 of a step."""
    rows = normalised(rows)
    prob = torch.tensor([p for row in rows for p in row], dtype=torch.float64)
    row = torch.tensor([r for r, row in enumerate(rows) for _ in row], dtype=torch.long)
    massive = [r for r, values in enumerate(rows) if any(values)]
    assume(massive)
    r = data.draw(st.sampled_from(massive))
    u = data.draw(UNIFORM)
    steps, total = [], Fraction(0)
    for p in rows[r]:
        total += Fraction(p)
        steps.append(total)
    assume(all(abs(step / total - Fraction(u)) > 1e-12 for step in steps))
    wanted = next(i for i, step in enumerate(steps) if step / total > u)
    (drawn,) = invert_cdf(
        prob, row, len(rows), torch.tensor([r]), torch.tensor([u], dtype=torch.float64)
    )
    assert drawn.item() - sum(map(len, rows[:r])) == wanted


def test_the_ends_of_the_interval():
    prob = torch.tensor([0.0, 0.25, 0.0, 0.75, 0.0], dtype=torch.float64).repeat(1000)
    row = torch.arange(1000).repeat_interleave(5)
    every = torch.arange(1000)
    for u, place in ((2.0**-53, 1), (0.25, 3), (1 - 2.0**-53, 3)):
        drawn = invert_cdf(prob, row, 1000, every, torch.full((1000,), u).double())
        assert (drawn == every * 5 + place).all()
