"""Verdicts on numbers that leave no doubt, and on some that do."""

import pytest
import torch

from lm_latent_eval.distortion.report import claims
from lm_latent_eval.distortion.report.claims import ClaimVerdict
from lm_latent_eval.distortion.report.measures import Comparison
from lm_latent_eval.distortion.statistics import ErrorMap
from lm_latent_eval.estimators import Bound
from tests.distortion.report.saved import columns, language
from tests.means import normal

TRUE = language(1000)
NOISE = normal(1000, seed=1, sd=0.5)


def comparison(error, true=TRUE, **changes):
    return Comparison.of(columns(true, true + error, **changes))


def epochs(*means):
    return {"m": [columns(TRUE, TRUE + NOISE + mean) for mean in means]}


def verdicts(cases):
    return [case.verdict for case in cases]


HOLDS, FAILS = ClaimVerdict.HOLDS, ClaimVerdict.FAILS
UNDECIDED = ClaimVerdict.UNDECIDED
UNDERESTIMATION = [
    (NOISE - 1, HOLDS),
    (NOISE + 1, FAILS),
    (NOISE - NOISE.mean(), UNDECIDED),
    # Most are overestimated a little, and some underestimated a lot.
    (torch.where(TRUE.median() - 10 > TRUE, -50.0, 0.1), FAILS),
    # The mean is below 0, and nobody can tell of the majority.
    (torch.where(torch.arange(1000) % 2 == 0, -0.2, 0.1), UNDECIDED),
]
RARITY = [(0.1, HOLDS), (-0.1, FAILS), (0.0, UNDECIDED)]
AMOUNT = [
    (-2, -1, HOLDS),
    (-1, -2, FAILS),  # it remains, and was not lessened
    (-2, 1, FAILS),  # it was lessened, and does not remain
    (1, 2, FAILS),
    (-1, -1, UNDECIDED),
    (2, 1, FAILS),
]
CASES = [
    *((claims.underestimation, {"m": comparison(e)}, v) for e, v in UNDERESTIMATION),
    *((claims.rarity, {"m": comparison(s * TRUE + NOISE)}, v) for s, v in RARITY),
    *((claims.more_data, epochs(a, b), v) for a, b, v in AMOUNT),
]


@pytest.mark.parametrize(("claim", "found", "expected"), CASES)
def test_verdicts(claim, found, expected):
    assert verdicts(claim(found)) == [expected]


def test_a_few_sequences_decide_nothing():
    """Errors that have nothing to do with how probable a sequence is."""
    for seed in range(20):
        true, error = language(20, seed=seed), normal(20, seed=seed)
        [rare] = claims.rarity({"m": comparison(error, true)})
        [drawn] = claims.overestimation({}, {"m": comparison(error[:5], true[:5])})
        few = ErrorMap(5.0)
        few.add(true[:5] - torch.inf, true[:5], torch.zeros(5, dtype=torch.long))
        over = claims.overestimation({"m": few}, {})
        shrunk = [
            columns(true[:5], true[:5] + e) for e in (error[:5] - 9, error[:5] - 3)
        ]
        more = claims.more_data({"m": shrunk})
        assert rare.verdict is drawn.verdict is UNDECIDED
        assert verdicts(over) == verdicts(more) == [UNDECIDED]
        assert ".." not in rare.numbers + drawn.numbers, "no interval"


