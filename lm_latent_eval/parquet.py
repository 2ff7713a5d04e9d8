"""Parquet files of rows with known columns, and of the settings behind the rows.

Our files have a digest of both, which reveals damage and edits, but no forgery.
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
"""Metadata key of the digest of settings and rows in their order."""
_BROKEN = (pa.ArrowException, OSError, ValueError, RuntimeError, MemoryError)
"""Arrow's errors for files that are not Parquet."""


def write(path: Path, table: pa.Table, name: bytes, said: dict[str, Any]) -> None:
    """Write rows, whole or not at all.

    Args:
        path: The file.
        table: The rows.
        name: Metadata key of the settings.
        said: Settings behind the rows.
    """
    about = json.dumps(said).encode()
    sha = hashlib.sha256(about)
    for batch in table.to_batches():
        _add(sha, batch.to_pylist())
    metadata = {name: about, DIGEST: sha.hexdigest().encode()}
    with replacing(path) as partial:
        pq.write_table(table.replace_schema_metadata(metadata), partial)


def _add(sha: hashlib._Hash, rows: Iterable[dict[str, Any]]) -> None:
    for row in rows:
        sha.update(repr(row).encode("utf-8", "surrogatepass"))


class RowFile:
    """A Parquet file of unknown origin, checked while it is read."""

    def __init__(self, path: Path, name: bytes, kind: str) -> None:
        """Open a file.

        Args:
            path: The file.
            name: Metadata key of the settings.
            kind: Name of its kind in messages: "record of a run", say.

        Raises:
            ValueError: If it is no such file.
        """
        self.path, self.kind = regular(path), kind
        with self._opened() as file:
            self._schema = file.schema_arrow
        metadata = self._schema.metadata or {}
        self._about, self._digest = metadata.get(name, b"null"), metadata.get(DIGEST)

    def said(self) -> dict[str, Any]:
        """Settings behind the rows, which are verified once all rows were read.

        Raises:
            ValueError: If it has none.
        """
        with self._named():
            settings = parse(self._about.decode(), infinities=True)
        if not isinstance(settings, dict):
            raise self._error("it does not say how its rows were made")
        return settings

    def rows(
        self, schema: pa.Schema, *, optional: Collection[str] = ()
    ) -> Iterator[dict[str, Any]]:
        """Yield the rows.

        Args:
            schema: Required columns and types.
            optional: Names of columns that may be missing.

        Raises:
            ValueError: If it has other columns, or was changed, which is known after
                the last row.
        """
        indices = self._schema.get_all_field_indices
        names = [n for n in schema.names if n not in optional or indices(n)]
        for column in names:
            if len(indices(column)) != 1:
                count = len(indices(column)) or "no"
                raise self._error(f"it has {count} columns {column!r}")
            kind, wanted = (s.field(column).type for s in (self._schema, schema))
            if kind != wanted:
                raise self._error(f"column {column!r} holds {kind!s:.60}, not {wanted}")
        sha = hashlib.sha256(self._about)
        with self._opened() as file:
            for batch in file.iter_batches(columns=names):
                rows = batch.to_pylist()
                _add(sha, rows)
                yield from rows
        # Files of 0.3 and of other programs have none.
        if self._digest not in (None, sha.hexdigest().encode()):
            raise self._error("it is not as it was written: copy it or run again")

    @contextmanager
    def _opened(self) -> Iterator[pq.ParquetFile]:
        with self._named(), pq.ParquetFile(self.path) as file:
            yield file

    @contextmanager
    def _named(self) -> Iterator[None]:
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
