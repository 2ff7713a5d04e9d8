"""Files of rows that claim, hold or pack more than they should."""

import math
import random
import struct
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lm_latent_eval import parquet
from lm_latent_eval.scoring import records
from lm_latent_eval.scoring.answer import Answer
from lm_latent_eval.scoring.records import row_of
from tests.limits import little
from tests.memory import measured, on_linux

SCHEMA = pa.schema(
    {
        "n": pa.int64(),
        "share": pa.float64(),
        "name": pa.string(),
        "sure": pa.bool_(),
        "weights": pa.list_(pa.float64()),
        "words": pa.list_(pa.list_(pa.string())),
    }
)
ROWS = [
    {
        "n": n,
        "share": [0.5, None, math.inf, -0.0, math.nan][n % 5],
        "name": [f"a{n}", "", None, "é"][n % 4],
        "sure": [True, False, None][n % 3],
        "weights": [[0.5, n / 7], [], None][n % 3],
        "words": [[["a", f"b{n}"], []], [], None, [["c"]]][n % 4],
    }
    for n in range(3000)
]


def write(path, rows=ROWS):
    parquet.write(path, pa.Table.from_pylist(rows, SCHEMA), b"about", {"seed": 3})


def read(path, **options):
    file = parquet.RowFile(path, "file of finds")
    assert file.said(b"about") == {"seed": 3}
    return [*file.rows(SCHEMA, **{"digested": True} | options)]


def test_what_is_written_is_read(tmp_path):
    """Digests are of values, and not of how they lie."""
    path = tmp_path / "rows"
    for number in (0, 1, 1024, 3000):
        write(path, ROWS[:number])
        assert repr(read(path)) == repr(ROWS[:number])
    table = pq.read_table(path)
    pq.write_table(table, path, 700, use_dictionary=False, compression="none")
    assert pq.ParquetFile(path).num_row_groups == 5, "premise"
    assert repr(read(path)) == repr(ROWS)


