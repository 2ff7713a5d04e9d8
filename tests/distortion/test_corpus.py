"""Corpora on disk: what is in them, and what an interruption leaves."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from lm_latent_eval.cli import main
from lm_latent_eval.distortion.corpus import Corpus
from lm_latent_eval.distortion.languages.language import Sample
from lm_latent_eval.distortion.languages.loading import load_language
from tests.distortion.tiny import causal, gpt2, pcfg

SIZE = {"num_sequences": 25, "shard_size": 10, "max_length": 4, "quiet": True}


def draw(language: Any, directory: Any, **changes: Any) -> Corpus:
    settings = SIZE | changes
    return Corpus.draw(language, directory, settings.pop("num_sequences"), **settings)


def contents(directory: Any) -> dict[str, bytes]:
    files = (path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


@dataclass(frozen=True)
class Stopped:
    """A language that is interrupted when it should draw a certain sequence."""

    language: Any
    stop: int

    def __getattr__(self, name: str) -> Any:
        return getattr(self.language, name)

    def sample(self, seed: int, indices: Any, max_length: int) -> Sample:
        if self.stop in indices:
            raise KeyboardInterrupt
        return self.language.sample(seed, indices, max_length)


def test_an_interrupted_run_goes_on(tmp_path, monkeypatch):
    module = "lm_latent_eval.distortion.corpus"
    monkeypatch.setattr(f"{module}._ROWS_AT_ONCE", 4)
    draw(pcfg(), tmp_path / "whole")
    for stop in (3, 9, 10, 17, 24):
        folder = tmp_path / str(stop)
        with pytest.raises(KeyboardInterrupt):
            draw(Stopped(pcfg(), stop), folder)
        with pytest.raises(ValueError, match=r"arrow is missing or cut short"):
            Corpus.open(folder)
        done = sorted(path.name for path in folder.rglob("*.arrow"))
        assert done == ["00000.arrow", "00001.arrow"][: stop // 10]
        # What is there is not drawn again.
        draw(Stopped(pcfg(), 0) if done else pcfg(), folder)
        assert contents(folder) == contents(tmp_path / "whole")


def test_a_shard_cut_short_is_drawn_anew(tmp_path):
    draw(pcfg(), tmp_path)
    whole = contents(tmp_path)
    path = tmp_path / "shards" / "00001.arrow"
    data = path.read_bytes()
    end_mark = 8
    sizes = (0, 1, len(data) // 2, len(data) - end_mark - 1)
    of_another = whole["shards/00000.arrow"]
    for wrong in (*(data[:n] for n in sizes), of_another, b"no Arrow" * 50):
        path.write_bytes(wrong)
        with pytest.raises(ValueError, match=r"00001.arrow is missing or cut short"):
            Corpus.open(tmp_path)
        draw(Stopped(pcfg(), 0), tmp_path)
        assert contents(tmp_path) == whole


def test_other_settings_are_refused(tmp_path):
    draw(pcfg(), tmp_path)
    whole = contents(tmp_path)
    for name in ("seed", "first", "num_sequences", "max_length", "shard_size"):
        with pytest.raises(ValueError, match=rf"{name} is \d+ there and 9 here"):
            draw(pcfg(), tmp_path, **{name: 9})
    with pytest.raises(ValueError, match=r"of another corpus \(language.digest is"):
        draw(load_language("agreement"), tmp_path)
    for change in (
        {"num_sequences": 0},
        {"first": -1},
        {"first": 2**63},
        {"shard_size": 0},
    ):
        with pytest.raises(ValueError, match="expected a whole number of at least"):
            draw(pcfg(), tmp_path / "new", **change)
    assert contents(tmp_path) == whole


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"first": None}, "not the settings of a corpus .first=None: expected a whole"),
        ({"shard_size": 0}, "not the settings of a corpus .shard_size=0: expected a"),
        ({"language": None}, "not the settings of a corpus .it names no language"),
        ({"num_sequences": 10**10, "shard_size": 10**10}, "00000.arrow is missing or"),
        ({"num_sequences": 10**30, "shard_size": 10**30}, "00000.arrow is missing or"),
    ],
)
def test_settings_that_are_none(tmp_path, changes, message):
    """Refused in a line, and before memory is taken for so many rows."""
    draw(pcfg(), tmp_path)
    settings = json.loads((tmp_path / "settings.json").read_text()) | changes
    kept = {name: value for name, value in settings.items() if value is not None}
    (tmp_path / "settings.json").write_text(json.dumps(kept))
    with pytest.raises(ValueError, match=message):
        Corpus.open(tmp_path)


def test_impossible_draws_are_an_error(tmp_path):
    class Wrong(Stopped):
        def sample(self, seed: int, indices: Any, max_length: int) -> Sample:
            found = self.language.sample(seed, indices, max_length)
            if 3 in indices:
                found.log_p[[*indices].index(3)] = float("-inf")
            return found

    with pytest.raises(ValueError, match="sequence 3 was drawn, but its log-prob"):
        draw(Wrong(pcfg(), 0), tmp_path)


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
