"""Samples of a language on disk, in Arrow shards that can be resumed.

A folder holds ``settings.json`` (all that the sequences depend on), what the language
saves (tokenizer, grammar) and ``shards/00000.arrow``, ..., with a row a sequence:

    index   int64          its number under the seed
    ids     list of int32  its tokens, the end included
    ended   bool           whether it has one; else it was cut at the maximum length
    log_p   float64        nats under the language; of a cut one, that of its beginning
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pyarrow as pa
import torch
from datasets import Dataset
from torch import Tensor
from transformers import PreTrainedTokenizerBase

import lm_latent_eval
from lm_latent_eval.distortion.languages.language import (
    Language,
    Sample,
    checked_length,
)
from lm_latent_eval.distortion.languages.tokenizer import load_tokenizer
from lm_latent_eval.distortion.shards import SHARDS, Shards
from lm_latent_eval.ledger.files import SETTINGS_FILE, going_on, read
from lm_latent_eval.ledger.settings import Settings

KIND = "corpus"
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
class Corpus:
    """Sequences ``first`` .. ``first + num_sequences - 1`` of a seed.

    Corpora of one seed that share no number are independent of each other: train and
    test text, or a fresh sample an epoch.
    """

    directory: Path
    settings: Settings
    """All that the sequences depend on, as ``settings.json`` has it."""

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
            "begin_id": language.begin_id,
            "end_id": language.end_id,
            "vocab_size": language.vocab_size,
            "seed": seed,
            "first": first,
            "num_sequences": num_sequences,
            "max_length": max_length,
            "shard_size": shard_size,
        }
        if not (Path(directory) / SETTINGS_FILE).exists():
            # What cannot be drawn has no folder.
            language.sample(seed, [first], max_length)
        corpus = cls(Path(directory), settings)

        def rows(indices: range) -> pa.RecordBatch:
            return _rows(language, seed, indices, max_length)

        with going_on(corpus.directory, settings, KIND, "whole shards"):
            if not (corpus.directory / SHARDS).exists():
                language.save(corpus.directory)
            corpus.shards().fill(rows, _ROWS_AT_ONCE, quiet=quiet)
        return corpus

    @classmethod
    def open(cls, directory: Path) -> Self:
        """Open a corpus that is whole.

        Raises:
            ValueError: If the folder is not of a corpus, or a shard is missing or cut
                short.
        """
        settings = read(Path(directory), KIND, having="shard_size")
        corpus = cls(Path(directory), settings)
        corpus.shards().check(
            "draw the corpus again with the same settings, which goes on where it was"
        )
        return corpus

    @property
    def num_sequences(self) -> int:
        return int(self.settings["num_sequences"])

    @property
    def end_id(self) -> int:
        return int(self.settings["end_id"])

    @property
    def max_length(self) -> int:
        """The most tokens of a sequence, its end included."""
        return int(self.settings["max_length"])

    @property
    def indices(self) -> range:
        first = int(self.settings["first"])
        return range(first, first + self.num_sequences)

    def shards(self) -> Shards:
        """Return which file has which sequences."""
        size = int(self.settings["shard_size"])
        return Shards(self.directory, SCHEMA, self.indices, size)

    def tokenizer(self) -> PreTrainedTokenizerBase | None:
        """Load what decodes the ids; None where the language came without."""
        return load_tokenizer(self.directory)

    def alphabet(self) -> list[int]:
        """Return the tokens that sequences are made of: no begin, end or padding."""
        special = {int(self.settings["begin_id"]), self.end_id}
        if tokenizer := self.tokenizer():
            special |= {*tokenizer.all_special_ids}
        return [t for t in range(self.settings["vocab_size"]) if t not in special]

    def dataset(self) -> Dataset:
        """Return all rows, memory-mapped."""
        return self.shards().dataset()

    def reader(self) -> Callable[[range], Sequences]:
        """Return what reads sequences by their numbers."""
        dataset = self.dataset().with_format("arrow")
        first = self.indices.start

        def read(indices: range) -> Sequences:
            table = dataset[indices.start - first : indices.stop - first]
            return Sequences(
                ids=table["ids"].to_pylist(),
                ended=torch.from_numpy(table["ended"].to_numpy().copy()),
                log_p=torch.from_numpy(table["log_p"].to_numpy().copy()),
            )

        return read


@dataclass(frozen=True)
class Sequences:
    """Some sequences of a corpus."""

    ids: list[list[int]]
    ended: Tensor
    log_p: Tensor


def _rows(
    language: Language, seed: int, indices: range, max_length: int
) -> pa.RecordBatch:
    sample = language.sample(seed, indices, max_length)
    _check_possible(sample, indices)
    columns = {
        "index": list(indices),
        "ids": sample.sequences,
        "ended": [ids[-1] == language.end_id for ids in sample.sequences],
        "log_p": sample.log_p.tolist(),
    }
    return pa.RecordBatch.from_pydict(columns, schema=SCHEMA)


def _check_possible(sample: Sample, indices: range) -> None:
    """Raise where a language drew what it calls impossible."""
    wrong = (~sample.log_p.isfinite()).nonzero()[:, 0].tolist()
    if wrong:
        raise ValueError(
            f"sequence {indices[wrong[0]]} was drawn, but its log-probability is "
            f"{sample.log_p[wrong[0]].item()}"
        )
