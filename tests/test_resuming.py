"""What a stopped run leaves: one writes at a time, and only the same goes on."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys

import pytest
import torch
from filelock import FileLock

from lm_latent_eval.resuming import folder
from lm_latent_eval.resuming.journal import Journal, appending, remove, whole_lines
from lm_latent_eval.resuming.one_writer import LOCK_FILE, BusyError, only_writer
from lm_latent_eval.resuming.settings import FormatError
from lm_latent_eval.resuming.state import StateFile
from tests.journals import sealed

# -- one writer ----------------------------------------------------------------------


def test_two_do_not_write_at_once(tmp_path):
    message = f"another run is writing into {tmp_path}: wait"
    with only_writer(tmp_path, "all"):
        with pytest.raises(ValueError, match=message), only_writer(tmp_path, "all"):
            pytest.fail("two writers")
        other = (
            "import sys\nfrom pathlib import Path\n"
            "from lm_latent_eval.resuming.one_writer import only_writer\n"
            "with only_writer(Path(sys.argv[1]), 'all'): pass"
        )
        command = [sys.executable, "-c", other, tmp_path]
        done = subprocess.run(command, capture_output=True, text=True)
        assert message in done.stderr
    with only_writer(tmp_path, "all"):
        assert (tmp_path / LOCK_FILE).exists()


def test_a_file_system_without_locks_is_said(tmp_path, monkeypatch, caplog):
    def locks_nothing(_):
        raise NotImplementedError

    monkeypatch.setattr(FileLock, "acquire", locks_nothing)
    with only_writer(tmp_path, "all"):
        (tmp_path / "file").touch()
    assert f"{tmp_path} is on a file system that locks nothing" in caplog.text


def test_a_folder_goes_on_with_the_same_settings(tmp_path):
    asked = {"seed": 0, "sizes": (1, 2)}
    for _ in range(2):
        with folder.going_on(tmp_path, asked, "study", "all"):
            assert folder.read(tmp_path, "study") == {"seed": 0, "sizes": [1, 2]}
    message = r"is of another study \(seed is 0 there and 1 here\)"
    with pytest.raises(ValueError, match=message):  # noqa: SIM117
        with folder.going_on(tmp_path, {**asked, "seed": 1}, "study", "all"):
            pytest.fail("two studies")


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


# -- states --------------------------------------------------------------------------


def test_a_state_replaces_the_one_before(tmp_path):
    state = StateFile(tmp_path / "deep" / "state.pt")
    assert state.read() is None
    for n in range(2):
        state.write({"seed": 0}, {"epoch": n, "weights": torch.full((2,), float(n))})
    settings, found = state.read()
    assert (settings, found["epoch"], found["weights"].tolist()) == (
        {"seed": 0},
        1,
        [1.0, 1.0],
    )
    aside = state.set_aside()
    assert state.read() is None
    assert [*state.path.parent.iterdir()] == [aside]
