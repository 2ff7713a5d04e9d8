"""Corpora on disk: what is in them, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from lm_latent_eval.cli import main
from lm_latent_eval.distortion.corpus import Corpus
from lm_latent_eval.distortion.languages.language import Sample
from lm_latent_eval.distortion.languages.loading import load_language
from tests.distortion.tiny import causal, gpt2, pcfg

SIZE = {"num_sequences": 25, "max_length": 4, "quiet": True}


def draw(language: Any, directory: Any, **changes: Any) -> Corpus:
    settings = SIZE | changes
    return Corpus.draw(language, directory, settings.pop("num_sequences"), **settings)


def contents(directory: Any) -> dict[str, bytes]:
    files = (path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


@dataclass(frozen=True)
class Altering:
    """A language whose samples are altered before the corpus sees them."""

    language: Any
    alter: Callable[[Any, Sample], None]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.language, name)

    def sample(self, seed: int, indices: Any, max_length: int) -> Sample:
        found = self.language.sample(seed, indices, max_length)
        self.alter([*indices], found)
        return found


def test_an_interrupted_run_is_drawn_anew(tmp_path, monkeypatch):
    monkeypatch.setattr("lm_latent_eval.distortion.corpus._ROWS_AT_ONCE", 4)
    corpus, whole = draw(pcfg(), tmp_path / "whole"), contents(tmp_path / "whole")
    sample = pcfg().sample(0, range(25), 4)
    assert corpus.read(range(25)).sequences == sample.sequences

    def stop(indices: Any, _: Sample) -> None:
        if 9 in indices:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        draw(Altering(pcfg(), stop), tmp_path / "stopped")
    with pytest.raises(ValueError, match=r"settings.json is missing: no corpus is"):
        Corpus.open(tmp_path / "stopped")
    draw(pcfg(), tmp_path / "stopped")
    assert contents(tmp_path / "stopped") == whole
    draw(Altering(pcfg(), stop), tmp_path / "stopped")  # it is there
    (tmp_path / "stopped" / "sequences.arrow").write_bytes(b"no Arrow" * 50)
    with pytest.raises(ValueError, match=r"sequences.arrow is missing or damaged"):
        Corpus.open(tmp_path / "stopped")


def test_other_settings_are_refused(tmp_path):
    draw(pcfg(), tmp_path)
    whole = contents(tmp_path)
    for name in ("seed", "first", "num_sequences", "max_length"):
        with pytest.raises(ValueError, match=rf"{name} is \d+ there and 9 here"):
            draw(pcfg(), tmp_path, **{name: 9})
    with pytest.raises(ValueError, match=r"of another corpus \(language.digest is"):
        draw(load_language("agreement"), tmp_path)
    for change in ({"num_sequences": 0}, {"first": -1}, {"first": 2**63}):
        with pytest.raises(ValueError, match="expected a whole number of at least"):
            draw(pcfg(), tmp_path / "new", **change)
    assert contents(tmp_path) == whole


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_length": 0}, "not the settings of a corpus .max_length=0: expected a"),
        ({"language": None}, "not the settings of a corpus .it names no language"),
        ({"num_sequences": 10**30}, "has 25 sequences, and .* names 10000"),
    ],
)
def test_settings_that_are_none(tmp_path, changes, message):
    draw(pcfg(), tmp_path)
    settings = json.loads((tmp_path / "settings.json").read_text()) | changes
    kept = {name: value for name, value in settings.items() if value is not None}
    (tmp_path / "settings.json").write_text(json.dumps(kept))
    with pytest.raises(ValueError, match=message):
        Corpus.open(tmp_path)


def test_impossible_draws_are_an_error(tmp_path):
    def rule_out(indices: Any, found: Sample) -> None:
        found.log_p[indices.index(3)] = float("-inf")

    with pytest.raises(ValueError, match="sequence 3 was drawn, but its log-prob"):
        draw(Altering(pcfg(), rule_out), tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_command_line_of_a_causal_lm(tmp_path):
    gpt2().save_pretrained(tmp_path / "gpt2")
    run = ["distort", "sample", "--language", str(tmp_path / "gpt2"), "--device", "cpu"]
    run += ["--output", str(tmp_path / "corpus"), "--num-sequences", "40"]
    run += ["--temperature", "0.7", "--max-length", "6", "--batch-size", "9"]
    assert main([*run, "--dtype", "float64"]) == 0
    rows = Corpus.open(tmp_path / "corpus").dataset()
    whole = causal(0.7).sample(0, range(40), 6)
    assert len({*map(len, whole.sequences)}) > 3, "premise: sequences leave a batch"
    assert rows["ids"][:] == whole.sequences
    assert rows["log_p"][:] == pytest.approx(whole.log_p.tolist(), rel=1e-12)
