"""What a stopped run leaves: one writes at a time, and only the same goes on."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys

import pytest
from filelock import FileLock
from hypothesis import given, settings
from hypothesis import strategies as st

from lm_latent_eval.files import NoRoomError
from lm_latent_eval.ledger import journal
from lm_latent_eval.ledger.files import BusyError, only_writer
from lm_latent_eval.ledger.journal import Journal, remove
from lm_latent_eval.ledger.settings import plain
from tests.journals import sealed
from tests.limits import no_file_above
from tests.watching import watch

KILLS = int(os.environ.get("CRASH_KILLS", "2"))
"""Kills at random moments; ``make crash`` asks for more."""
ASKED = {"seed": 0, "sizes": (1, 2)}


def ledger(folder, version=1) -> Journal:
    return Journal(folder / "found.jsonl", "list of finds", version)


def fill(folder, *numbers) -> None:
    with ledger(folder).going_on(ASKED, None) as rows:
        for n in numbers:
            rows.add({"n": n})


def numbers_of(folder) -> list[int]:
    return [row["n"] for _, row in ledger(folder).read()[1]]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=30)
@given(st.lists(st.dictionaries(st.text(), VALUES, min_size=1, max_size=3), max_size=5))
def test_what_is_kept_comes_back_as_it_was(tmp_path_factory, rows):
    """Strings of any characters, and floats to the bit."""
    folder = tmp_path_factory.mktemp("any")
    for some in (rows[: len(rows) // 2], rows[len(rows) // 2 :]):
        with ledger(folder).going_on(ASKED, None) as kept:
            for row in some:
                kept.add(row)
    said, found = ledger(folder).read()
    assert said == {"format": 1, "seed": 0, "sizes": [1, 2]}
    places, again = zip(*found, strict=True) if rows else ((), ())
    assert places == tuple(range(2, 2 + len(rows)))
    assert repr([*again]) == repr([*map(plain, rows)]), "JSON has no infinity"


def test_rows_are_sorted_without_being_held(tmp_path):
    numbers = random.Random(0).sample(range(99), 60)
    with ledger(tmp_path).going_on(ASKED, None) as rows:
        for n in numbers:
            rows.add({"n": n, "text": "é" * n})
        assert numbers_of(tmp_path) == numbers, "while it is written"
        rows.write_sorted(tmp_path / "sorted", "n")
    found = Journal(tmp_path / "sorted", "list of finds", 1).read()
    assert [row["n"] for _, row in found[1]] == sorted(numbers)
    assert found[0] == ledger(tmp_path).read()[0]


def test_a_file_system_without_locks_is_said(tmp_path, monkeypatch, caplog):
    def locks_nothing(_):
        raise NotImplementedError

    monkeypatch.setattr(FileLock, "acquire", locks_nothing)
    with only_writer(tmp_path, "all"):
        pass
    assert f"{tmp_path} is on a file system that locks nothing" in caplog.text
    fill(tmp_path, 1, 2)
    assert numbers_of(tmp_path) == [1, 2]


KILLING = """
import os, random, signal, sys, time
from pathlib import Path
from lm_latent_eval.ledger.journal import Journal

folder, kills = Path(sys.argv[1]), int(sys.argv[2])
ledger = Journal(folder / "found.jsonl", "list of finds", 1)
rng, rows = random.Random(0), 0
for kill in range(kills):
    told, tell = os.pipe()
    child = os.fork()
    if not child:
        with ledger.going_on({"seed": 0, "sizes": (1, 2)}, None) as kept:
            done = len([*kept])
            for n in range(done, done + 400):
                kept.add({"n": n, "text": str(n) * 1000})
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
    if ledger.path.exists():
        found = [row for _, row in ledger.read()[1]]
        assert [row["n"] for row in found] == list(range(len(found)))
        assert rows <= len(found) <= rows + 1, (kill, rows, len(found))
        assert all(row["text"] == str(row["n"]) * 1000 for row in found)
        rows = len(found)
