import math

import pytest
import torch

from lm_latent_eval.distortion.statistics import LengthErrors
from lm_latent_eval.estimators import bootstrap_interval


def sentences(size=300, seed=0):
    """Return columns in which long sequences are worse than their length explains."""
    generator = torch.Generator().manual_seed(seed)
    num_tokens = torch.randint(1, 12, (size,), generator=generator, dtype=torch.int32)
    true_log_p = -3.0 * num_tokens.double()
    noise = torch.randn(size, generator=generator, dtype=torch.float64)
    model_log_p = (true_log_p - 0.05 * num_tokens**2 + noise).clamp(max=0)
    return true_log_p, model_log_p, num_tokens


def test_lengths_by_brute_force():
    true_log_p, model_log_p, num_tokens = sentences()
    errors = (model_log_p - true_log_p).tolist()
    by_length = {}
    for error, length in zip(errors, num_tokens.tolist(), strict=True):
        by_length.setdefault(length, []).append(error)
    fewest = sorted(map(len, by_length.values()))[3]
    settings = {"resamples": 200, "confidence": 0.9}

    found = LengthErrors.of(
        true_log_p, model_log_p, num_tokens, fewest=fewest, seed=5, **settings
    )

    ratios = [e / n for e, n in zip(errors, num_tokens.tolist(), strict=True)]
    assert found.token_error == pytest.approx(sum(ratios) / len(ratios))
    kept = {n: e for n, e in sorted(by_length.items()) if len(e) >= fewest}
    assert 0 < len(kept) < len(by_length), "premise"
    assert found.left_out == 300 - sum(map(len, kept.values()))
    assert [each.num_tokens for each in found.lengths] == [*kept]
    for each, (length, members) in zip(found.lengths, kept.items(), strict=True):
        assert each.count == len(members)
        assert each.mean_error == pytest.approx(sum(members) / len(members))
        assert each.expected == pytest.approx(length * sum(ratios) / len(ratios))
        ends = bootstrap_interval(torch.tensor(members), seed=(5, length), **settings)
        assert (each.lower, each.upper) == pytest.approx(ends)


def test_errors_that_only_add_up_are_expected():
    """Proportional to length, whatever lengths are common."""
    _, _, num_tokens = sentences()
    true_log_p = -3.0 * num_tokens.double()
    found = LengthErrors.of(true_log_p, 1.25 * true_log_p, num_tokens, resamples=2)
    for each in found.lengths:
        assert each.mean_error == pytest.approx(each.expected)
        assert each.expected == pytest.approx(-0.75 * each.num_tokens)


def test_errors_that_grow_faster_are_worse_than_expected():
    found = LengthErrors.of(*sentences(3000), resamples=200)
    assert found.lengths[-1].upper < found.lengths[-1].expected
    assert found.lengths[0].lower > found.lengths[0].expected


def test_intervals_depend_on_their_own_length_only():
    columns = sentences()
    keep = columns[2] != 3
    one = LengthErrors.of(*columns, resamples=50, fewest=1)
    other = LengthErrors.of(*(c[keep] for c in columns), resamples=50, fewest=1)
    expected = [(e.lower, e.upper) for e in one.lengths if e.num_tokens != 3]
    assert [(e.lower, e.upper) for e in other.lengths] == expected


def test_refusals():
    ok, lengths = torch.tensor([-1.0] * 11), torch.tensor([2] * 11)
    LengthErrors.of(ok, ok, lengths, resamples=2)
    with pytest.raises(ValueError, match="no length has 11 of the 10 sequences"):
        LengthErrors.of(ok[:10], ok[:10], lengths[:10])
    with pytest.raises(ValueError, match=r"num_tokens\[0\] is 0; expected at least 1"):
        LengthErrors.of(ok, ok, lengths - 2)
    with pytest.raises(ValueError, match=r"num_tokens must have shape \(11,\)"):
        LengthErrors.of(ok, ok, lengths[1:])
    with pytest.raises(TypeError, match="num_tokens must be a tensor of integers"):
        LengthErrors.of(ok, ok, lengths.double())
    with pytest.raises(ValueError, match="fewest must be a whole number"):
        LengthErrors.of(ok, ok, lengths, fewest=0)
    with pytest.raises(ValueError, match=r"model_log_p\[0\] is -inf"):
        LengthErrors.of(ok, ok - math.inf, lengths)
