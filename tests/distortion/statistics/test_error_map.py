import math

import numpy as np
import pytest
import torch

from lm_latent_eval.distortion.statistics import ErrorMap
from tests.means import normal, uniform

WIDTH = 4.0


def perturbed(size=400):
    """Return columns with every kind of zero probability among them."""
    true_log_p = -60 * uniform(size, seed=0)
    true_log_p[::9] = (true_log_p[::9] / WIDTH).round() * WIDTH  # edges of cells
    model_log_p = (true_log_p + normal(size, seed=1, sd=5)).clamp(max=0)
    edits, zero = (4 * uniform(size, seed=2)).short(), uniform(2, size, seed=3) < 0.2
    return (
        true_log_p.masked_fill(zero[0], -math.inf),
        model_log_p.masked_fill(zero[1], -math.inf),
        edits,
    )


ROUNDING = {"rel": 1e-12, "abs": 1e-12}


def test_cells_and_rows_by_brute_force():
    true_log_p, model_log_p, edits = columns = perturbed()
    inside = {}
    for t, m, e in zip(*(c.tolist() for c in columns), strict=True):
        if math.isfinite(t) and math.isfinite(m):
            inside.setdefault((e, math.floor(t / WIDTH)), []).append(m - t)

    found = ErrorMap.of(*columns, width=WIDTH)
    cells, rows = found.cells, found.rows

    assert len(cells) > 30, "premise"
    assert [(c.edits, c.lowest, c.highest, c.count) for c in cells] == [
        (e, k * WIDTH, (k + 1) * WIDTH, len(inside[e, k])) for e, k in sorted(inside)
    ]
    means = [np.mean(inside[cell]) for cell in sorted(inside)]
    assert [c.mean_error for c in cells] == pytest.approx(means, **ROUNDING)
    assert [row.edits for row in rows] == [0, 1, 2, 3]
    for row in rows:
        t, m = (c[edits == row.edits].numpy() for c in (true_log_p, model_log_p))
        never, out = np.isinf(t), np.isinf(m)
        error = m[~never & ~out] - t[~never & ~out]
        assert row.count == len(t)
        assert row.impossible == never.sum() > 0
        assert row.ruled_out == (out & ~never).sum() > 0
        assert row.mean_error == pytest.approx(error.mean(), **ROUNDING)
        stderr = error.std(ddof=1) / math.sqrt(len(error))
        assert row.stderr == pytest.approx(stderr, **ROUNDING)
        over = (never & ~out).sum() + (error > 0).sum()
        assert row.share_overestimated == over / len(t)


def test_rows_without_a_finite_error():
    true_log_p = torch.tensor([-math.inf, -math.inf, -2, -2, -2])
    model_log_p = torch.tensor([-2, -math.inf, -math.inf, -3, -2])
    errors = ErrorMap.of(true_log_p, model_log_p, torch.arange(5), width=WIDTH)

    *nothing, one, right = rows = errors.rows

    assert [c.edits for c in errors.cells] == [3, 4]
    for row in nothing:
        assert math.isnan(row.mean_error) and row.stderr == math.inf
    assert [row.impossible for row in rows] == [1, 1, 0, 0, 0]
    assert [row.ruled_out for row in rows] == [0, 0, 1, 0, 0]
    assert [row.share_overestimated for row in rows] == [1, 0, 0, 0, 0]
    assert (one.mean_error, one.stderr) == (-1, math.inf)
    assert right.share_overestimated == 0, "no error is none"


def test_refusals():
    ok, edits = torch.tensor([-1.0, -2.0]), torch.tensor([0, 1])
    assert ErrorMap.of(ok[:0], ok[:0], edits[:0], width=WIDTH).rows == ()
    for columns, message in [
        ((torch.tensor([0.5, -1]), ok, edits), r"true_log_p\[0\] is 0.5"),
        ((ok, torch.tensor([-1, math.nan]), edits), r"model_log_p\[1\] is"),
        ((ok, ok[:1], edits), "2 sequences and model_log_p 1"),
        ((ok, ok, edits[:1]), r"edits must have shape \(2,\).* \(1,\)"),
        ((ok[None], ok, edits), r"true_log_p must have shape \(N,\)"),
        ((ok, ok, edits - 1), r"edits\[0\] is -1; expected at least 0"),
        ((ok, ok, edits.bool()), "edits must be a tensor of integers"),
        ((ok.long(), ok, edits), "true_log_p must be a floating-point"),
    ]:
        with pytest.raises((ValueError, TypeError), match=message):
            ErrorMap.of(*columns, width=WIDTH)
    for width in (0, -1, math.inf, math.nan):
        with pytest.raises(ValueError, match="width must be above 0"):
            ErrorMap.of(ok, ok, edits, width=width)
