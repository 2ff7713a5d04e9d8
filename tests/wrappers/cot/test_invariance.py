"""Batch, order and company of a question move none of its numbers."""

from __future__ import annotations

import random

import pytest

from lm_latent_eval.scoring.texts import Query
from tests.wrappers.cot import tiny

QUESTIONS = ("a b", "c", "b b c a", "a c", "", "c c c")
OPTIONS = {"num_samples": 12, "close": "forced"}


@pytest.fixture(scope="module")
def network():
    return tiny.network()


def queries(questions=QUESTIONS, answers=tiny.ANSWERS):
    asked = [(f"t/{n}", a, q) for n, q in enumerate(questions) for a in answers]
    return [Query(n, *query) for n, query in enumerate(asked)]


def numbers(scorer, asked):
    return {
        (asked[a.index].name, asked[a.index].text): a.estimate.log_weights
        for a in scorer.score_continuations(asked)
    }


def same(one, other):
    assert one.keys() == other.keys()
    for key, weights in one.items():
        assert weights == pytest.approx(other[key], rel=1e-12)


@pytest.mark.parametrize("proposal", ["prior", "hinted"])
def test_batch_and_order_move_nothing(network, proposal):
    def found(asked, *batch):
        scorer = tiny.scorer(network, *batch, proposal=proposal, **OPTIONS)
        return numbers(scorer, asked)

    wanted = found(queries(), 1000)
    same(found(queries(), 1), wanted)
    same(found(queries(), 7, 4), wanted)
    if proposal == "prior":  # hints are in the order of the options
        shuffled = queries()
        random.Random(0).shuffle(shuffled)
        renumbered = [
            Query(n, q.name, q.text, q.context) for n, q in enumerate(shuffled)
        ]
        same(found(renumbered, 5), wanted)


def test_a_question_s_share_is_what_it_is_alone(network):
    """As processes share documents."""
    together = numbers(tiny.scorer(network, **OPTIONS), queries())
    for n, question in enumerate(QUESTIONS):
        asked = [
            Query(i, f"t/{n}", answer, question)
            for i, answer in enumerate(tiny.ANSWERS)
        ]
        alone = numbers(tiny.scorer(network, **OPTIONS), asked)
        same(alone, {key: together[key] for key in alone})


def test_fewer_thoughts_are_the_first_of_more(network):
    few = numbers(tiny.scorer(network, num_samples=5, close="forced"), queries())
    many = numbers(tiny.scorer(network, **OPTIONS), queries())
    same(few, {key: weights[:5] for key, weights in many.items()})


def test_other_answers_need_no_new_thoughts(network):
    for proposal in ("prior", "hinted"):
        scorer = tiny.scorer(network, proposal=proposal, **OPTIONS)
        kept = tiny.keeping(scorer)
        list(scorer.score_continuations(queries()))
        for thoughts in kept:
            again = scorer.answer(thoughts, tiny.ANSWERS[::-1])
            wanted = thoughts.log_weights.flip(0).flatten().tolist()
            assert again.log_weights.flatten().tolist() == pytest.approx(wanted)
            assert again.greedy == thoughts.greedy[::-1]
            assert again.hints == thoughts.hints
    with pytest.raises(ValueError, match="no answers are given"):
        scorer.answer(thoughts, [])


@pytest.mark.parametrize("proposal", ["prior", "hinted"])
def test_what_was_thought_before_is_not_thought_again(network, proposal, monkeypatch):
    options = {"proposal": proposal, **OPTIONS}
    wanted = numbers(tiny.scorer(network, **options), queries())
    first = tiny.scorer(network, **options)
    shown = {(f"t/{n}", question): tiny.ANSWERS for n, question in enumerate(QUESTIONS)}
    first.shown = shown
    kept = tiny.keeping(first)
    some = [q for q in queries() if q.text != tiny.ANSWERS[1]]
    some = [Query(n, q.name, q.text, q.context) for n, q in enumerate(some)]
    found = numbers(first, some)
    # Hints show all answers, so the number of one is the same whichever are asked.
    same(found, {key: wanted[key] for key in found})

    again = tiny.scorer(network, **options)
    again.shown = shown
    again.known = {(t.name, t.question): t for t in kept}
    monkeypatch.setattr(
        "lm_latent_eval.wrappers.cot.thinking.draw",
        lambda *_, **__: pytest.fail("drew"),
    )
    completed = tiny.keeping(again)
    same(numbers(again, queries()), wanted)
    assert all({*t.answers} == {*tiny.ANSWERS} for t in completed)
    assert len(completed) == len(QUESTIONS)
    # Thoughts after other hints are others.
    again.shown = {}
    if proposal == "hinted":
        with pytest.raises(pytest.fail.Exception):
            numbers(again, some)


def test_two_tokens_can_close_a_thought(network):
    options = {**OPTIONS, "think_end": "a </think>", "max_think_tokens": 6}
    scorer = tiny.scorer(network, **{**options, "num_samples": 200})
    kept = tiny.keeping(scorer)
    list(scorer.score_continuations(queries(["a"])))
    [thoughts] = kept
    for thought in thoughts.drawn:
        ends = [
            n
            for n in range(2, len(thought.tokens) + 1)
            if thought.tokens[n - 2 : n] == scorer.marks.end_ids
        ]
        assert bool(ends) == (thought.ending == "closed")
        assert not ends or ends == [len(thought.tokens)]
    assert {t.ending for t in thoughts.drawn} == {"closed", "truncated", "ended"}
