"""Results that come one by one, in JSON lines that a crash does not spoil."""

from __future__ import annotations

import json
import math
import os

import pytest

from lm_latent_eval.ledger import folder
from lm_latent_eval.ledger.journal import Journal, appending, remove, whole_lines
from lm_latent_eval.ledger.one_writer import BusyError
from lm_latent_eval.ledger.settings import FormatError
from tests.journals import sealed

# -- records -------------------------------------------------------------------------


def test_a_record_is_there_at_once(tmp_path):
    path = tmp_path / "file"
    with appending(path) as append:
        append(b"one\n")
        assert path.read_bytes() == b"one\n"
        append(b"two\n")
    with appending(path) as append:
        append(b"three\n")
    assert path.read_bytes() == b"one\ntwo\nthree\n"


@pytest.mark.parametrize(
    ("content", "whole", "torn"),
    [
        (b"", {}, False),
        (b"one\ntwo\n", {1: b"one", 2: b"two"}, False),
        (b"one\ntw", {1: b"one"}, True),
        (b"one\n\0\0\0\0", {1: b"one"}, True),
        (b"one\n\0\0\0\n", {1: b"one"}, True),
        (b"one\nt\0\0\0ee\nfour\n", {1: b"one", 3: b"four"}, True),
    ],
)
def test_lines_that_a_crash_has_spoiled(tmp_path, content, whole, torn):
    path = tmp_path / "file"
    path.write_bytes(content)
    assert whole_lines(path) == (whole, torn)


# -- journals ------------------------------------------------------------------------

ASKED = {"seed": 0, "sizes": (1, 2)}


def journal(folder, version=1) -> Journal:
    return Journal(folder / "found.jsonl", "list of finds", version)


def fill(folder, *numbers) -> None:
    with journal(folder).going_on(ASKED, None) as (_, append):
        for n in numbers:
            append({"n": n})


def test_a_journal_is_gone_on_with(tmp_path):
    fill(tmp_path, 1.5, math.inf)
    with journal(tmp_path).path.open("ab") as file:
        file.write(b'{"n": 3')
    with journal(tmp_path).going_on(ASKED, None) as (rows, append):
        assert rows == {2: {"n": 1.5}, 3: {"n": "inf"}}, "JSON has no infinity"
        append({"n": 4})
    settings, rows = journal(tmp_path).read()
    assert settings == {"format": 1, "seed": 0, "sizes": [1, 2]}
    assert [row["n"] for row in rows.values()] == [1.5, "inf", 4]
    for line in journal(tmp_path).path.read_text().splitlines():
        json.loads(line, parse_constant=pytest.fail)


def test_lines_have_the_places_that_they_have_in_the_file(tmp_path):
    fill(tmp_path, 1, 2, 3)
    path = journal(tmp_path).path
    path.write_bytes(path.read_bytes().replace(b'"n": 2', b'"n\0\0\0\0'))
    assert [*journal(tmp_path).read()[1]] == [2, 4]
    with journal(tmp_path).going_on(ASKED, None) as (rows, _):
        assert rows == {2: {"n": 1}, 3: {"n": 3}}
    assert path.read_bytes().splitlines()[2].startswith(b'{"n": 3, "digest": ')


@pytest.mark.parametrize("left", ["", '{"format": 1, "se', '{"format"\0\0\0'])
def test_a_journal_whose_first_line_was_cut_short_begins_anew(tmp_path, left):
    journal(tmp_path).path.write_text(left)
    fill(tmp_path, 7)
    assert journal(tmp_path).read()[1] == {2: {"n": 7}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("dear diary", "is not a list of finds"),
        ("dear diary\n", "is not a list of finds"),
        ('{"my": "results"}\n', "is not a list of finds .it names no format"),
        ("[" * 100_000 + "\n", "is not a list of finds .it is nested too deeply"),
        ('{"format": 1, "seed": 1}\n', "of another list of finds .seed is 1 there and"),
        ('{"format": 1, "seed": 0, "sizes": [1, 2]}\n[]\n', "line 2 is not as it was"),
    ],
)
def test_what_is_of_another_run_or_none_stays_as_it_is(tmp_path, content, message):
    path = journal(tmp_path).path
    path.write_text(content)
    with pytest.raises(ValueError, match=message):
        fill(tmp_path, 1)
    assert path.read_text() == content


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda row: row | {"n": 4}, "its digest is of other values of 'n'"),
        (lambda row: row | {"n": 3.0}, "its digest is of other values of 'n'"),
        (lambda row: row | {"k": 4}, "more or fewer fields than its digest"),
        (lambda row: row | {"digest": 3}, "more or fewer fields than its digest"),
        (
            lambda row: row | {"n": 4, "m": 3},
            "its digest is of another row, or of other settings",
        ),
    ],
)
def test_a_row_that_was_edited_says_where(tmp_path, edit, said):
    with journal(tmp_path).going_on(ASKED, None) as (_, append):
        append({"n": 3, "m": 2})
    path = journal(tmp_path).path
    head, line = path.read_text().splitlines()
    edited = edit(json.loads(line))
    path.write_text(f"{head}\n{json.dumps(edited)}\n")
    for read in (journal(tmp_path).read, lambda: fill(tmp_path, 1)):
        with pytest.raises(ValueError, match=rf"line 2 is not .*{said}.*: remove"):
            read()
    path.write_text(f"{head}\n{sealed(head, json.loads(line) | {'n': 4})}\n")
    assert journal(tmp_path).read()[1] == {2: {"n": 4, "m": 2}}


