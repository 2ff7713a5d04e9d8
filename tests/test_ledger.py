"""What a stopped run leaves: one writes at a time, and only the same goes on."""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import sqlite3
import subprocess
import sys

import numpy as np
import pytest
from filelock import FileLock
from hypothesis import given, settings
from hypothesis import strategies as st

from lm_latent_eval.files import NoRoomError
from lm_latent_eval.ledger import database, files
from lm_latent_eval.ledger.database import Ledger, remove
from lm_latent_eval.ledger.files import BusyError, LinesFile, only_writer
from lm_latent_eval.ledger.settings import FormatError, plain
from tests.journals import sealed
from tests.limits import little, no_file_above, within

KILLS = int(os.environ.get("CRASH_KILLS", "2"))
"""Kills at random moments; ``make crash`` asks for more."""

# -- ledgers -------------------------------------------------------------------------

ASKED = {"seed": 0, "sizes": (1, 2)}


def ledger(folder, version=1) -> Ledger:
    return Ledger(folder / "found.sqlite", "list of finds", version)


def fill(folder, *numbers) -> None:
    with ledger(folder).going_on(ASKED, None) as rows:
        for n in numbers:
            rows.add("part", (n,), {"n": n})


def numbers_of(folder) -> list[int]:
    return [found.row["n"] for found in ledger(folder).read()[1]]


def changed(folder, *statements) -> None:
    """Change a file with a program of SQLite's."""
    with contextlib.closing(sqlite3.connect(ledger(folder).path)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=15)
