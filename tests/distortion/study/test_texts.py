"""Natural text: parts that share nothing."""

from __future__ import annotations

import pytest

from lm_latent_eval.distortion.study.steps import natural_texts, write_texts
from lm_latent_eval.text.corpora import read_texts


def test_parts_of_a_file(tmp_path):
    path = tmp_path / "all.txt"
    lines = [f"text  {n}" for n in range(100)]
    path.write_text("\n".join(lines) + "\n")
    found = {part: [*natural_texts(path, part)] for part in ("language", "other")}
    assert found == {"language": lines[::2], "other": lines[1::2]}
    write_texts(iter(found["language"]), tmp_path / "language")
    parts = {
        name: read_texts(tmp_path / "language" / f"{name}.txt")
        for name in ("train", "dev", "test")
    }
    assert {name: len(texts) for name, texts in parts.items()} == {
        "train": 45,
        "dev": 3,
        "test": 2,
    }
    assert parts["dev"] == ["text 18", "text 58", "text 98"]
    assert parts["test"] == ["text 38", "text 78"]
    together = [text for texts in parts.values() for text in texts]
    assert sorted(together) == sorted(" ".join(x.split()) for x in found["language"])


def test_demonstration_text():
    mine, other = (set(natural_texts(None, part)) for part in ("language", "other"))
    assert min(len(mine), len(other)) > 5000
    assert len(mine & other) < len(mine) / 2
    assert all(sentence[-1] in ".!?" for sentence in mine)


def test_too_few_texts(tmp_path):
    with pytest.raises(ValueError, match=r"too few texts for .*'test': 0"):
        write_texts(iter(["one", "two"]), tmp_path)
