"""Results as JSON lines: a header of settings, then a result a line."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from lm_latent_eval.durable import replacing
from lm_latent_eval.file_names import regular
from lm_latent_eval.ledger.row_digests import NoDigestError, RowDigests
from lm_latent_eval.ledger.settings import (
    FormatError,
    Settings,
    check_format,
    parsed,
    plain,
)
from lm_latent_eval.messages import naming
from lm_latent_eval.plain_json import parse

Row = dict[str, Any]


@dataclass(frozen=True)
class LinesFile:
    """A file of JSON lines, written whole or not at all.

    Each result has a digest, which only the values that were written have, below the
    settings that they were written below.
    """

    path: Path
    kind: str
    """What it is, for messages: "file of estimates", say."""
    format: int
    """Of its lines: those of another version are refused."""

    def write(self, settings: Settings, rows: Iterable[Row]) -> None:
        """Write settings and results, in the place of those before.

        Raises:
            NoRoomError: If the disk is full.
        """
        settings = {"format": self.format, **settings}
        digests = RowDigests(settings)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(self.path) as partial, partial.open("wb") as file:
            for line in chain([settings], map(digests.added, rows)):
                written = json.dumps(plain(line), allow_nan=False)
                file.write(f"{written}\n".encode())

    def read(self) -> tuple[Settings, dict[int, Row]]:
        """Return the settings, and the results by line.

        Raises:
            FormatError: If another version wrote it.
            ValueError: If the file is something else, or a line was edited.
        """
        with naming(self.path):
            lines = regular(self.path).read_bytes().splitlines()
        try:
            settings = parsed(lines[0] if lines else b"", "format")
        except ValueError as err:
            raise self.not_one(f"its first line says no settings: {err}") from err
        check_format(self.path, settings, self.format)
        digests = RowDigests(settings)
        numbered = enumerate(lines[1:], start=2)
        return settings, {n: self._row(n, line, digests) for n, line in numbered}

    def not_one(self, why: str) -> ValueError:
        """Return the error that the file is something else."""
        return ValueError(
            f"{self.path} is not a {self.kind} ({why}): give the output another path"
        )

    def edited(self, place: int, what: str) -> ValueError:
        """Return the error that a line is not as it was written."""
        return ValueError(
            f"{self.path}, line {place} is not as it was written ({what}): remove the "
            "line, and its result is found again"
        )

    def _row(self, place: int, line: bytes, digests: RowDigests) -> Row:
        try:
            row = parse(line.decode())
            if not isinstance(row, dict):
                raise ValueError("no record")
            return digests.checked(row)
        except NoDigestError as err:
            raise FormatError(
                f"{self.path}, line {place}: {err}: finish it with the version that "
                "began it, or run the command again, with another path for its output"
            ) from err
        except ValueError as err:
            raise self.edited(place, str(err)) from err
