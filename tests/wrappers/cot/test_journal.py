"""Thoughts that are kept while a run goes on, and what tells runs apart."""

from __future__ import annotations

import pytest

from lm_latent_eval.ledger.database import UNFINISHED, Ledger
from lm_latent_eval.scoring.texts import Query
from lm_latent_eval.wrappers.cot.model import read_answers
from lm_latent_eval.wrappers.cot.thoughts import (
    FORMAT,
    Kept,
    journal,
    read_unfinished,
    row_of,
)
from tests.wrappers.cot import tiny


@pytest.fixture(scope="module")
def network():
    return tiny.network()


def test_two_runs_do_not_write_one_file(network, tmp_path):
    scorer = tiny.scorer(network, num_samples=3, close="forced")
    kept = tiny.keeping(scorer)
    asked = [Query(n, f"t/{n}", " c", "a " * (n + 1)) for n in range(2)]
    list(scorer.score_continuations(asked))
    first, second = (Kept(n, thoughts, None) for n, thoughts in enumerate(kept))
    path, settings = tmp_path / f"thoughts_{UNFINISHED}", scorer.fingerprint
    with journal(path, settings) as add:
        add("t", first)
        with (
            pytest.raises(ValueError, match="another run is writing into"),
            journal(path, settings),
        ):
            pytest.fail("two writers")
        add("t", second)
    with journal(path, settings):  # one that ended is gone on with
        pass
    [file] = read_unfinished([*tmp_path.glob(f"thoughts_*{UNFINISHED}")])
    assert [question.document for question in file.questions] == [0, 1]


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