def test_overestimation():
    error_map = ErrorMap(5.0)
    for edits in range(4):
        error_map.add(TRUE, TRUE + NOISE - 1.5 + edits, torch.full((1000,), edits))
    random = {"m": comparison(NOISE - 1)}
    perturbed, drawn = claims.overestimation({"m": error_map}, random)
    assert perturbed.verdict is HOLDS
    assert "above 0 from 2 on" in perturbed.numbers
    bins = len({int(x // 5) for x in TRUE.tolist() if (x // 5 == TRUE // 5).sum() > 10})
    assert f"in {3 * bins} of {3 * bins} cells" in perturbed.numbers
    assert drawn.verdict is FAILS


def test_entropy():
    colder, warmer = TRUE, 1.5 * language(1000, seed=5)
    # Both underestimate by a tenth of a nat a nat: at equal probability, the same.
    same = {
        0.7: comparison(0.1 * colder + NOISE, colder),
        1.0: comparison(0.1 * warmer + NOISE, warmer),
    }
    assert verdicts(claims.low_entropy(same)) == [UNDECIDED]
    worse = {**same, 0.7: comparison(0.1 * colder + NOISE - 1, colder)}
    (case,) = claims.low_entropy(worse)
    assert case.verdict is HOLDS
    difference = float(case.numbers.split()[0])
    assert difference == pytest.approx(-1, abs=0.2)
    apart = {**same, 1.0: comparison(NOISE, warmer - 1000)}
    (case,) = claims.low_entropy(apart)
    assert case.verdict is UNDECIDED
    assert "no probability that both have" in case.numbers


def test_all_of_them():
    found = comparison(NOISE - 1)
    error_map = ErrorMap(5.0)
    error_map.add(TRUE, TRUE + 1, torch.zeros(1000, dtype=torch.int64))
    epochs = [columns(TRUE, TRUE - 2), columns(TRUE, TRUE - 1)]
    models = {"m": found}
    said = claims.claims(
        models, {"m": error_map}, models, {"m": epochs}, {0.7: found, 1.0: found}
    )
    listed = [line.split()[1] for line in said.splitlines() if line[:1] == "-"]
    assert listed == ["(i)", "(ii)", "(iii)", "(iv)", "(v)"]
    assert "Holds for 1 of 2:" in said


def test_the_estimator_is_not_blamed_on_the_model():
    # Rare sequences look worse, and a bias of two nats may be all of it.
    error = 0.1 * TRUE + NOISE
    rough = comparison(error, stderr=torch.full_like(TRUE, 2.0))
    beam = Comparison.of(columns(TRUE, TRUE + error), Bound.STRICT_LOWER)
    for found in (rough, beam):
        assert verdicts(claims.rarity({"m": found})) == [UNDECIDED]
        assert verdicts(claims.underestimation({"m": found})) == [UNDECIDED]
    exact = comparison(error)
    assert verdicts(claims.rarity({"m": exact})) == [HOLDS]


def test_intervals_by_hand():
    """Verdicts turn where 1.96 standard errors do."""
    alternating = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(200)
    true = torch.full((400,), -50.0, dtype=torch.float64)
    stderr = alternating.std().item() / 20
    for multiple, expected in ((1.9, UNDECIDED), (2.05, HOLDS)):
        shift = multiple * stderr
        # (iii): a mean above 0.
        error_map = ErrorMap(5.0)
        edits = torch.zeros(400, dtype=torch.int64)
        error_map.add(true, true + alternating + shift, edits)
        assert verdicts(claims.overestimation({"m": error_map}, {})) == [expected]
        # (iv): the same change of every sequence, and what is left.
        last = true + alternating - shift
        epochs = [columns(true, last - 10), columns(true, last)]
        assert verdicts(claims.more_data({"m": epochs})) == [expected]
        # (v): two means in one bin, with the errors of both.
        pair = {
            0.7: comparison(alternating - shift * 2**0.5, true),
            1.0: comparison(alternating, true),
        }
        (case,) = claims.low_entropy(pair)
        assert case.verdict is expected
        assert f"± {1.96 * stderr * 2**0.5:.2f} nats over 1 bins" in case.numbers


def test_where_most_have_no_error_their_share_decides():
    error_map = ErrorMap(5.0)
    true = torch.tensor([-30.0] * 20 + [-torch.inf] * 80)
    error_map.add(true, torch.full_like(true, -31), torch.zeros(100, dtype=torch.long))
    # Twenty are underestimated, and eighty are impossible and not ruled out.
    [case] = claims.overestimation({"m": error_map}, {})
    assert case.verdict is HOLDS
    assert "80.0 % of 100 sequences overestimated" in case.numbers
    few = ErrorMap(5.0)
    few.add(true[10:29], torch.full((19,), -21.0), torch.zeros(19, dtype=torch.long))
    [case] = claims.overestimation({"m": few}, {})
    assert case.verdict is UNDECIDED, "ten have an error"
