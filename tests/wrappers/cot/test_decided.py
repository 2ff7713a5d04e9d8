"""Intervals of answers, and thoughts that are drawn until a question is decided."""

from __future__ import annotations

import math

import pytest

from lm_latent_eval.estimators import Bound
from lm_latent_eval.scoring.texts import Query
from lm_latent_eval.wrappers.cot import model as scoring
from lm_latent_eval.wrappers.cot.drawing import WEIGHTS_AT_MOST, looks
from tests.wrappers.cot import tiny
from tests.wrappers.cot.tiny import ANSWERS, QUESTION

TRIALS = 30


@pytest.fixture(scope="module")
def network():
    return tiny.network()


def asked(trials=1, answers=ANSWERS):
    pairs = [(n, answer) for n in range(trials) for answer in answers]
    return [Query(i, f"t/{n}", a, QUESTION) for i, (n, a) in enumerate(pairs)]


def run(network, queries, **options):
    """Return answers in their order, and thoughts by question."""
    scorer = tiny.scorer(network, 512, **options)
    kept = tiny.keeping(scorer)
    answers = sorted(scorer.score_continuations(queries), key=lambda a: a.index)
    return answers, {thoughts.name: thoughts for thoughts in kept}


@pytest.mark.parametrize("proposal", ["prior", "hinted"])
def test_stopped_draws_have_intervals_and_choices_that_hold(network, proposal):
    """Against sums over all thoughts, which are known."""
    options = {"proposal": proposal, "close": "forced", "num_samples": 48}
    answers, thoughts = run(network, asked(TRIALS), **options, until="decided")
    truth = [math.log(tiny.exact(network, QUESTION, a, "forced")) for a in ANSWERS]
    outside = [0] * len(ANSWERS)
    for n, answer in enumerate(answers):
        row = n % len(ANSWERS)
        estimate = answer.estimate
        assert estimate.bound is Bound.NONE, "stopped by looking"
        assert estimate.at_least <= estimate.log_evidence <= estimate.at_most
        outside[row] += not estimate.at_least <= truth[row] <= estimate.at_most
    choices = [t.choice(WEIGHTS_AT_MOST[proposal]) for t in thoughts.values()]
    best = truth.index(max(truth))
    wrong = sum(c.decided is not None and c.best != best for c in choices)
    allowed = TRIALS * 0.05 + 5 * math.sqrt(TRIALS * 0.05 * 0.95)
    assert max(*outside, wrong) <= allowed
    sizes = [len(t.drawn) for t in thoughts.values()]
    assert {*sizes} <= {*looks(48)}
    for choice, size in zip(choices, sizes, strict=True):
        assert size == 48 or choice.decided <= size
    assert any(c.decided for c in choices), "premise: something is decided"


@pytest.mark.parametrize("proposal", ["prior", "hinted"])
def test_a_decided_question_has_the_first_thoughts_of_a_longer_run(network, proposal):
    options = {"proposal": proposal, "close": "forced"}
    _, stopped = run(network, asked(3), **options, until="decided", num_samples=64)
    for name, thoughts in stopped.items():
        one = [q for q in asked(3) if q.name == name]
        _, whole = run(network, one, **options, num_samples=len(thoughts.drawn))
        assert whole[name].drawn == thoughts.drawn
        assert whole[name].greedy == thoughts.greedy
        for mine, other in (
            (thoughts.log_q, whole[name].log_q),
            (thoughts.log_p_answers[0], whole[name].log_p_answers[0]),
        ):
            assert mine.tolist() == pytest.approx(other.tolist(), abs=1e-9)


def test_a_target_by_itself_has_all_its_thoughts(network):
    [answer], [thoughts] = (
        [*found] if isinstance(found, list) else [*found.values()]
        for found in run(
            network, asked(1, ANSWERS[:1]), until="decided", num_samples=20
        )
    )
    assert len(thoughts.drawn) == 20
    assert answer.estimate.bound is Bound.STOCHASTIC_LOWER


def test_a_decision_is_among_all_options_whichever_are_asked(network):
    scorer = tiny.scorer(network, close="forced", until="decided", num_samples=64)
    scorer.shown = {("t/0", QUESTION): ANSWERS}
    kept = tiny.keeping(scorer)
    [answer] = scorer.score_continuations(asked(1, ANSWERS[1:2]))
    assert {*kept[0].answers} == {*ANSWERS} and answer.estimate.bound is Bound.NONE


def test_a_weight_above_its_bound_names_question_and_draw(network, monkeypatch):
    monkeypatch.setitem(scoring.WEIGHTS_AT_MOST, "prior", 1e-3)
    with pytest.raises(ValueError, match=r"t/0.*: draw \d+ of row 0 weighs .*0\.001"):
        run(network, asked(), close="forced", num_samples=4)