EDITS = {
    "n": 7,
    "share": 0.25,
    "name": "b",
    "sure": None,
    "weights": [0.5],
    "words": [["a"], ["b1"], []],
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edited_column_is_named(tmp_path, name):
    path = tmp_path / "rows"
    write(path)
    rows = [*ROWS[:1], ROWS[1] | {name: EDITS[name]}, *ROWS[2:]]
    assert rows[1] != ROWS[1], "premise"
    metadata = pq.read_schema(path).metadata
    edited = pa.Table.from_pylist(rows, SCHEMA).replace_schema_metadata(metadata)
    pq.write_table(edited, path)
    with pytest.raises(ValueError, match=f"rows is no file of finds .column '{name}' "):
        read(path)
    # Somebody may have taken the digests away, and another program left a column out.
    without = edited.replace_schema_metadata({b"about": b'{"seed": 3}'})
    pq.write_table(without, path)
    with pytest.raises(ValueError, match="has no digests of its columns"):
        read(path)
    pq.write_table(without.drop_columns(["weights"]), path)
    found = read(path, optional=["weights"], digested=False)
    assert len(found) == 3000 and "weights" not in found[0]


def test_edited_metadata_are_named(tmp_path):
    path = tmp_path / "rows"
    write(path)
    table = pq.read_table(path)
    about = table.schema.metadata | {b"about": b'{"seed": 4}'}
    pq.write_table(table.replace_schema_metadata(about), path)
    with pytest.raises(ValueError, match="how its rows were made is not as it was"):
        read(path)
    pq.write_table(table.replace_schema_metadata({b"about": b"3"}), path)
    with pytest.raises(ValueError, match="does not say how its rows were made"):
        read(path)


@pytest.mark.parametrize("share", [0.03, pytest.param(1, marks=pytest.mark.nightly)])
def test_a_footer_that_is_damaged_is_refused_and_ends_no_process(tmp_path, share):
    """Arrow's classes of metadata abort where a column is damaged."""
    path = tmp_path / "rows"
    write(path, ROWS[:20])
    content, dice = path.read_bytes(), random.Random(0)
    (length,) = struct.unpack("<I", content[-8:-4])
    # Its first bytes tell of the columns, the others hold the digests.
    bits = range(8 * (len(content) - length - 8), 8 * (len(content) - length + 992))
    for at in dice.sample(bits, round(share * len(bits))):
        flipped = bytearray(content)
        flipped[at // 8] ^= 1 << at % 8
        path.write_bytes(flipped)
        try:
            assert repr(read(path)) == repr(ROWS[:20])
        except ValueError as err:
            assert str(err).startswith(f"{path} is no file of finds (")


def columns(**changes):
    table = pa.Table.from_pylist(ROWS, SCHEMA)
    for name, column in changes.items():
        place = table.schema.get_field_index(name)
        table = table.set_column(place, name, column)
    return table.replace_schema_metadata({b"about": b'{"seed": 3}'})


NO_PARQUET = (b"", b"PAR1", b"PAR1\0\0\0\0PAR1", b"PAR1" * 99)
OTHERS = {
    "gone": (columns().drop_columns(["n"]), "no columns 'n'"),
    "twice": (columns().append_column("n", columns()["n"]), "2 columns 'n'"),
    "of strings": (columns(n=pa.array(["a"] * 3000)), "'n' holds string, not int64"),
    "of bytes": (columns(name=pa.array([b"\xff"] * 3000)), "'name' holds binary, not"),
    **{f"{content[:9]} alone": (content, "") for content in NO_PARQUET},
}


@pytest.mark.parametrize("kind", OTHERS)
def test_a_column_that_is_another_is_named(tmp_path, kind):
    table, said = OTHERS[kind]
    if isinstance(table, bytes):
        (tmp_path / "rows").write_bytes(table)
    else:
        pq.write_table(table, tmp_path / "rows")
    with pytest.raises(ValueError, match=rf"rows is no file of finds .*{said}") as err:
        read(tmp_path / "rows")
    assert "\n" not in str(err.value)


def equal(number, **values):
    """A table of equal rows, which takes little room in a file."""
    row = {"n": 1, "share": 0.5, "name": "a", "sure": True, "weights": [0.5]}
    row |= {"words": [["a"]]} | values
    made = {
        name: pa.repeat(pa.scalar(value, SCHEMA.field(name).type), number)
        for name, value in row.items()
    }
    return pa.table(made).replace_schema_metadata({b"about": b'{"seed": 3}'})


# Of long words pyarrow 16 takes more than the limit before it can be asked how many.
MUCH = "than 100 times" if int(pa.__version__.split(".")[0]) > 16 else "realloc"
HUGE = {
    "rows": (lambda: equal(200_000), {}, "claims 200,000 rows in"),
    "a long name": (lambda: equal(500, name="a" * 500_000), {}, "more than 100 times"),
    "long words": (lambda: equal(500, words=[["a" * 500_000]]), {}, MUCH),
    "packed": (lambda: equal(10), {"compression": "zstd"}, "is packed by ZSTD, where"),
}


@pytest.mark.parametrize("kind", HUGE)
def test_a_small_file_takes_little_memory(tmp_path, kind):
    make, options, said = HUGE[kind]
    path = tmp_path / "rows"
    pq.write_table(make(), path, **options)
    assert path.stat().st_size < 1 << 18, "premise"
    with little(), pytest.raises(ValueError, match=said) as err:
        read(path, digested=False)
    assert str(err.value).startswith(f"{path} is no file of finds (")


def test_a_document_that_stands_twice_is_named(tmp_path):
    path = tmp_path / "r.parquet"
    first = Answer.exact(-3.0, "the")
    rows = [row_of(a) for a in (first, replace(first, option=1), first)]
    records.write(path, "t", {"seed": 3}, rows)
    with pytest.raises(ValueError, match=r"r\.parquet, row 3: the same document"):
        records.read(path)


CLAIMED = 1_000_000_000


def varint(number):
    """Write a number as Thrift's compact protocol does."""
    low, rest = number & 127, number >> 7
    return bytes([low | 128]) + varint(rest) if rest else bytes([low])


@on_linux
def test_a_page_that_its_header_contradicts_is_refused(tmp_path):
    """Arrow may reserve what the header claims, which is no memory until written."""
    path = tmp_path / "rows"
    table = pa.table({"n": [n * 977 % 2000 for n in range(2000)]})
    table = table.replace_schema_metadata({b"about": b'{"seed": 3}'})
    pq.write_table(table, path, use_dictionary=False, write_statistics=False)
    content = path.read_bytes()
    [chunk] = parquet.read_footer(path).chunks
    page = content[4:]
    assert page[:3] == b"\x15\x00\x15", "premise: type, then the unpacked size"
    old = next(n for n in range(1, 6) if page[2 + n] < 128)
    claim = varint(2 * CLAIMED)
    longer = len(claim) - old
    size, grown = varint(2 * chunk.num_bytes), varint(2 * (chunk.num_bytes + longer))
    head, tail = content[: 4 + chunk.num_bytes], content[4 + chunk.num_bytes :]
    assert len(size) == len(grown) and size in tail, "premise"
    path.write_bytes(head[:7] + claim + head[7 + old :] + tail.replace(size, grown))
    code = """
import pyarrow as pa
from lm_latent_eval import parquet
file = parquet.RowFile(sys.argv[1], "file of finds")
before = memory("VmHWM")
try:
    [*file.rows(pa.schema({"n": pa.int64()}), digested=False)]
except ValueError as err:
    said = str(err)
print(json.dumps({
    "named": "is no file of finds" in said,
    "taken": memory("VmHWM") - before,
}))
"""
    found = measured(code, path)
    assert found["named"]
    assert found["taken"] < CLAIMED / 10
