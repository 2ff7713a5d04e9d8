"""Thoughts that are kept while a run goes on, and what tells runs apart."""

from __future__ import annotations

import pytest

from lm_latent_eval.scoring.texts import Query
from lm_latent_eval.wrappers.cot.files import Kept
from lm_latent_eval.wrappers.cot.journal import UNFINISHED, journal, read_unfinished
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


def test_other_ends_of_texts_are_another_run(network, monkeypatch):
    before = tiny.scorer(network).fingerprint
    assert before["stops"] == [tiny.END]
    more = [tiny.END, tiny.WORDS.index("a")]
    monkeypatch.setattr(network.model.generation_config, "eos_token_id", more)
    after = tiny.scorer(network).fingerprint
    assert after["stops"] == more
    assert {**after, "stops": before["stops"]} == before