def test_rows_without_digests_are_of_another_version(tmp_path):
    fill(tmp_path, 3)
    path = journal(tmp_path).path
    path.write_text(path.read_text().partition("\n")[0] + '\n{"n": 3}\n')
    with pytest.raises(FormatError, match=r"line 2: it has no digest.* finish it with"):
        fill(tmp_path, 4)


def test_a_row_belongs_to_the_settings_above_it(tmp_path):
    fill(tmp_path, 3)
    path = journal(tmp_path).path
    path.write_text(path.read_text().replace('"seed": 0', '"seed": 1'))
    with pytest.raises(ValueError, match=r"line 2 .* of other settings"):
        journal(tmp_path).read()


def test_a_journal_of_another_version_says_which(tmp_path):
    with journal(tmp_path).going_on({"lm_latent_eval": "0.2.0"}, None):
        pass
    with pytest.raises(FormatError, match=r"of lm-latent-eval 0\.2\.0, .*finish it wi"):
        journal(tmp_path, 2).read()


def test_what_a_file_says_is_shown_in_one_line(tmp_path):
    path = journal(tmp_path).path
    path.write_text(
        json.dumps({"format": 1, "seed": "a\nb" * 99, "sizes": [1, 2]}) + "\n"
    )
    with pytest.raises(ValueError, match="seed is 'a") as caught:
        fill(tmp_path, 1)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


def test_a_journal_of_another_version_is_refused(tmp_path):
    fill(tmp_path, 1)
    with pytest.raises(FormatError, match=r"in format 1, .* this one reads format 2"):
        journal(tmp_path, 2).read()
    with pytest.raises(FormatError), journal(tmp_path, 2).going_on(ASKED, None):
        pytest.fail("two formats")


def test_a_journal_is_removed_when_nobody_writes_it(tmp_path):
    with journal(tmp_path).going_on(ASKED, None) as (_, append):
        append({"n": 1})
        with pytest.raises(BusyError, match="another run is writing into"):
            fill(tmp_path, 2)
        remove([journal(tmp_path).path])
        append({"n": 3})
    assert [row["n"] for row in journal(tmp_path).read()[1].values()] == [1, 3]
    remove([journal(tmp_path).path])
    [lock] = tmp_path.iterdir()
    assert (lock.suffix, lock.read_bytes()) == (".lock", b""), "which stays, empty"


def test_who_waits_for_a_journal_that_is_removed_has_it_alone(tmp_path):
    """Opened before it is removed and locked after, a lock is that of the next run."""
    path = journal(tmp_path).path
    fill(tmp_path, 1)
    [lock] = tmp_path.glob(".*.lock")
    with lock.open() as opened:
        remove([path])
        with journal(tmp_path).going_on(ASKED, None):
            assert os.path.samestat(os.fstat(opened.fileno()), lock.stat())


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_settings_may_be_infinite(tmp_path, value):
    asked = {"stderr": {"target": value}, "sizes": (1, 2)}
    for number in range(2):
        with journal(tmp_path).going_on(asked, None) as (rows, append):
            assert len(rows) == number
            append({"n": number})
        with folder.going_on(tmp_path, asked, "study", "all"):
            pass
    message = "stderr.target is .* there and 1.0 here"
    with pytest.raises(ValueError, match=message):  # noqa: SIM117
        with journal(tmp_path).going_on({**asked, "stderr": {"target": 1.0}}, None):
            pytest.fail("two runs")
