"""Thoughts are kept, read again and gone on with; what is beside them moves none."""

from __future__ import annotations

import pytest

from lm_latent_eval.ledger.database import UNFINISHED, Ledger
from lm_latent_eval.scoring.texts import Query
from lm_latent_eval.wrappers.cot.model import read_answers
from lm_latent_eval.wrappers.cot.thoughts import (
    FORMAT,
    Kept,
    read_unfinished,
    row_of,
)
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
    with pytest.raises(ValueError, match="no answers are given"):
        again.answer(completed[0], [])
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


# -- files ----------------------------------------------------------------------------


@pytest.mark.parametrize("line", ["[" * 100_000, '{"a": 1, "a": 2}', "3", "{"])
def test_answers_that_are_none_are_named(tmp_path, line):
    path = tmp_path / "answers.jsonl"
    path.write_text(f'{{"document": 0, "answers": [" yes"]}}\n{line}\n')
    with pytest.raises(ValueError, match=r"answers\.jsonl, line 2: expected"):
        read_answers(path)
    path.write_text('{"document": true, "answers": [" yes"]}\n')
    with pytest.raises(ValueError, match=r"answers\.jsonl, line 1: expected"):
        read_answers(path)


def test_a_row_that_is_no_question_is_named(network, tmp_path):
    scorer = tiny.scorer(network, num_samples=3, close="forced")
    kept = tiny.keeping(scorer)
    list(scorer.score_continuations([Query(0, "t/0", " c", "a ")]))
    path, settings = tmp_path / f"thoughts_{UNFINISHED}", scorer.fingerprint
    right = row_of(Kept(0, kept[0], None))
    for name in right.keys() - {"right"}:
        for odd in (None, 3.5, [[]], {}):
            with Ledger(path, "", FORMAT).going_on(settings, None) as rows:
                rows.add("t", (0, ""), right | {name: odd})
            with pytest.raises(ValueError, match=rf"row \d+ is not .*\({name} "):
                read_unfinished([path])


def test_other_ends_of_texts_are_another_run(network, monkeypatch):
    before = tiny.scorer(network).fingerprint
    assert before["stops"] == [tiny.END]
    more = [tiny.END, tiny.WORDS.index("a")]
    monkeypatch.setattr(network.model.generation_config, "eos_token_id", more)
    after = tiny.scorer(network).fingerprint
    assert after["stops"] == more
    assert {**after, "stops": before["stops"]} == before
