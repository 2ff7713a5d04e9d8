"""Folders of rows about numbered sequences: Arrow shards, scores, trajectories.

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
from typing import Any, Self

import datasets
import numpy as np
import pyarrow as pa
import torch
from datasets import Dataset
from torch import Tensor
from tqdm import tqdm

import lm_latent_eval
from lm_latent_eval.files import replacing
from lm_latent_eval.ledger.files import SETTINGS_FILE, claim, going_on, read
from lm_latent_eval.ledger.settings import Settings

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

    def check(self, remedy: str) -> None:
        """Raise unless every row is there.

        Raises:
            ValueError: If the file is missing or cut short.
        """
        if not self.is_whole():
            raise ValueError(f"{self.path} is missing or cut short: {remedy}")

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Read the rows in the pieces they were written in."""
        with pa.memory_map(str(self.path)) as file:
            yield from pa.ipc.open_stream(file)

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
            shard.check(remedy)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Read the rows in the pieces they were written in."""
        return (batch for shard in self for batch in shard.batches())

    def dataset(self) -> Dataset:
        """Return all rows, memory-mapped."""
        parts = [Dataset.from_file(str(shard.path)) for shard in self]
        return datasets.concatenate_datasets(parts)


def indices_of(settings: Settings) -> range:
    """Return the numbers of the sequences of a folder."""
    first = int(settings["first"])
    return range(first, first + int(settings["num_sequences"]))


KIND = "scores"
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
EPOCHS = "epochs"


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


@dataclass(frozen=True)
class ScoresFolder:
    """A folder of scored sequences."""

    directory: Path
    settings: Settings

    @classmethod
    def fill(
        cls,
        directory: Path,
        settings: Settings,
        columns: Callable[[range], Columns],
        *,
        at_once: int = 1024,
        quiet: bool = False,
    ) -> Self:
        """Score sequences, or those that are still missing.

        Args:
            directory: Made if it is not there.
            settings: What the numbers depend on; ``first``, ``num_sequences``,
                ``rows_each`` and ``shard_size`` among it.
            columns: The scores of sequences, by their numbers.
            at_once: Sequences asked for together.
            quiet: Show no progress bar.

        Raises:
            ValueError: If the directory is of other settings.
        """
        settings = {"lm_latent_eval": lm_latent_eval.__version__, **settings}
        if not (Path(directory) / SETTINGS_FILE).exists():
            # What cannot be scored has no folder.
            columns(range(settings["first"], settings["first"] + 1))
        scores = cls(Path(directory), settings)
        with going_on(scores.directory, settings, KIND, "whole shards"):
            scores.shards().fill(
                lambda some: columns(some).batch(), at_once, quiet=quiet
            )
        return scores

    @classmethod
    def open(cls, directory: Path) -> Self:
        """Open a folder whose files are all there.

        Raises:
            ValueError: If it is no folder of scores, or a file is missing or cut short.
        """
        scores = cls(Path(directory), read(Path(directory), KIND, having="rows_each"))
        scores.shards().check(
            "score again with the same settings, which goes on where it was"
        )
        return scores

    def shards(self) -> Shards:
        """Return which file has which sequences."""
        return Shards(
            self.directory,
            SCHEMA,
            indices_of(self.settings),
            int(self.settings["shard_size"]),
            int(self.settings["rows_each"]),
        )

    def batches(self) -> Iterator[Columns]:
        """Read the rows piece by piece: memory does not grow with their number."""
        return map(Columns.of, self.shards().batches())

    def columns(self) -> Columns:
        """Read all rows."""
        return Columns.cat([*self.batches()])


@dataclass(frozen=True)
class Trajectory:
    """A folder of the same sequences, scored after every epoch of training.

    It holds ``settings.json`` and ``epochs/00001.arrow``, ... with the rows of scores.
    """

    directory: Path
    settings: Settings

    @classmethod
    def begin(
        cls, directory: Path, indices: range, sequences_an_epoch: int, **about: Any
    ) -> Self:
        """Make a folder, or go on with one.

        Args:
            directory: Where.
            indices: The numbers of the sequences in their corpus.
            sequences_an_epoch: Sequences of training between two scores.
            about: What else the numbers depend on.

        Raises:
            ValueError: If the directory is of other settings.
        """
        settings = {
            "lm_latent_eval": lm_latent_eval.__version__,
            "first": indices.start,
            "num_sequences": len(indices),
            "sequences_an_epoch": sequences_an_epoch,
            **about,
        }
        claim(Path(directory), settings, "trajectory")
        (Path(directory) / EPOCHS).mkdir(exist_ok=True)
        return cls(Path(directory), settings)

    @classmethod
    def open(cls, directory: Path) -> Self:
        """Open a folder.

        Raises:
            ValueError: If it is no folder of a trajectory.
        """
        directory = Path(directory)
        return cls(
            directory, read(directory, "trajectory", having="sequences_an_epoch")
        )

    def write(self, epoch: int, columns: Columns) -> None:
        """Write the scores after an epoch, counted from 1."""
        self._shard(epoch).write([columns.batch()])

    def epochs(self) -> list[Columns]:
        """Return the scores after each epoch, from the first on.

        Raises:
            ValueError: If there is none, one is missing in between, or is cut short.
        """
        files = sorted((self.directory / EPOCHS).glob("*.arrow"))
        if not files:
            raise ValueError(f"{self.directory} has no epochs: train first")
        found = []
        for epoch in range(1, int(files[-1].stem) + 1):
            shard = self._shard(epoch)
            shard.check(
                "resume the training from an earlier checkpoint, or start it anew"
            )
            found.append(Columns.cat([*map(Columns.of, shard.batches())]))
        return found

    def _shard(self, epoch: int) -> Shard:
        path = self.directory / EPOCHS / f"{epoch:05}.arrow"
        return Shard(path, indices_of(self.settings), SCHEMA)
