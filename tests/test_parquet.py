"""Files of rows: what is written is read, what was changed is refused."""

import math
import random
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lm_latent_eval import parquet
from lm_latent_eval.scoring import records
from lm_latent_eval.scoring.answer import Answer
from lm_latent_eval.scoring.records import row_of

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
    file = parquet.RowFile(path, b"about", "file of finds")
    rows = [*file.rows(SCHEMA, **options)]
    assert file.said() == {"seed": 3}
    return rows


def test_what_is_written_is_read(tmp_path):
    """The digest is of values, and not of how they lie."""
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
CHANGED = "rows is no file of finds .it is not as it was written"


@pytest.mark.parametrize("name", EDITS)
def test_an_edited_value_is_refused(tmp_path, name):
    path = tmp_path / "rows"
    write(path)
    rows = [*ROWS[:1], ROWS[1] | {name: EDITS[name]}, *ROWS[2:]]
    assert rows[1] != ROWS[1], "premise"
    metadata = pq.read_schema(path).metadata
    edited = pa.Table.from_pylist(rows, SCHEMA).replace_schema_metadata(metadata)
    pq.write_table(edited, path)
    with pytest.raises(ValueError, match=CHANGED):
        read(path)
    # Another program has no digest, and may leave a column out.
    without = edited.replace_schema_metadata({b"about": b'{"seed": 3}'})
    pq.write_table(without.drop_columns(["weights"]), path)
    found = read(path, optional=["weights"])
    assert len(found) == 3000 and "weights" not in found[0]


def test_edited_metadata_are_refused(tmp_path):
    path = tmp_path / "rows"
    write(path)
    table = pq.read_table(path)
    about = table.schema.metadata | {b"about": b'{"seed":  3}'}
    pq.write_table(table.replace_schema_metadata(about), path)
    with pytest.raises(ValueError, match=CHANGED):
        read(path)
    pq.write_table(table.replace_schema_metadata({b"about": b"3"}), path)
    with pytest.raises(ValueError, match="does not say how its rows were made"):
        read(path)


@pytest.mark.parametrize("share", [0.03, pytest.param(0.3, marks=pytest.mark.nightly)])
def test_a_damaged_file_is_refused_or_the_same(tmp_path, share):
    path = tmp_path / "rows"
    write(path, ROWS[:20])
    content, dice = path.read_bytes(), random.Random(0)
    bits = range(8 * len(content))
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


def test_a_document_that_stands_twice_is_named(tmp_path):
    path = tmp_path / "r.parquet"
    first = Answer.exact(-3.0, "the")
    rows = [row_of(a) for a in (first, replace(first, option=1), first)]
    records.write(path, "t", {"seed": 3}, rows)
    with pytest.raises(ValueError, match=r"r\.parquet, row 3: the same document"):
        records.read(path)
