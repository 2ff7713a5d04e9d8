"""Plain texts from files."""

from __future__ import annotations

import codecs

import pytest

from lm_latent_eval.text.corpora import read_texts


def write(tmp_path, name: str, content: str):
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    return path


def test_one_text_a_line(tmp_path):
    path = write(tmp_path, "a.txt", "Eins.\n\n   \nZwei, drüben.\n{drei}\n(Vier)")
    assert read_texts(path) == ["Eins.", "Zwei, drüben.", "{drei}", "(Vier)"]


@pytest.mark.parametrize(
    "name", ["a.jsonl", "a.JSONL", "a.ndjson", "a.json", "a.jsonl.txt", "a.txt", "a"]
)
def test_json_lines_whatever_the_file_is_called(tmp_path, name):
    lines = '{"text": "Ada wrote."}\n\n{"tokens": ["Bo", "read", "."], "id": 3}\n'
    assert read_texts(write(tmp_path, name, lines)) == ["Ada wrote.", "Bo read ."]


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
def test_a_byte_order_mark_is_no_text(tmp_path, name):
    content = {"a.txt": "Eins.\nZwei.", "a.jsonl": '{"text": "Eins."}'}[name]
    path = write(tmp_path, name, content)
    plain = read_texts(path)
    path.write_bytes(codecs.BOM_UTF8 + path.read_bytes())
    assert read_texts(path) == plain


def test_half_a_pair_of_surrogates_is_read_as_it_is_scored(tmp_path):
    path = write(tmp_path, "a.jsonl", r'{"text": "Ada \ud83d"}')
    assert read_texts(path) == ["Ada \ufffd"]


@pytest.mark.parametrize("line", ['{"text": "b"}', '[{"text": "b"}]', "{"])
def test_lines_of_two_kinds_are_refused(tmp_path, line):
    path = write(tmp_path, "a.txt", f"Eins.\n\n{line}\n")
    with pytest.raises(ValueError, match=r"a\.txt, line 3: JSON after .* plain text"):
        read_texts(path)


@pytest.mark.parametrize("name", ["a.txt", "a", "a.json"])
@pytest.mark.parametrize("content", ['[{"text": "b"}]', '{\n "text": "b"\n}', "[\n]"])
def test_json_that_is_not_one_object_a_line_is_refused(tmp_path, name, content):
    with pytest.raises(ValueError, match=r"line 1: expected .*, one a line"):
        read_texts(write(tmp_path, name, content))


TREES = {
    "a.txt": "(S (NP (NN plum)) (VP (VBZ is)))",
    "b.txt": "( (S\n    (NP (NN plum))))",
    "c": "\n(ROOT\n  (S (NN plum)))",
    "d.MRG": "(s (n plum) (v is))",
}


@pytest.mark.parametrize("name", TREES)
def test_trees_are_no_texts(tmp_path, name):
    path = write(tmp_path, name, TREES[name])
    with pytest.raises(ValueError, match=r"has trees in brackets, .* `train rnng`"):
        read_texts(path)


def test_coreference_is_no_text(tmp_path):
    path = write(tmp_path, "a.txt", "#begin document (a); part 000\n0 Ada (1)\n")
    with pytest.raises(ValueError, match=r"coreference .* `train entitynlm`"):
        read_texts(path)


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
        '{"tokens": "a string"}',
        '{"tokens": {"a": 1}}',
        '{"tokens": [["a"], ["b"]]}',
        '{"text": {"text": "a"}}',
        '{"text": "a", "text": "b"}',
        '{"text": "a", "score": NaN}',
        '{"text": "a", "more": ' + "[" * 100_000 + "]" * 100_000 + "}",
        '{"text": 3}',
        '{"text": null}',
        '{"tokens": [1, 2]}',
        '"a string"',
    ],
    ids=lambda line: line[:30],
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