@given(
    st.lists(
        st.tuples(
            st.text(st.characters(), max_size=9),
            st.lists(st.integers() | st.text(max_size=9), max_size=3).map(tuple),
            st.dictionaries(st.text(), VALUES, max_size=3),
            st.lists(st.floats(), max_size=9).map(lambda some: np.array(some, "<f8")),
        ),
        max_size=5,
    )
)
def test_what_is_kept_comes_back_as_it_was(tmp_path_factory, rows):
    """Strings of any characters, floats to the bit, and of two of a name the last."""
    folder = tmp_path_factory.mktemp("any")
    last = {(part, key): (row, numbers) for part, key, row, numbers in rows}
    for some in (rows[: len(rows) // 2], rows[len(rows) // 2 :]):
        with ledger(folder).going_on(ASKED, None) as kept:
            for part, key, row, numbers in some:
                kept.add(part, key, row, numbers.tobytes())
                assert key in kept.keys(part)
                assert kept.get(part, key).numbers == numbers.tobytes()
    said, found = ledger(folder).read()
    assert said == {"format": 1, "seed": 0, "sizes": [1, 2]}
    assert {(each.part, each.key) for each in found} == last.keys()
    for each in found:
        row, numbers = last[each.part, each.key]
        assert repr(each.row) == repr(plain(row)), "JSON has no infinity"
        assert each.numbers == numbers.tobytes()


@pytest.mark.parametrize(
    ("mounts", "local"),
    [
        ("/dev/sda / ext4 rw 0 0\nhost:/x /home nfs4 rw 0 0", True),
        ("/dev/sda / ext4 rw 0 0\nhost:/x {here} nfs4 rw 0 0", False),
        ("host:/x / nfs rw 0 0\ntmpfs {here}-2 tmpfs rw 0 0", False),
        ("", False),
    ],
)
def test_one_file_is_left_and_a_person_can_open_it(
    tmp_path, monkeypatch, mounts, local
):
    """Elsewhere than on a disk of this machine SQLite has no shared memory."""
    here, said = tmp_path / "with space", tmp_path / "mounts"
    here.mkdir()
    written = str(here.resolve()).replace(" ", "\\040")
    said.write_text(mounts.format(here=written))
    monkeypatch.setattr(database, "_MOUNTS", said)
    with ledger(here).going_on(ASKED, None) as rows:
        rows.add("part", (1,), {"n": 1})
        assert (here / "found.sqlite-shm").exists() is local
        assert numbers_of(here) == [1], "while it is written"
    names = {path.name for path in here.iterdir()}
    assert names == {"found.sqlite", ".found.sqlite.lock"}
    with contextlib.closing(sqlite3.connect(ledger(here).path)) as connection:
        [row] = connection.execute("SELECT part, key, row FROM found").fetchall()
        assert row == ('"part"', "[1]", '{"n": 1}')


def test_a_file_system_without_locks_is_said_and_keeps_rows(
    tmp_path, monkeypatch, caplog
):
    """SQLite's own locks fail there, as those of ``only_writer`` do."""

    def locks_nothing(_):
        raise NotImplementedError

    monkeypatch.setattr(FileLock, "acquire", locks_nothing)
    with only_writer(tmp_path, "all"):
        pass
    assert f"{tmp_path} is on a file system that locks nothing" in caplog.text
    connect, asked = sqlite3.connect, []

    class NoLocks(sqlite3.Connection):
        def execute(self, *given):
            err = sqlite3.OperationalError("disk I/O error")
            err.sqlite_errorname = "SQLITE_IOERR_RDLOCK"
            raise err

    def connecting(where, **given):
        asked.append(where)
        locks = "nolock" not in where
        return connect(where, **given, factory=NoLocks if locks else sqlite3.Connection)

    monkeypatch.setattr(sqlite3, "connect", connecting)
    monkeypatch.setattr(database, "_is_local", lambda _: False)
    fill(tmp_path, 1, 2)
    assert numbers_of(tmp_path) == [1, 2]
    assert sum("nolock" in where for where in asked) == len(asked) / 2


KILLING = """
import os, random, signal, sys, time
from pathlib import Path
from lm_latent_eval.ledger import database

folder, local, kills = Path(sys.argv[1]), sys.argv[2] == "True", int(sys.argv[3])
database._is_local = lambda _: local
ledger = database.Ledger(folder / "found.sqlite", "list of finds", 1)
rng, rows = random.Random(0), 0
for kill in range(kills):
    told, tell = os.pipe()
    child = os.fork()
    if not child:
        with ledger.going_on({"seed": 0, "sizes": (1, 2)}, None) as kept:
            done = len(kept.keys("part"))
            for n in range(done, done + 400):
                kept.add("part", (n,), {"n": n}, b"%d" % n * 1000)
                os.write(tell, b"x")
        os._exit(0)
    os.close(tell)
    if kill % 2:  # while it adds rows, and else while it begins as well
        rows += len(os.read(told, 1))
    time.sleep(rng.random() * 0.03)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    rows += len(os.read(told, 1 << 16))
    os.close(told)
    if ledger.path.exists() and ledger.path.stat().st_size:
        found = ledger.read()[1]
        assert [each.row["n"] for each in found] == list(range(len(found)))
        assert rows <= len(found) <= rows + 1, (kill, rows, len(found))
        assert all(e.numbers == b"%d" % n * 1000 for n, e in enumerate(found))
        rows = len(found)
print(rows)
"""


@pytest.mark.skipif(os.name != "posix", reason="kills as POSIX does")
@pytest.mark.parametrize(
    "local", [True, pytest.param(False, marks=pytest.mark.nightly)]
)
def test_a_kill_loses_the_row_in_hand_at_most(tmp_path, local):
    kills = str(KILLS * 10)
    command = [sys.executable, "-c", KILLING, tmp_path, str(local), kills]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= KILLS * 5, "premise: rows were kept between kills"


@pytest.mark.parametrize("value", [0.5, math.inf, -math.inf, math.nan])
def test_the_same_settings_go_on_and_others_are_named(tmp_path, value):
    """Of a ledger and of a folder; settings may be infinite."""
    asked = {"stderr": {"target": value}, "sizes": (1, 2)}
    for number in range(2):
        with ledger(tmp_path).going_on(asked, None) as rows:
            assert len([*rows]) == number
            rows.add("part", (number,), {})
            with pytest.raises(BusyError, match="another run is writing into"):
                fill(tmp_path, 2)
        with files.going_on(tmp_path, asked, "study", "all"):
            assert files.read(tmp_path, "study")["sizes"] == [1, 2]
    other = {**asked, "stderr": {"target": 1.0}}
    message = r"is of another .* \(stderr.target is .* there and 1.0 here\)"
    for going_on in (
        ledger(tmp_path).going_on(other, None),
        files.going_on(tmp_path, other, "study", "all"),
    ):
        with pytest.raises(ValueError, match=message), going_on:
            pytest.fail("two runs")
    assert len(ledger(tmp_path).read()[1]) == 2
    remove([ledger(tmp_path).path])
    assert not ledger(tmp_path).path.exists()


def test_a_ledger_of_another_version_is_finished_with_that(tmp_path):
    old = {**ASKED, "lm_latent_eval": "0.2.0"}
    with ledger(tmp_path).going_on(old, None):
        pass
    new = {**ASKED, "lm_latent_eval": "0.3.0"}
    with pytest.raises(FormatError, match=r"of lm-latent-eval 0\.2\.0, .*finish it wi"):
        ledger(tmp_path, 2).read()
    for version, says in ((1, "and this is 0.3.0"), (2, "reads format 2")):
        message = rf"lm-latent-eval 0\.2\.0, .*{says}.*finish it with"
        going_on = ledger(tmp_path, version).going_on(new, None)
        with pytest.raises(FormatError, match=message), going_on:
            pytest.fail("two versions")


@pytest.mark.parametrize("local", [True, False])
@pytest.mark.parametrize("size", [0, 20_000, 100_000])
def test_a_full_disk_is_one_line_and_loses_no_row(tmp_path, monkeypatch, size, local):
    monkeypatch.setattr(database, "_is_local", lambda _: local)
    path, done = ledger(tmp_path).path, 0
    going_on = ledger(tmp_path).going_on(ASKED, None)
    with pytest.raises(NoRoomError) as caught, no_file_above(size), going_on as kept:
        for done in range(400):
            kept.add("part", (done,), {"n": done}, bytes(1000))
    said = str(caught.value)
    assert said.startswith(f"{path} cannot be written (") and "make room" in said
    assert "\n" not in said
    assert size < 50_000 or done > 1, "premise"
    fill(tmp_path, 1000)
    found = numbers_of(tmp_path)
    assert found[-1] == 1000
    assert found[:-1] in ([*range(done)], [*range(done + 1)])


EDITS = {
    "UPDATE found SET row = '{\"n\": 4}' WHERE place = 2": "other values of 'n'",
    "UPDATE found SET numbers = x'00' WHERE place = 2": r"values of '\(numbers\)'",
    "UPDATE found SET key = '[9]' WHERE place = 2": r"values of '\(key\)'",
    "UPDATE found SET row = '[]' WHERE place = 2": "no record",
    "UPDATE found SET row = x'ff' WHERE place = 2": "values of other types",
    "UPDATE found SET key = '[1.5]' WHERE place = 2": "its name is",
    "UPDATE found SET digest = '' WHERE place = 2": "fewer fields than its digest",
    (
        "UPDATE found SET digest = (SELECT digest FROM found WHERE place = 1), "
        "key = '[9]' WHERE place = 2"
    ): "its digest is of other",
}


@pytest.mark.parametrize("edit", EDITS)
def test_a_row_that_was_edited_says_where(tmp_path, edit):
    fill(tmp_path, 1, 2, 3)
    changed(tmp_path, edit)

    def rows() -> None:
        with ledger(tmp_path).going_on(ASKED, None) as kept:
            _ = [*kept]

    for read in (ledger(tmp_path).read, rows):
        with pytest.raises(ValueError, match=rf"row 2 is not .*{EDITS[edit]}") as err:
            read()
        assert "\n" not in str(err.value)
    assert "DELETE FROM found WHERE place = 2" in str(err.value)
    changed(tmp_path, "DELETE FROM found WHERE place = 2")
    assert numbers_of(tmp_path) == [1, 3]
    changed(tmp_path, "UPDATE run SET settings = replace(settings, '0', '1')")
    with pytest.raises(ValueError, match=r"row 1 .* of other settings"):
        ledger(tmp_path).read()


# -- ledgers that somebody made or damaged -------------------------------------------

OTHERS = {
    "a trigger": (
        "CREATE TRIGGER t AFTER INSERT ON found BEGIN DELETE FROM found; END",
        "other tables",
    ),
    "a column": ("ALTER TABLE found ADD COLUMN more TEXT", "other tables"),
    "no table": ("DROP TABLE found", "other tables"),
    "no settings": ("DELETE FROM run", "says no settings"),
    "settings that are none": ("UPDATE run SET settings = '[]'", "says no settings"),
    "no database": ('{"my": "results"}\n' * 99, r"\(file is not a database\)"),
    "deep settings": (
        f"UPDATE run SET settings = '{'[' * 10_000}'",
        "nested too deeply",
    ),
}


def refused(folder, says) -> None:
    """See that nobody reads a file or goes on with it, nor changes it."""
    path = ledger(folder).path
    before = path.read_bytes()
    for use in (ledger(folder).read, lambda: fill(folder, 5)):
        with pytest.raises(ValueError, match=says) as caught:
            use()
        assert "\n" not in str(caught.value) and str(path) in str(caught.value)
    assert path.read_bytes() == before


@pytest.mark.parametrize("kind", OTHERS)
def test_other_tables_are_refused_before_they_do_anything(tmp_path, kind):
    fill(tmp_path, 1)
    statement, says = OTHERS[kind]
    if kind == "no database":
        ledger(tmp_path).path.write_text(statement)
    else:
        changed(tmp_path, statement)
    refused(tmp_path, says)


def test_what_a_removed_ledger_has_left_is_not_taken_for_the_new_one(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(database, "_is_local", lambda _: True)
    with ledger(tmp_path).going_on(ASKED, None) as rows:
        rows.add("part", (1,), {"n": 1})
        path = ledger(tmp_path).path
        wal = path.with_name(f"{path.name}-wal").read_bytes()
    assert wal, "premise"
    path.unlink()
    path.with_name(f"{path.name}-wal").write_bytes(wal)
    fill(tmp_path, 2)
    assert numbers_of(tmp_path) == [2]


@pytest.mark.parametrize("end", ["", *database.SIDECARS])
def test_links_pipes_and_folders_are_refused(tmp_path, end):
    fill(tmp_path, 1)
    path = ledger(tmp_path).path
    odd = path.with_name(f"{path.name}{end}")
    other = path.replace(tmp_path / "other") if not end else path
    for make, says in (
        (lambda: odd.symlink_to(other), "is a link"),
        (lambda: odd.symlink_to("/dev/zero"), "is a link"),
        (lambda: os.mkfifo(odd), "is no file that has an end"),
    ):
        make()
        for use in (ledger(tmp_path).read, lambda: fill(tmp_path, 5)):
            with pytest.raises(ValueError, match=says), within(10):
                use()
        odd.unlink()
    odd.mkdir()
    with pytest.raises(ValueError, match="is no file that has an end"):
        ledger(tmp_path).read()


def test_any_flipped_bit_and_any_cut_is_refused_or_moves_nothing(tmp_path):
    """A row is never another one, and none is missing without a word."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for made in (whole, cut):
        made.mkdir()
    with ledger(whole).going_on(ASKED, None) as rows:
        for n in range(40):
            rows.add("part", (n, "a"), {"n": n, "text": "ab" * n}, bytes([n]) * 300)
    content = ledger(whole).path.read_bytes()
    rng, seen = random.Random(0), {"refused": 0, "same": 0}
    expected = ledger(whole).read()
    path = ledger(cut).path
    for trial in range(300):
        damaged = bytearray(content)
        if trial % 4:
            # Half of them where a page says what it holds.
            at = rng.randrange(len(content))
            at = at // 4096 * 4096 + at % 64 if trial % 2 else at
            damaged[at] ^= 1 << rng.randrange(8)
        else:
            del damaged[1 + rng.randrange(len(content) - 1) :]
        path.write_bytes(damaged)
        try:
            with little(seconds=10):
                found = ledger(cut).read()
        except ValueError as err:
            assert "\n" not in str(err)
            seen["refused"] += 1
        else:
            assert found == expected, trial
            seen["same"] += 1
        for end in database.SIDECARS:
            path.with_name(f"{path.name}{end}").unlink(missing_ok=True)
    assert min(seen.values()) > 10, seen


@pytest.mark.parametrize(
    ("at", "claim"),
    [
        (28, b"\xff\xff\xff\xfe"),  # pages of the file
        (36, b"\x7f\xff\xff\xff"),  # free pages
        (100 + 5, b"\xff\xff"),  # where the first page's cells begin
        (100 + 3, b"\xff\xff"),  # how many they are
    ],
)
def test_huge_claims_cost_nothing(tmp_path, at, claim):
    fill(tmp_path, *range(50))
    path = ledger(tmp_path).path
    content = bytearray(path.read_bytes())
    content[at : at + len(claim)] = claim
    path.write_bytes(content)
    with little(1 << 26, seconds=10):
        refused(tmp_path, "is damaged or cannot be used|is not a list of finds")


# -- JSON lines ----------------------------------------------------------------------


def lines_file(folder) -> LinesFile:
    return LinesFile(folder / "found.jsonl", "list of finds", 1)


NO_LINES = {
    "dear diary": "is not a list of finds",
    '{"my": "results"}\n': "is not a list of finds .*it names no format",
    "[" * 100_000 + "\n": "is not a list of finds .*it is nested too deeply",
    '{"format": 1}\n[]\n': "line 2 is not as it was written .no record",
    '{"format": 1}\n{"n": 3}\n': "line 2: it has no digest.* finish it with",
    '{"format": 2}\n': "in format 2, .* this one reads format 1",
}


@pytest.mark.parametrize("content", NO_LINES)
def test_lines_of_something_else_are_refused(tmp_path, content):
    lines_file(tmp_path).path.write_text(content)
    with pytest.raises(ValueError, match=NO_LINES[content]) as caught:
        lines_file(tmp_path).read()
    assert "\n" not in str(caught.value)


def test_a_line_that_was_edited_says_where(tmp_path):
    lines_file(tmp_path).write(ASKED, [{"n": 3, "m": math.inf}])
    path = lines_file(tmp_path).path
    head, line = path.read_text().splitlines()
    written = json.loads(line)
    asked = {"format": 1, "seed": 0, "sizes": [1, 2]}
    assert lines_file(tmp_path).read() == (asked, {2: {"n": 3, "m": "inf"}})
    json.loads(line, parse_constant=pytest.fail)
    for first, second, said in (
        (head, written | {"n": 3.0}, "its digest is of other values of 'n'"),
        (head, written | {"n": 4, "m": 3}, "its digest is of another row"),
        (head, written | {"digest": 3}, "more or fewer fields than its digest"),
        (head.replace("0", "1", 1), written, "of other settings"),
    ):
        path.write_text(f"{first}\n{json.dumps(second)}\n")
        with pytest.raises(ValueError, match=rf"line 2 is not .*{said}.*: remove"):
            lines_file(tmp_path).read()
    path.write_text(f"{head}\n{sealed(head, written | {'n': 4})}\n")
    assert lines_file(tmp_path).read()[1] == {2: {"n": 4, "m": "inf"}}
