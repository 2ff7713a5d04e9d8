"""Parquet files of rows with known columns, and of how the rows were made.

Files of ours have a digest of both, by which one that is damaged or edited is known. As
with every digest, whoever edits a file can compute it again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lm_latent_eval.files import regular, replacing
from lm_latent_eval.values import parse

DIGEST = b"lm_latent_eval_digest"
"""Of how the rows were made, and of the rows in their order."""
_BROKEN = (pa.ArrowException, OSError, ValueError, RuntimeError, MemoryError)
"""Arrow's errors for files that are not Parquet."""


def write(path: Path, table: pa.Table, name: bytes, said: dict[str, Any]) -> None:
    """Write rows, whole or not at all.

    Args:
        path: The file.
        table: The rows.
        name: Under which the metadata say how they were made.
        said: That.
    """
    about = json.dumps(said).encode()
    found = hashlib.sha256(about)
    for batch in table.to_batches():
        _add(found, batch.to_pylist())
    metadata = {name: about, DIGEST: found.hexdigest().encode()}
    with replacing(path) as partial:
        pq.write_table(table.replace_schema_metadata(metadata), partial)


def _add(found: hashlib._Hash, rows: Iterable[dict[str, Any]]) -> None:
    for row in rows:
        found.update(repr(row).encode("utf-8", "surrogatepass"))


class RowFile:
    """A Parquet file of unknown origin, checked while it is read."""

    def __init__(self, path: Path, name: bytes, kind: str) -> None:
        """Open a file.

        Args:
            path: The file.
            name: Under which its metadata say how its rows were made.
            kind: What it holds, for messages: "record of a run", say.

        Raises:
            ValueError: If it is no such file.
        """
        self.path, self.kind = regular(path), kind
        with self._opened() as file:
            self._schema = file.schema_arrow
        metadata = self._schema.metadata or {}
        self._about, self._digest = metadata.get(name, b"null"), metadata.get(DIGEST)

    def said(self) -> dict[str, Any]:
        """Return how its rows were made; true once all of them were read.

        Raises:
            ValueError: If it does not say so.
        """
        with self._named():
            found = parse(self._about.decode(), infinities=True)
        if not isinstance(found, dict):
            raise self._error("it does not say how its rows were made")
        return found

    def rows(
        self, schema: pa.Schema, *, optional: Collection[str] = ()
    ) -> Iterator[dict[str, Any]]:
        """Yield the rows.

        Args:
            schema: Columns and types that it has to have.
            optional: Names of columns that it may lack.

        Raises:
            ValueError: If it has others, or was changed: this is known after the last
                row.
        """
        places = self._schema.get_all_field_indices
        names = [n for n in schema.names if n not in optional or places(n)]
        for column in names:
            if len(places(column)) != 1:
                number = len(places(column)) or "no"
                raise self._error(f"it has {number} columns {column!r}")
            there, wanted = (s.field(column).type for s in (self._schema, schema))
            if there != wanted:
                raise self._error(
                    f"column {column!r} holds {there!s:.60}, not {wanted}"
                )
        found = hashlib.sha256(self._about)
        with self._opened() as file:
            for batch in file.iter_batches(columns=names):
                rows = batch.to_pylist()
                _add(found, rows)
                yield from rows
        # Files of 0.3 and of other programs have none.
        if self._digest not in (None, found.hexdigest().encode()):
            raise self._error("it is not as it was written: copy it or run again")

    @contextmanager
    def _opened(self) -> Iterator[pq.ParquetFile]:
        with self._named(), pq.ParquetFile(self.path) as file:
            yield file

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Add the file's name to Arrow's errors."""
        try:
            yield
        except _BROKEN as err:
            if isinstance(err, RowFileError) or getattr(err, "filename", None):
                raise
            raise self._error(f"{err!r:.200}") from err

    def _error(self, why: str) -> RowFileError:
        return RowFileError(f"{self.path} is no {self.kind} ({why})")


class RowFileError(ValueError):
    """Error of a file of rows that is damaged or of another kind."""
