"""What is no text file says what it is instead."""

from __future__ import annotations

import codecs

import pytest

from lm_latent_eval.text.files import numbered_lines, read_text


def lines(tmp_path, content: bytes):
    path = tmp_path / "a.txt"
    path.write_bytes(content)
    return list(numbered_lines(path))


def test_lines_keep_their_numbers(tmp_path):
    assert lines(tmp_path, b"\none\r\n \n two\n") == [(2, "one"), (4, " two")]


def test_a_mark_before_the_first_line_is_no_part_of_it(tmp_path):
    assert lines(tmp_path, codecs.BOM_UTF8 + b"one\n") == [(1, "one")]
    assert read_text(tmp_path / "a.txt") == "one\n"


@pytest.mark.parametrize("before", [b"one\n", codecs.BOM_UTF8])
def test_a_mark_that_is_left_in_is_named(tmp_path, before):
    with pytest.raises(ValueError, match="begins with a byte-order mark"):
        lines(tmp_path, before + codecs.BOM_UTF8 + b"two\n")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "latin-1"])
def test_another_encoding_is_named(tmp_path, encoding):
    mark = {"latin-1": "can't decode"}.get(encoding, encoding.upper())
    with pytest.raises(ValueError, match=rf"a\.txt is not UTF-8 \(.*{mark}"):
        lines(tmp_path, "drüben\n".encode(encoding))
    with pytest.raises(ValueError, match=r"a\.txt is not UTF-8"):
        read_text(tmp_path / "a.txt")


def test_what_has_no_mark_is_no_text_either(tmp_path):
    with pytest.raises(ValueError, match=r"a\.txt, line 1: has a NUL character"):
        lines(tmp_path, "one\n".encode("utf-16-le"))
