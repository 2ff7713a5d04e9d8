"""Numbers from lm-eval's caches are the ones that would have been computed."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from lm_eval.api.model import CachingLM

from lm_latent_eval.harness.answers import CacheMismatchError, ScoredFloat
from lm_latent_eval.harness.backends import LatentKGLM
from tests import tiny_checkpoint
from tests.tiny_checkpoint import conditional, generation, rolling

TEXTS = ("Ada saw the fox", "", "the fox. " * 8)
PAIRS = (("Ada saw", " the fox"), ("the", " saw"), ("Bo", ""))


@pytest.fixture
def caching(tmp_path):
    """Return a function that wraps a backend in the same cache; it is closed after."""
    opened = []

    def wrap(lm, name="cache.db"):
        wrapped = object.__new__(CachingLM)
        opened.append(wrapped)
        wrapped.__init__(lm, str(tmp_path / name))
        return wrapped

    yield wrap
    for wrapped in opened:
        if "dbdict" in vars(wrapped):
            wrapped.dbdict.close()


def forbid(lm, monkeypatch):
    """Fail if the model is asked anything."""
    for name in ("score_texts", "score_continuations"):
        monkeypatch.setattr(
            lm._scorer, name, lambda _: pytest.fail("not from the cache")
        )


def test_a_second_run_answers_from_the_cache(backend, caching, monkeypatch):
    first = caching(backend(estimator="is", num_samples=10))
    texts = first.loglikelihood_rolling(rolling(*TEXTS))
    parts = first.loglikelihood(conditional(*PAIRS))
    written = first.generate_until(generation("the fox", max_gen_toks=4))

    lm = backend(estimator="is", num_samples=10)
    second = caching(lm)
    forbid(lm, monkeypatch)
    again = second.loglikelihood_rolling(rolling(*TEXTS))
    assert second.loglikelihood(conditional(*PAIRS)) == parts
    assert second.generate_until(generation("the fox", max_gen_toks=4)) == written
    assert again == texts
    for old, new in zip(texts, again, strict=True):
        assert isinstance(new, ScoredFloat)
        assert new.estimate == old.estimate
        assert len(new.estimate.log_weights) == 10
        assert new.answer.stream == old.answer.stream


CHANGES = {
    "num_samples": 11,
    "seed": 1,
    "temperature": 1.5,
    "proposal": "prior",
    "unk": "closed",
    "estimator": "beam",
    "target_stderr": 0.5,
    "dtype": "float32",
}


@pytest.mark.parametrize("name", CHANGES)
def test_another_setting_is_refused(backend, caching, name):
    mine = {"num_samples": 10, "proposal": "peeking"}
    first = backend(**mine)
    caching(first).loglikelihood_rolling(rolling("the fox"))
    other = backend(**(mine | {name: CHANGES[name]}))
    with pytest.raises(CacheMismatchError) as caught:
        caching(other)
    there, here = first.fingerprint[name], other.fingerprint[name]
    assert f"{name} is {there} there and {here} here" in str(caught.value)
    assert "cache.db" in str(caught.value)
    assert "--use_cache another path" in str(caught.value)


def test_batch_size_is_no_setting(backend, caching):
    caching(backend(num_samples=10, batch_size=1))
    caching(backend(num_samples=10, batch_size=8, max_batch_size=4))


def test_another_checkpoint_is_refused(backend, caching, tmp_path):
    first = backend(num_samples=10)
    caching(first)
    folder = tiny_checkpoint.write(tmp_path / "other", tiny_checkpoint.kglm(seed=3))
    other = LatentKGLM(pretrained=str(folder), num_samples=10)
    digest = first.checkpoint.digest
    with pytest.raises(CacheMismatchError, match=f"checkpoint is {digest} there"):
        caching(other)


def test_the_cache_of_a_stranger_is_refused(backend, caching):
    stranger = caching(backend(num_samples=10), "stranger.db")
    stranger.dbdict.clear()
    stranger.dbdict["a hash"] = -1.0
    stranger.dbdict.commit()
    with pytest.raises(CacheMismatchError, match="1 answers of a model that left no"):
        caching(backend(num_samples=10), "stranger.db")


# -- the harness's own runs ----------------------------------------------------------


# -- a cache that cannot be written --------------------------------------------------


def test_a_full_disk_keeps_the_answers_and_says_so(backend, caching, caplog):
    lm = backend(num_samples=10, batch_size=1)
    full = caching(lm)
    full.loglikelihood_rolling(rolling(TEXTS[0]))
    (pages,) = full.dbdict.conn.select_one("PRAGMA page_count")
    full.dbdict.conn.execute(f"PRAGMA max_page_count = {pages}")
    many = [f"the fox saw {n}" for n in range(12)]
    with pytest.raises(OSError, match=r"cache\.db cannot be used .* is full") as caught:
        full.loglikelihood_rolling(rolling(*many, first=1))
    assert "\n" not in str(caught.value)
    loggers = {record.name for record in caplog.records}
    assert not any("sqlitedict" in name for name in loggers), "thirty lines"
    kept = len(full.dbdict) - 1
    assert 1 <= kept < 12, "premise"
    full.dbdict.conn.execute(f"PRAGMA max_page_count = {1 << 30}")
    asked = []
    score, lm = lm._scorer.score_texts, full.lm
    lm._scorer.score_texts = lambda queries: asked.extend(queries) or score(queries)
    again = full.loglikelihood_rolling(rolling(TEXTS[0], *many))
    assert len(asked) == 13 - kept, "no answer twice"
    expected = backend(num_samples=10).loglikelihood_rolling(rolling(TEXTS[0], *many))
    assert again == pytest.approx(expected, rel=1e-12)


def test_an_answer_is_in_the_file_before_the_next(backend, caching, monkeypatch):
    lm = backend(num_samples=10, batch_size=1)
    cached, seen = caching(lm), []
    score = lm._scorer.score_texts

    def watched(queries):
        for answer in score(queries):
            with sqlite3.connect(cached.dbdict.filename) as other:
                seen.extend(other.execute("SELECT COUNT(*) FROM unnamed").fetchone())
            other.close()
            yield answer

    monkeypatch.setattr(lm._scorer, "score_texts", watched)
    cached.loglikelihood_rolling(rolling(*TEXTS))
    assert seen == [1, 2, 3], "the fingerprint, and the answers so far"


def test_a_damaged_cache_says_so(backend, caching):
    written = caching(backend(num_samples=10))
    written.loglikelihood_rolling(rolling(*[f"the fox {n}" for n in range(100)]))
    path = Path(written.dbdict.filename)
    written.dbdict.close()
    content = bytearray(path.read_bytes())
    content[4096:] = bytes(len(content) - 4096)
    path.write_bytes(content)
    with pytest.raises(OSError, match=r"cache\.db cannot be used .* remove it"):
        caching(backend(num_samples=10))
