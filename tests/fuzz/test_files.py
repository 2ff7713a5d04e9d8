"""One text a line, whatever the form of the file, or a refusal that names the line."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lm_latent_eval.text.corpora import read_texts
from tests.fuzz.law import Refused, outcome, same, share
from tests.fuzz.strategies import TEXTS, VALUES

NAMES = ("a.txt", "a.jsonl", "a.JSONL", "a.ndjson", "a.json", "a.jsonl.txt", "a")


def in_lines(texts: list[str]) -> bool:
    """Whether texts can stand one a line in UTF-8; a file with a NUL is no text."""
    return all(
        text.strip()
        and not {"\n", "\r", "\0"} & {*text}
        and text.encode("utf-8", "ignore").decode() == text
        for text in texts
    )


def _json_lines(texts: list[str], *, ascii_only: bool) -> str:
    return "".join(
        json.dumps({"text": text}, ensure_ascii=ascii_only) + "\n" for text in texts
    )


def _tokens(texts: list[str]) -> str:
    return "".join(
        json.dumps({"id": n, "tokens": text.split(" ")}) + "\n"
        for n, text in enumerate(texts)
    )


FORMS = {
    "lines": lambda texts: "".join(f"{text}\n" for text in texts),
    "lines, the last without its end": "\n".join,
    "lines of another system": lambda texts: "".join(f"{text}\r\n" for text in texts),
    "JSON": lambda texts: _json_lines(texts, ascii_only=False),
    "JSON in ASCII": lambda texts: _json_lines(texts, ascii_only=True),
    "tokens": _tokens,
}


OTHERWISE_MEANT = ("{", "[", "(", "#", "\ufeff")
"""What begins JSON, a tree, a CoNLL file, a mark."""


@pytest.mark.parametrize("mark", [False, True])
@pytest.mark.parametrize("form", FORMS)
@share(0.3)
@given(
    texts=st.lists(TEXTS, min_size=1, max_size=3).filter(in_lines),
    name=st.sampled_from(NAMES),
)
def test_the_form_of_a_file_moves_no_text(tmp_path_factory, form, mark, texts, name):
    if "@@" in str(texts) and form == "tokens":
        return  # marks of a corpus have a meaning there
    plain = form.startswith("lines")
    if not plain and name == "a.txt":
        return  # JSON that is called plain text is plain text
    if plain and any(text.lstrip().startswith(OTHERWISE_MEANT) for text in texts):
        return
    path = tmp_path_factory.getbasetemp() / name
    path.write_bytes((b"\xef\xbb\xbf" if mark else b"") + FORMS[form](texts).encode())
    found = outcome(lambda: read_texts(path))
    # Only a name that says nothing, or something else, is a reason to refuse these.
    if isinstance(found, Refused):
        fits = ("a.txt", "a") if plain else ("a.jsonl", "a.JSONL")
        assert name not in fits or mark, found
    same(f"{form} in {name}", found, texts)


JSON = st.recursive(
    VALUES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(("text", "tokens", "id")), inner, max_size=3),
    ),
    max_leaves=5,
)


@share(2)
@given(content=JSON, name=st.sampled_from(NAMES))
def test_any_json_is_texts_or_refused(tmp_path_factory, content, name):
    path = tmp_path_factory.getbasetemp() / name
    path.write_text(json.dumps(content) + "\n", encoding="utf-8")
    found = outcome(lambda: read_texts(path))
    if isinstance(found, Refused) or not name.lower().endswith(("jsonl", "json")):
        return
    assert isinstance(content, dict), "JSON without a text was scored as prose"
    texts, tokens = content.get("text"), content.get("tokens")
    if texts is None:
        assert isinstance(tokens, list), "a string has letters, not tokens"
    assert all(isinstance(text, str) for text in found)


@share(2)
@given(content=st.binary(max_size=80), name=st.sampled_from(NAMES))
def test_any_bytes_are_texts_or_refused(tmp_path_factory, content, name):
    path = tmp_path_factory.getbasetemp() / name
    path.write_bytes(content)
    found = outcome(lambda: read_texts(path))
    assert isinstance(found, Refused) or all(isinstance(t, str) for t in found)


HOSTILE = {
    "nested": b"[" * 3_000,
    "nested texts": b'{"text": ' * 2_000,
    "a long number": b'{"text": ' + b"9" * 10_000 + b"}",
    "twice": b'{"text": "the fox", "text": "the"}',
    "both": b'{"text": "the fox", "tokens": ["the"]}',
    "letters": b'{"tokens": "the fox"}',
    "tokens of tokens": b'{"tokens": [["the"], ["fox"]]}',
    "NaN": b'{"text": NaN}',
    "half a pair": b'{"text": "\\ud800"}',
    "UTF-16": "the fox".encode("utf-16"),
    "Latin-1": "caf\xe9".encode("latin-1"),
    "NULs": b"\0" * 400,
    "a gzip": b"\x1f\x8b\x08\0\0\0\0\0",
    "blank": b" \n\n\t",
    "empty": b"",
    "one array": b'[{"text": "the fox"}]',
    "a mark and JSON": b'\xef\xbb\xbf{"text": "the fox"}',
    "a mark within": b"the fox\n\xef\xbb\xbfthe\n",
}
REFUSED = (
    *("nested", "nested texts", "a long number", "twice", "letters", "NaN", "blank"),
    *("tokens of tokens", "UTF-16", "Latin-1", "empty", "one array"),
)
"""What is no text in any file of JSON lines."""


@pytest.mark.parametrize("which", HOSTILE)
def test_hostile_files(tmp_path, which):
    for name in ("a.txt", "a.jsonl"):
        path = tmp_path / name
        path.write_bytes(HOSTILE[which])
        found = outcome(lambda path=path: read_texts(path))
        if name == "a.jsonl" and which in REFUSED:
            assert isinstance(found, Refused), found
