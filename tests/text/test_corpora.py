"""Plain texts from files."""

from __future__ import annotations

import pytest

from lm_latent_eval.text.corpora import read_texts


def write(tmp_path, name: str, content: str):
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    return path


def test_one_text_a_line(tmp_path):
    path = write(tmp_path, "a.txt", 'Eins.\n\n   \nZwei, drüben.\n{"text": "no"}')
    assert read_texts(path) == ["Eins.", "Zwei, drüben.", '{"text": "no"}']


def test_json_lines(tmp_path):
    lines = '{"text": "Ada wrote."}\n\n{"tokens": ["Bo", "read", "."], "id": 3}\n'
    assert read_texts(write(tmp_path, "a.jsonl", lines)) == ["Ada wrote.", "Bo read ."]


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85"])
def test_only_line_ends_end_lines(tmp_path, separator):
    text = f"one{separator}text"
    assert read_texts(write(tmp_path, "a.txt", f"{text}\n")) == [text]
    content = f'{{"text": "{text}"}}\n'
    assert read_texts(write(tmp_path, "a.jsonl", content)) == [text]


@pytest.mark.parametrize(
    "line",
    [
        '{"text": "cut o',
        "{}",
        "[]",
        "3",
        '{"tokens": 3}',
        '{"text": 3}',
        '{"text": null}',
        '{"tokens": [1, 2]}',
        '"a string"',
    ],
)
def test_a_bad_line_is_named(tmp_path, line):
    path = write(tmp_path, "a.jsonl", f'{{"text": "good"}}\n\n{line}\n')
    with pytest.raises(ValueError, match=r"a\.jsonl, line 3: expected \{\"text\""):
        read_texts(path)


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
def test_a_file_without_texts_is_named(tmp_path, name):
    with pytest.raises(ValueError, match=rf"{name} has no text"):
        read_texts(write(tmp_path, name, "\n \n"))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nothing\.txt"):
        read_texts(tmp_path / "nothing.txt")


def test_a_file_in_another_encoding_is_named(tmp_path):
    path = tmp_path / "latin.txt"
    path.write_bytes("drüben".encode("latin-1"))
    with pytest.raises(ValueError, match=r"latin\.txt is not UTF-8"):
        read_texts(path)
