"""Folders of rows about numbered sequences: Arrow shards and scores.

Every file has its name when it is whole. What is there is checked all the same: a file
that is cut short or of other rows is written anew.

Columns of true and model log-probabilities are the input of every measurement. A folder
of scores holds ``settings.json`` (what was scored, with which model) and
``shards/00000.arrow``, ..., with a row a sequence:

    index        int64    number of the sequence in its corpus
    edits        int16    how often it was perturbed
    num_tokens   int32    its tokens, the end included
    ended        bool     whether it has an end; else both are of a beginning
    true_log_p   float64  nats under the language; -inf is a probability of zero
    model_log_p  float64  nats under the model, exact or estimated
    stderr       float64  Monte Carlo standard error of model_log_p; 0 is exact
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor
from tqdm import tqdm

import lm_latent_eval
from lm_latent_eval.files import replacing
from lm_latent_eval.ledger.files import SETTINGS_FILE, going_on, read
from lm_latent_eval.ledger.settings import Settings
from lm_latent_eval.options import whole

SHARDS = "shards"


def _read(path: Path, schema: pa.Schema) -> pa.Table | None:
    """Read the rows of a file; None if it is missing, cut short, or has others."""
    try:
        with pa.memory_map(str(path)) as file:
            table = pa.ipc.open_stream(file).read_all()
    except (OSError, pa.ArrowInvalid):
        return None
    return table if table.schema.equals(schema) else None


def _write(path: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
    """Write rows as they come; the file has its name when all are there."""
    with (
        replacing(path) as partial,
        pa.OSFile(str(partial), "wb") as file,
        pa.ipc.new_stream(file, schema) as stream,
    ):
        for batch in batches:
            stream.write_batch(batch)


@dataclass(frozen=True)
class ShardFolder:
    """Base class of folders of rows about consecutive sequences, in Arrow shards.

    Attributes:
        directory: It has ``settings.json`` and ``shards/00000.arrow``, ...
        settings: All that the rows depend on; which sequences, and how many a file.
    """

    directory: Path
    settings: Settings
    kind: ClassVar[str]
    """What the folder holds, for messages."""
    schema: ClassVar[pa.Schema]
    """Of a row; its column ``index`` is the number of the sequence."""
    counts: ClassVar[tuple[str, ...]]
    """Settings, whole numbers above 0."""
    named: ClassVar[tuple[str, ...]]
    """Further settings without which a folder is of something else."""
    remedy: ClassVar[str]
    """What to do where a file is cut short."""

    @classmethod
    def fill(
        cls,
        directory: Path,
        settings: Settings,
        rows: Callable[[range], pa.RecordBatch],
        *,
        at_once: int,
        quiet: bool,
        begin: Callable[[Path], None] = lambda _: None,
    ) -> Self:
        """Make a folder, or write what is still missing of it.

        ``rows`` gives the rows of so many sequences ``at_once``, by their numbers, and
        ``begin`` writes what lies beside the shards of a new folder.

        Raises:
            ValueError: If the directory is of other settings.
        """
        settings = {"lm_latent_eval": lm_latent_eval.__version__, **settings}
        folder = cls(Path(directory), settings)
        if not (folder.directory / SETTINGS_FILE).exists():
            rows(folder.indices[:1])  # What cannot be done has no folder.
        with going_on(folder.directory, settings, cls.kind, "whole shards"):
            if not (folder.directory / SHARDS).exists():
                begin(folder.directory)
                (folder.directory / SHARDS).mkdir()
            with tqdm(
                total=len(folder.indices),
                unit=" sequences",
                leave=False,
                disable=quiet,
            ) as bar:

                def batches(indices: range) -> Iterator[pa.RecordBatch]:
                    for start in range(0, len(indices), at_once):
                        some = indices[start : start + at_once]
                        yield rows(some)
                        bar.update(len(some))

                for path, indices in folder.shards():
                    if folder._is_whole(path, indices):
                        bar.update(len(indices))
                    else:
                        _write(path, cls.schema, batches(indices))
        return folder

    @classmethod
    def open(cls, directory: Path) -> Self:
        """Open a folder whose files are all there.

        Raises:
            ValueError: If it is of something else, or a file is missing or cut short.
        """
        settings = read(Path(directory), cls.kind)
        try:
            whole("first", settings.get("first"), 0)
            for name in ("num_sequences", "shard_size", *cls.counts):
                whole(name, settings.get(name), 1)
            if missing := [name for name in cls.named if name not in settings]:
                raise ValueError(f"it names no {missing[0]}")
        except ValueError as err:
            raise ValueError(
                f"{Path(directory) / SETTINGS_FILE} is not the settings of a "
                f"{cls.kind} ({err})"
            ) from err
        folder = cls(Path(directory), settings)
        for path, indices in folder.shards():
            if not folder._is_whole(path, indices):
                raise ValueError(
                    f"{path} is missing or cut short: {cls.remedy} with the same "
                    "settings, which goes on where it was"
                )
        return folder

    @property
    def indices(self) -> range:
        """The numbers of the sequences."""
        first = int(self.settings["first"])
        return range(first, first + int(self.settings["num_sequences"]))

    def shards(self) -> Iterator[tuple[Path, range]]:
        """Iterate over the files and the numbers of their sequences, in order."""
        size = int(self.settings["shard_size"])
        starts = range(0, int(self.settings["num_sequences"]), size)
        for number, start in enumerate(starts):
            path = self.directory / SHARDS / f"{number:05}.arrow"
            yield path, self.indices[start : start + size]

    def record_batches(self) -> Iterator[pa.RecordBatch]:
        """Read the rows in the pieces they were written in."""
        for path, _ in self.shards():
            with pa.memory_map(str(path)) as file:
                yield from pa.ipc.open_stream(file)

    def _is_whole(self, path: Path, indices: range) -> bool:
        """Whether every row of a file is there and can be read."""
        rows_each = int(self.settings.get("rows_each", 1))
        table = _read(path, self.schema)
        number = indices.stop - indices.start  # which no len() may hold
        # The size of the file bounds what is compared, whatever its settings say.
        if table is None or len(table) != number * rows_each:
            return False
        expected = np.repeat(np.array(indices), rows_each)
        return np.array_equal(table["index"].to_numpy(), expected)


SCHEMA = pa.schema(
    {
        "index": pa.int64(),
        "edits": pa.int16(),
        "num_tokens": pa.int32(),
        "ended": pa.bool_(),
        "true_log_p": pa.float64(),
        "model_log_p": pa.float64(),
        "stderr": pa.float64(),
    }
)


@dataclass(frozen=True)
class Columns:
    """Scored sequences; every column has the shape (N,)."""

    index: Tensor
    edits: Tensor
    num_tokens: Tensor
    ended: Tensor
    true_log_p: Tensor
    model_log_p: Tensor
    stderr: Tensor

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, which: Tensor) -> Columns:
        """Return some rows, by a mask or by their places."""
        return Columns(*(getattr(self, each.name)[which] for each in fields(self)))

    @property
    def impossible(self) -> Tensor:
        """Sequences that the language never utters, (N,): no error is defined there."""
        return self.true_log_p == -torch.inf

    @property
    def estimated(self) -> bool:
        """Whether log p_M are estimates, of which one may be above 0."""
        return bool((self.stderr > 0).any())

    @classmethod
    def cat(cls, parts: Sequence[Columns]) -> Self:
        """Join rows."""
        return cls(
            *(torch.cat([getattr(p, each.name) for p in parts]) for each in fields(cls))
        )

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> Self:
        """Read rows of an Arrow file."""
        columns = (batch[name].to_numpy(zero_copy_only=False) for name in SCHEMA.names)
        return cls(*(torch.from_numpy(column.copy()) for column in columns))

    def batch(self) -> pa.RecordBatch:
        """Return the rows as an Arrow file takes them."""
        columns = {name: getattr(self, name).numpy() for name in SCHEMA.names}
        return pa.RecordBatch.from_pydict(columns, schema=SCHEMA)


class ScoresFolder(ShardFolder):
    """A folder of scored sequences."""

    kind = "folder of scores"
    schema = SCHEMA
    counts = ("rows_each",)
    named = ("bound",)
    remedy = "score again"

    def batches(self) -> Iterator[Columns]:
        """Read the rows piece by piece: memory does not grow with their number."""
        return map(Columns.of, self.record_batches())

    def columns(self) -> Columns:
        """Read all rows."""
        return Columns.cat([*self.batches()])
