"""Samples of a language on disk, in Arrow shards that can be resumed.

A folder holds ``settings.json`` (all that the sequences depend on), what the language
saves (tokenizer, grammar) and ``shards/00000.arrow``, ..., with a row a sequence:

    index   int64          its number under the seed
    ids     list of int32  its tokens, the end included
    ended   bool           whether it has one; else it was cut at the maximum length
    log_p   float64        nats under the language; of a cut one, that of its beginning

Here too: its sequences as strings, and whether others use the same token ids.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import torch
from datasets import Dataset, concatenate_datasets
from transformers import PreTrainedTokenizerBase

from lm_latent_eval.distortion.columns import ShardFolder
from lm_latent_eval.distortion.languages.language import (
    Language,
    Sample,
    load_tokenizer,
)
from lm_latent_eval.options import whole

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


class Corpus(ShardFolder):
    """Sequences ``first`` .. ``first + num_sequences - 1`` of a seed.

    Corpora of one seed that share no number are independent of each other: train and
    test text, or a fresh sample an epoch.
    """

    kind = "corpus"
    schema = SCHEMA
    counts = ("vocab_size", "max_length")
    named = ("language", "seed", "begin_id", "end_id")
    remedy = "draw the corpus again"

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
        whole("max_length", max_length, 1)
        whole("num_sequences", num_sequences, 1)
        whole("first", first, 0, 2**63 - 1 - num_sequences)  # int64, see above
        whole("shard_size", shard_size, 1)
        settings = {
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
        return cls.fill(
            directory,
            settings,
            lambda some: _rows(language, seed, some, max_length),
            at_once=_ROWS_AT_ONCE,
            quiet=quiet,
            begin=language.save,
        )

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
        parts = [Dataset.from_file(str(path)) for path, _ in self.shards()]
        return concatenate_datasets(parts)

    def read(self, indices: range) -> Sample:
        """Return sequences by their numbers, as they were drawn."""
        first = self.indices.start
        table = self._table[indices.start - first : indices.stop - first]
        log_p = torch.from_numpy(table["log_p"].to_numpy().copy())
        return Sample(table["ids"].to_pylist(), log_p)

    @cached_property
    def _table(self) -> Dataset:
        return self.dataset().with_format("arrow")


def _rows(
    language: Language, seed: int, indices: range, max_length: int
) -> pa.RecordBatch:
    sample = language.sample(seed, indices, max_length)
    wrong = (~sample.log_p.isfinite()).nonzero()[:, 0].tolist()
    if wrong:
        raise ValueError(
            f"sequence {indices[wrong[0]]} was drawn, but its log-probability is "
            f"{sample.log_p[wrong[0]].item()}"
        )
    columns = {
        "index": list(indices),
        "ids": sample.sequences,
        "ended": [ids[-1] == language.end_id for ids in sample.sequences],
        "log_p": sample.log_p.tolist(),
    }
    return pa.RecordBatch.from_pydict(columns, schema=SCHEMA)


class End(StrEnum):
    """How requests express that a sequence has ended."""

    WRITTEN = "written"
    """The string of the end token is the last of the text, the begin token's its
    context: for models that read both as tokens (``hf``)."""

    IMPLIED = "implied"
    """A rolling log-likelihood counts the end by itself: for models of whole texts
    (``latent_...``, ``kenlm``)."""


def as_texts(corpus: Corpus, end: End) -> Dataset:
    """Write sequences as texts, those that can be read back.

    A text stands for one sequence only if the tokenizer cuts it into that sequence's
    tokens. A byte-pair encoding need not: a language may utter two tokens where the
    encoding has one for both.

    Args:
        corpus: The sequences.
        end: What is part of a text.

    Returns:
        A row a sequence: ``index``, ``begin`` (context), ``text``, ``ended`` and
        ``true_log_p`` in nats.

    Raises:
        ValueError: If the corpus has no tokenizer, or nothing can be read back.
    """
    tokenizer = corpus.tokenizer()
    if tokenizer is None:
        raise ValueError(
            f"{corpus.directory} has no tokenizer, so its sequences have no texts that "
            "a model could be asked for: sample from a language that has one"
        )

    def written(ids: list[int]) -> str:
        return str(tokenizer.decode(ids, clean_up_tokenization_spaces=False))

    before = [int(corpus.settings["begin_id"])] if end is End.WRITTEN else []
    begin = written(before) if before else ""
    columns: dict[str, list[Any]] = defaultdict(list)
    for rows in corpus.dataset().iter(batch_size=_ROWS_AT_ONCE):
        asked = [
            ids[:-1] if ended and end is End.IMPLIED else ids
            for ids, ended in zip(rows["ids"], rows["ended"], strict=True)
        ]
        texts = [written(ids) if ids else "" for ids in asked]
        encoded = tokenizer([begin + text for text in texts], add_special_tokens=False)
        for place, found in enumerate(encoded["input_ids"]):
            # To models of sentences no words are no sentence, whatever its end costs.
            if texts[place] and found == before + asked[place]:
                columns["index"].append(rows["index"][place])
                columns["begin"].append(begin)
                columns["text"].append(texts[place])
                columns["ended"].append(rows["ended"][place])
                columns["true_log_p"].append(rows["log_p"][place])
    if not columns:
        raise ValueError(
            f"{corpus.directory}: none of {corpus.num_sequences} sequences is what its "
            "tokenizer makes of the sequence's text, so lm-eval cannot ask for them. "
            "Is it the tokenizer of this language?"
        )
    return Dataset.from_dict(columns)


@dataclass(frozen=True)
class TokenIds:
    """Token ids with the tokens that they stand for.

    Attributes:
        owner: Whose they are, for messages.
        size: How many ids there are.
        begin_id: What a sequence follows.
        end_id: What it ends with.
        tokenizer: None where ids have no strings.
    """

    owner: str
    size: int
    begin_id: int
    end_id: int
    tokenizer: PreTrainedTokenizerBase | None

    @classmethod
    def of(cls, corpus: Corpus) -> Self:
        """Return that of a corpus."""
        names = ("vocab_size", "begin_id", "end_id")
        size, begin_id, end_id = (int(corpus.settings[name]) for name in names)
        return cls(str(corpus.directory), size, begin_id, end_id, corpus.tokenizer())

    def check(self, other: TokenIds) -> None:
        """Raise unless the ids of another vocabulary stand for the same tokens.

        Where the ids of this one have no strings, only the numbers compare.

        Raises:
            ValueError: If they do not; names the first id that differs.
        """
        if other.size != self.size:
            raise ValueError(
                f"{other.owner} has {other.size} token ids and {self.owner} has "
                f"{self.size}: probabilities compare between models of one tokenizer "
                "only"
            )
        ours, theirs = (self.begin_id, self.end_id), (other.begin_id, other.end_id)
        if ours != theirs:
            raise ValueError(
                f"sequences begin and end with the tokens {theirs} in {other.owner} "
                f"and {ours} in {self.owner}"
            )
        if self.tokenizer is None:
            return
        if other.tokenizer is None:
            raise ValueError(
                f"{other.owner} has no tokenizer to compare with that of {self.owner}: "
                "save the one it was trained with beside it"
            )
        own, found = (
            {id_: token for token, id_ in tokenizer.get_vocab().items()}
            for tokenizer in (self.tokenizer, other.tokenizer)
        )
        for id_ in sorted(own | found):
            if own.get(id_) != found.get(id_):
                raise ValueError(
                    f"token {id_} is {found.get(id_)!r} for {other.owner} and "
                    f"{own.get(id_)!r} for {self.owner}: they have other tokenizers"
                )
