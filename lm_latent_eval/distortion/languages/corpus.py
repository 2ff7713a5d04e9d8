"""A sample of a language on disk: Arrow shards that an interruption does not spoil.

A folder holds ``settings.json`` (all that the sequences depend on), what the language
saves (tokenizer, grammar) and ``shards/00000.arrow``, ..., with a row a sequence:

    index   int64          its number under the seed
    ids     list of int32  its tokens, the end included
    ended   bool           whether it has one; else it was cut at the maximum length
    log_p   float64        nats under the language; of a cut one, that of its beginning

Every shard is written under another name and renamed when it is whole. What is there is
checked all the same: a shard that is cut short or of other rows is drawn anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import datasets
import pyarrow as pa
from datasets import Dataset
from tqdm import tqdm

import lm_latent_eval
from lm_latent_eval.distortion.languages.language import (
    Language,
    Sample,
    checked_length,
)
from lm_latent_eval.settings import claim, read

KIND = "corpus"
SHARDS = "shards"
SCHEMA = pa.schema(
    {
        "index": pa.int64(),
        "ids": pa.list_(pa.int32()),
        "ended": pa.bool_(),
        "log_p": pa.float64(),
    }
)
_ROWS_AT_ONCE = 1024
"""Sequences drawn and written together."""


@dataclass(frozen=True)
class Shard:
    """Consecutive sequences and their file."""

    path: Path
    indices: range

    def is_whole(self) -> bool:
        """Whether every row is there and can be read."""
        try:
            with pa.memory_map(str(self.path)) as file:
                table = pa.ipc.open_stream(file).read_all()
                if not table.schema.equals(SCHEMA):
                    return False
                found: list[int] = table["index"].to_pylist()
                return found == list(self.indices)
        except (OSError, pa.ArrowInvalid):
            return False

    def write(self, rows: Iterator[pa.RecordBatch]) -> None:
        """Write rows as they come; the file has its name when all are there."""
        partial = self.path.with_suffix(".partial")
        with (
            pa.OSFile(str(partial), "wb") as file,
            pa.ipc.new_stream(file, SCHEMA) as stream,
        ):
            for batch in rows:
                stream.write_batch(batch)
        partial.replace(self.path)


@dataclass(frozen=True)
class Corpus:
    """Sequences ``first`` .. ``first + num_sequences - 1`` of a seed.

    Corpora of one seed that share no number are independent of each other: train and
    test text, or a fresh sample an epoch.
    """

    directory: Path
    num_sequences: int
    first: int
    shard_size: int

    @classmethod
    def draw(
        cls,
        language: Language,
        directory: Path,
        num_sequences: int,
        *,
        seed: int = 0,
        first: int = 0,
        max_length: int = 128,
        shard_size: int = 10_000,
        quiet: bool = False,
    ) -> Self:
        """Draw a corpus, or what is still missing of it.

        Args:
            language: What to draw from.
            directory: Made if it is not there.
            num_sequences: How many.
            seed: Of the random numbers.
            first: The number of the first sequence.
            max_length: The most tokens of a sequence, its end included.
            shard_size: Sequences a file.
            quiet: Show no progress bar.

        Raises:
            ValueError: If a setting is impossible, or the directory is of others.
        """
        checked_length(max_length)
        for name, value, least in (
            ("num_sequences", num_sequences, 1),
            ("first", first, 0),
            ("shard_size", shard_size, 1),
        ):
            if value < least:
                raise ValueError(f"{name}={value}: expected at least {least}")
        settings = {
            "lm_latent_eval": lm_latent_eval.__version__,
            "language": language.settings(),
            "seed": seed,
            "first": first,
            "num_sequences": num_sequences,
            "max_length": max_length,
            "shard_size": shard_size,
        }
        claim(Path(directory), settings, KIND)
        if not (Path(directory) / SHARDS).exists():
            language.save(Path(directory))
            (Path(directory) / SHARDS).mkdir()
        corpus = cls(Path(directory), num_sequences, first, shard_size)
        with tqdm(total=num_sequences, unit=" sequences", disable=quiet) as bar:
            for shard in corpus.shards():
                if shard.is_whole():
                    bar.update(len(shard.indices))
                    continue
                shard.write(_rows(language, seed, shard.indices, max_length, bar))
        return corpus

    @classmethod
    def open(cls, directory: Path) -> Self:
        """Open a corpus that is whole.

        Raises:
            ValueError: If the folder is not of a corpus, or a shard is missing or cut
                short.
        """
        settings = read(Path(directory), KIND, having="shard_size")
        names = ("num_sequences", "first", "shard_size")
        corpus = cls(Path(directory), *(settings[name] for name in names))
        for shard in corpus.shards():
            if not shard.is_whole():
                raise ValueError(
                    f"{shard.path} is missing or cut short: draw the corpus again with "
                    "the same settings, which goes on where it was"
                )
        return corpus

    def shards(self) -> list[Shard]:
        """Return which file has which sequences."""
        indices = range(self.first, self.first + self.num_sequences)
        starts = range(0, self.num_sequences, self.shard_size)
        return [
            Shard(
                self.directory / SHARDS / f"{number:05}.arrow",
                indices[start : start + self.shard_size],
            )
            for number, start in enumerate(starts)
        ]

    def dataset(self) -> Dataset:
        """Return all rows, memory-mapped."""
        parts = [Dataset.from_file(str(shard.path)) for shard in self.shards()]
        return datasets.concatenate_datasets(parts)


def _rows(
    language: Language, seed: int, indices: range, max_length: int, bar: Any
) -> Iterator[pa.RecordBatch]:
    for start in range(0, len(indices), _ROWS_AT_ONCE):
        some = indices[start : start + _ROWS_AT_ONCE]
        sample = language.sample(seed, some, max_length)
        _check_possible(sample, some)
        columns = {
            "index": list(some),
            "ids": sample.sequences,
            "ended": [ids[-1] == language.end_id for ids in sample.sequences],
            "log_p": sample.log_p.tolist(),
        }
        yield pa.RecordBatch.from_pydict(columns, schema=SCHEMA)
        bar.update(len(some))


def _check_possible(sample: Sample, indices: range) -> None:
    """Raise where a language drew what it calls impossible."""
    wrong = (~sample.log_p.isfinite()).nonzero()[:, 0].tolist()
    if wrong:
        raise ValueError(
            f"sequence {indices[wrong[0]]} was drawn, but its log-probability is "
            f"{sample.log_p[wrong[0]].item()}"
        )
