"""Plain texts from files of any name; what is no text says what it is."""

from __future__ import annotations

import codecs
import gzip

import pytest

from lm_latent_eval.text.corpora import read_texts
from lm_latent_eval.text.files import numbered_lines, read_text


def write(tmp_path, name: str, content: str | bytes):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


PLAIN = ["Eins.", "Zwei, drüben.", "{drei}", "(Vier)"]
SEPARATED = "one\u2028text\x85of\u2029one line"
TEXTS = {
    "lines": ("a.txt", "Eins.\n\n   \nZwei, drüben.\n{drei}\n(Vier)", PLAIN),
    "a mark": ("a.txt", codecs.BOM_UTF8 + b"Eins.\nZwei.", ["Eins.", "Zwei."]),
    "a mark and JSON": ("a.jsonl", codecs.BOM_UTF8 + b'{"text": "Eins."}', ["Eins."]),
    "other separators": ("a.txt", f"{SEPARATED}\n", [SEPARATED]),
    "such in JSON": ("a.jsonl", f'{{"text": "{SEPARATED}"}}\n', [SEPARATED]),
}
JSON_LINES = '{"text": "Ada wrote."}\n\n{"tokens": ["Bo", "read", "."], "id": 3}\n'
for _name in ("a.jsonl", "a.JSONL", "a.ndjson", "a.json", "a.jsonl.txt", "a.txt", "a"):
    TEXTS[f"JSON in {_name}"] = _name, JSON_LINES, ["Ada wrote.", "Bo read ."]


@pytest.mark.parametrize("kind", TEXTS)
def test_texts_are_read(tmp_path, kind):
    name, content, texts = TEXTS[kind]
    assert read_texts(write(tmp_path, name, content)) == texts


NO_TEXT = r"line 1: expected .*, one a line"
TWO_KINDS = r"a\.txt, line 3: JSON after .* plain text"
TREES = r"has trees in brackets, .* `train rnng`"
REFUSED = [
    ("a.txt", 'Eins.\n\n{"text": "b"}\n', TWO_KINDS),
    ("a.txt", '[{"text": "b"}]', NO_TEXT),
    ("a", '{\n "text": "b"\n}', NO_TEXT),
    ("a.txt", "(S (NP (NN plum)) (VP (VBZ is)))", TREES),
    ("b.txt", "( (S\n    (NP (NN plum))))", TREES),
    ("c", "\n(ROOT\n  (S (NN plum)))", TREES),
    ("d.MRG", "(s (n plum) (v is))", TREES),
    ("a.txt", "#begin document (a); part 000\n0 Ada (1)\n", "coref.* `train entitynlm"),
    ("a.jsonl", r'{"text": "Ada \ud83d"}', r"line 1: .*'Ada \\ud83d' ends in half"),
    ("a.jsonl", "\n \n", r"a\.jsonl has no text"),
]


@pytest.mark.parametrize(("name", "content", "message"), REFUSED)
def test_what_is_no_text_says_what_it_is(tmp_path, name, content, message):
    with pytest.raises(ValueError, match=message):
        read_texts(write(tmp_path, name, content))


BAD_LINES = [
    *('{"text": "cut o', "{}", '"a string"', '{"text": 3}', '[{"text": "a"}]'),
    *('{"tokens": "a string"}', '{"tokens": [["a"], ["b"]]}', '{"tokens": [1, 2]}'),
    *('{"text": "a", "text": "b"}', '{"text": ' * 2_000, '{"text": "a", "n": NaN}'),
    '{"text": ' + "9" * 10_000 + "}",
    '{"text": "a fox", "tokens": ["a", "wolf"]}',
]


@pytest.mark.parametrize("line", BAD_LINES, ids=lambda line: line[:30])
def test_a_bad_line_is_named(tmp_path, line):
    path = write(tmp_path, "a.jsonl", f'{{"text": "good"}}\n\n{line}\n')
    with pytest.raises(ValueError, match=r"a\.jsonl, line 3: expected \{\"text\"") as e:
        read_texts(path)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize("name", ["a.csv", "a.TSV"])
def test_a_table_is_no_file_of_texts(tmp_path, name):
    with pytest.raises(ValueError, match=f"{name} is a table, whose header would be"):
        read_texts(write(tmp_path, name, "text,id\nthe fox,1\n"))


# -- lines and encodings ---------------------------------------------------------------


def test_lines_keep_their_numbers_and_lose_a_mark(tmp_path):
    path = write(tmp_path, "a.txt", codecs.BOM_UTF8 + b"\none\r\n \n two\n")
    assert list(numbered_lines(path)) == [(2, "one"), (4, " two")]
    assert read_text(path) == "\none\n \n two\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"one\n" + codecs.BOM_UTF8 + b"two\n", "begins with a byte-order mark"),
        (codecs.BOM_UTF8 * 2 + b"two\n", "begins with a byte-order mark"),
        ("drüben\n".encode("utf-16"), r"a\.txt is not UTF-8 \(.*UTF-16"),
        (
            gzip.compress(b"drueben\n", mtime=0),
            r"a\.txt is not UTF-8 \(compressed by gzip",
        ),
        ("drüben\n".encode("latin-1"), r"a\.txt is not UTF-8 \(.*can't decode"),
        ("one\n".encode("utf-16-le"), r"a\.txt, line 1: has a NUL character"),
    ],
)
def test_another_encoding_is_named(tmp_path, content, message):
    path = write(tmp_path, "a.txt", content)
    with pytest.raises(ValueError, match=message):
        list(numbered_lines(path))
    if "UTF-8" in message:
        with pytest.raises(ValueError, match=r"a\.txt is not UTF-8"):
            read_text(path)
