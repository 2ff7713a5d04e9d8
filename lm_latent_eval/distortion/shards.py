"""Resumable Arrow shards of rows about numbered sequences.

Every file has its name when it is whole. What is there is checked all the same: a file
that is cut short or of other rows is written anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
from datasets import Dataset
from tqdm import tqdm

from lm_latent_eval.files import replacing

SHARDS = "shards"


@dataclass(frozen=True)
class Shard:
    """Consecutive sequences and their file."""

    path: Path
    indices: range
    schema: pa.Schema
    rows_each: int = 1
    """Rows of a sequence, one after the other."""

    def is_whole(self) -> bool:
        """Whether every row is there and can be read."""
        try:
            with pa.memory_map(str(self.path)) as file:
                table = pa.ipc.open_stream(file).read_all()
                if not table.schema.equals(self.schema):
                    return False
                expected = np.repeat(np.array(self.indices), self.rows_each)
                return np.array_equal(table["index"].to_numpy(), expected)
        except (OSError, pa.ArrowInvalid):
            return False

    def write(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Write rows as they come; the file has its name when all are there."""
        with (
            replacing(self.path) as partial,
            pa.OSFile(str(partial), "wb") as file,
            pa.ipc.new_stream(file, self.schema) as stream,
        ):
            for batch in batches:
                stream.write_batch(batch)


@dataclass(frozen=True)
class Shards:
    """The files of consecutive sequences in a folder.

    Attributes:
        directory: The folder; the files are in ``shards/`` there.
        schema: Of a row; its column ``index`` is the number of the sequence.
        indices: The numbers of the sequences.
        shard_size: Sequences a file.
        rows_each: Rows of a sequence.
    """

    directory: Path
    schema: pa.Schema
    indices: range
    shard_size: int
    rows_each: int = 1

    def __iter__(self) -> Iterator[Shard]:
        """Iterate over the files, in order."""
        starts = range(0, len(self.indices), self.shard_size)
        for number, start in enumerate(starts):
            yield Shard(
                self.directory / SHARDS / f"{number:05}.arrow",
                self.indices[start : start + self.shard_size],
                self.schema,
                self.rows_each,
            )

    def fill(
        self, rows: Callable[[range], pa.RecordBatch], at_once: int, *, quiet: bool
    ) -> None:
        """Write the files that are not whole.

        Args:
            rows: The rows of some sequences, by their numbers.
            at_once: Sequences asked for together.
            quiet: Show no progress bar.
        """
        (self.directory / SHARDS).mkdir(exist_ok=True)
        with tqdm(
            total=len(self.indices), unit=" sequences", leave=False, disable=quiet
        ) as bar:

            def batches(indices: range) -> Iterator[pa.RecordBatch]:
                for start in range(0, len(indices), at_once):
                    some = indices[start : start + at_once]
                    yield rows(some)
                    bar.update(len(some))

            for shard in self:
                if shard.is_whole():
                    bar.update(len(shard.indices))
                else:
                    shard.write(batches(shard.indices))

    def check(self, remedy: str) -> None:
        """Raise unless every file is whole.

        Raises:
            ValueError: If one is missing or cut short.
        """
        for shard in self:
            if not shard.is_whole():
                raise ValueError(f"{shard.path} is missing or cut short: {remedy}")

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Read the rows in the pieces they were written in."""
        for shard in self:
            with pa.memory_map(str(shard.path)) as file:
                yield from pa.ipc.open_stream(file)

    def dataset(self) -> Dataset:
        """Return all rows, memory-mapped."""
        parts = [Dataset.from_file(str(shard.path)) for shard in self]
        return datasets.concatenate_datasets(parts)