print(rows)
"""


@pytest.mark.skipif(os.name != "posix", reason="kills as POSIX does")
def test_a_kill_loses_the_row_in_hand_at_most(tmp_path):
    kills = str(KILLS * 10)
    command = [sys.executable, "-c", KILLING, tmp_path, kills]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= KILLS * 5, "premise: rows were kept between kills"


@pytest.mark.parametrize("cut", range(1, 30, 4))
def test_a_torn_last_line_is_dropped(tmp_path, cut):
    fill(tmp_path, 1, 2, 3)
    path = ledger(tmp_path).path
    path.write_bytes(path.read_bytes()[:-cut])
    assert numbers_of(tmp_path) == [1, 2]
    fill(tmp_path, 4)
    assert numbers_of(tmp_path) == [1, 2, 4]


def test_rows_are_on_the_disk_at_the_end_and_in_between(tmp_path, monkeypatch):
    synced = watch(monkeypatch, os, "fsync", lambda *_: len(rows_so_far))
    rows_so_far: list[int] = []
    monkeypatch.setattr(journal, "_SYNC", -1.0)  # at every row
    with ledger(tmp_path).going_on(ASKED, None) as rows:
        begun = len(synced)
        for n in range(3):
            rows_so_far.append(n)
            rows.add({"n": n})
    assert synced[begun:] == [1, 2, 3, 3]


@pytest.mark.parametrize("value", [0.5, math.inf, -math.inf, math.nan])
def test_the_same_settings_go_on_and_others_are_named(tmp_path, value):
    """Settings may be infinite."""
    asked = {"stderr": {"target": value}, "sizes": (1, 2)}
    for number in range(2):
        with ledger(tmp_path).going_on(asked, None) as rows:
            assert len([*rows]) == number
            rows.add({"n": number})
            with pytest.raises(BusyError, match="another run is writing into"):
                fill(tmp_path, 2)
    other = {**asked, "stderr": {"target": 1.0}}
    message = r"is of another .* \(stderr.target is .* there and 1.0 here\)"
    going_on = ledger(tmp_path).going_on(other, None)
    with pytest.raises(ValueError, match=message), going_on:
        pytest.fail("two runs")
    assert numbers_of(tmp_path) == [0, 1]
    remove([ledger(tmp_path).path])
    assert not ledger(tmp_path).path.exists()


def test_a_journal_of_another_version_is_finished_with_that(tmp_path):
    old = {**ASKED, "lm_latent_eval": "0.2.0"}
    with ledger(tmp_path).going_on(old, None):
        pass
    new = {**ASKED, "lm_latent_eval": "0.3.0"}
    with pytest.raises(ValueError, match=r"of lm-latent-eval 0\.2\.0, .*finish it wi"):
        ledger(tmp_path, 2).read()
    for version, says in ((1, "and this is 0.3.0"), (2, "reads format 2")):
        message = rf"lm-latent-eval 0\.2\.0, .*{says}.*finish it with"
        going_on = ledger(tmp_path, version).going_on(new, None)
        with pytest.raises(ValueError, match=message), going_on:
            pytest.fail("two versions")


@pytest.mark.parametrize("size", [0, 20_000, 100_000])
def test_a_full_disk_is_one_line_and_loses_no_row(tmp_path, size):
    path, done = ledger(tmp_path).path, 0
    going_on = ledger(tmp_path).going_on(ASKED, None)
    with pytest.raises(NoRoomError) as caught, no_file_above(size), going_on as kept:
        for done in range(400):
            kept.add({"n": done, "text": "a" * 1000})
    said = str(caught.value)
    assert said.startswith(f"{path} cannot be written (") and "make room" in said
    assert "\n" not in said
    assert done >= size // 1100, "premise"
    fill(tmp_path, 1000)
    assert numbers_of(tmp_path) == [*range(done), 1000]


# -- journals that somebody made or damaged ------------------------------------------

NO_LINES = {
    "dear diary": "is not a list of finds .*no line of settings",
    "dear diary\n": "is not a list of finds",
    '{"my": "results"}\n': "is not a list of finds .*it names no format",
    "[" * 100_000 + "\n": "is not a list of finds .*it is nested too deeply",
    '{"format": 1, "seed": 0, "sizes": [1, 2]}\n[]\n': "line 2 is not as it was wr",
    '{"format": 1, "seed": 0, "sizes": [1, 2]}\n{"n": 3}\n': "line 2 is not as it was",
    '{"format": 2}\n': "in format 2, .* this one reads format 1",
}


@pytest.mark.parametrize("content", NO_LINES)
def test_lines_of_something_else_are_refused(tmp_path, content):
    path = ledger(tmp_path).path
    path.write_text(content)

    def going_on() -> None:
        with ledger(tmp_path).going_on(ASKED, None) as rows:
            _ = [*rows]

    for use in (lambda: numbers_of(tmp_path), going_on):
        with pytest.raises(ValueError, match=NO_LINES[content]) as caught:
            use()
        assert "\n" not in str(caught.value) and str(path) in str(caught.value)
    assert path.read_text() == content


def test_a_line_that_was_edited_says_where(tmp_path):
    ledger(tmp_path).write(ASKED, [{"n": 3, "m": math.inf}])
    path = ledger(tmp_path).path
    head, line = path.read_text().splitlines()
    written = json.loads(line)
    asked = {"format": 1, "seed": 0, "sizes": [1, 2]}
    said, rows = ledger(tmp_path).read()
    assert (said, [*rows]) == (asked, [(2, {"n": 3, "m": "inf"})])
    json.loads(line, parse_constant=pytest.fail)
    for first, second in (
        (head, written | {"n": 3.0}),
        (head, written | {"n": 4, "m": 3}),
        (head, written | {"digest": "3"}),
        (head.replace("0", "1", 1), written),
    ):
        path.write_text(f"{first}\n{json.dumps(second)}\n")
        with pytest.raises(ValueError, match=r"line 2 is not .*its digest.*: remove"):
            numbers_of(tmp_path)
    path.write_text(f"{head}\n{sealed(head, written | {'n': 4})}\n")
    assert [*ledger(tmp_path).read()[1]] == [(2, {"n": 4, "m": "inf"})]


def test_links_pipes_and_folders_are_refused(tmp_path):
    fill(tmp_path, 1)
    path = ledger(tmp_path).path
    other = path.replace(tmp_path / "other")
    before = other.read_bytes()
    path.symlink_to(other)
    with pytest.raises(ValueError, match="is a link"):
        fill(tmp_path, 5)
    assert other.read_bytes() == before
    for make in (os.mkfifo, os.mkdir):
        path.unlink()
        make(path)
        for use in (lambda: numbers_of(tmp_path), lambda: fill(tmp_path, 5)):
            with pytest.raises(ValueError, match="not a regular file"):
                use()


def test_any_flipped_bit_and_any_cut_is_refused_or_loses_the_end(tmp_path):
    """A row is never another one, and none is missing but the last ones."""
    with ledger(tmp_path).going_on(ASKED, None) as rows:
        for n in range(40):
            rows.add({"n": n, "text": "ab" * n})
    path = ledger(tmp_path).path
    content, expected = path.read_bytes(), [*ledger(tmp_path).read()[1]]
    rng, refused = random.Random(0), 0
    for trial in range(300):
        damaged = bytearray(content)
        if trial % 4:
            damaged[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        else:
            del damaged[1 + rng.randrange(len(content) - 1) :]
        path.write_bytes(damaged)
        try:
            found = [*ledger(tmp_path).read()[1]]
        except ValueError as err:
            assert "\n" not in str(err)
            refused += 1
        else:
            assert found == expected[: len(found)], trial
            whole = damaged.count(b"\n") == content.count(b"\n")
            assert not (trial % 4 and whole), "a flipped bit was seen"
    assert refused > 200
