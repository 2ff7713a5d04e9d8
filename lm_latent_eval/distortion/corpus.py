"""Corpora: sequences of a language on disk, with their log-probabilities.

A folder holds ``settings.json`` (all that the sequences depend on; written last), what
the language saves (tokenizer, grammar) and ``sequences.arrow``, one row a sequence:

    index   int64          number of the sequence under the seed
    ids     list of int32  its tokens, the end included
    ended   bool           whether it has an end; else it was cut at the maximum length
    log_p   float64        nats under the language; of a cut one, that of its beginning
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import torch
from datasets import Dataset
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

import lm_latent_eval
from lm_latent_eval.distortion.languages.language import (
    Language,
    Sample,
    load_tokenizer,
)
from lm_latent_eval.files import replacing, write_text
from lm_latent_eval.ledger.settings import Settings, refuse_others
from lm_latent_eval.options import whole
from lm_latent_eval.text.files import read_json

SCHEMA = pa.schema(
    {
        "index": pa.int64(),
        "ids": pa.list_(pa.int32()),
        "ended": pa.bool_(),
        "log_p": pa.float64(),
    }
)
SETTINGS_FILE, SEQUENCES_FILE = "settings.json", "sequences.arrow"
_ROWS_AT_ONCE = 1024
"""Sequences drawn and written together."""


@dataclass(frozen=True)
class Corpus:
    """Sequences ``first`` .. ``first + num_sequences - 1`` of a seed.

    Corpora of one seed that share no number are independent of each other: train and
    test text, say.

    Attributes:
        directory: The folder.
        settings: Content of ``settings.json``.
    """

    directory: Path
    settings: Settings

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
        quiet: bool = False,
    ) -> Self:
        """Draw a corpus, unless it is there.

        Args:
            language: Distribution of the sequences.
            directory: Folder, made if it is not there.
            num_sequences: Number of sequences.
            seed: Seed of the random numbers.
            first: Number of the first sequence.
            max_length: Maximum tokens of a sequence, its end included.
            quiet: Show no progress bar.

        Raises:
            ValueError: If a setting is impossible, or the directory has a corpus of
                other settings.
        """
        whole("max_length", max_length, 1)
        whole("num_sequences", num_sequences, 1)
        whole("first", first, 0, 2**63 - 1 - num_sequences)  # int64, see above
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
        }
        corpus = cls(Path(directory), settings)
        if (corpus.directory / SETTINGS_FILE).exists():
            drawn = cls.open(directory).settings
            refuse_others(corpus.directory, drawn, settings, "corpus")
        else:
            corpus._write(language, quiet)
        return corpus

    @classmethod
    def open(cls, directory: Path) -> Self:
        """Open a folder.

        Raises:
            ValueError: If it is of something else, or its sequences are not those that
                it names.
        """
        directory = Path(directory)
        path = directory / SETTINGS_FILE
        try:
            settings = read_json(path)
            for name in ("num_sequences", "vocab_size", "max_length"):
                whole(name, settings.get(name), 1)
            for name in ("language", "seed", "first", "begin_id", "end_id"):
                if name not in settings:
                    raise ValueError(f"it names no {name}")
        except FileNotFoundError as err:
            raise ValueError(f"{path} is missing: no corpus is there") from err
        except (OSError, ValueError, AttributeError) as err:
            raise ValueError(f"{path} is not the settings of a corpus ({err})") from err
        corpus, data = cls(directory, settings), directory / SEQUENCES_FILE
        try:
            numbers = corpus._table["index"]
        except (OSError, pa.ArrowInvalid, KeyError) as err:
            raise ValueError(f"{data} is missing or damaged ({err})") from err
        if len(numbers) != corpus.num_sequences:
            raise ValueError(
                f"{data} has {len(numbers)} sequences, and {path} names "
                f"{corpus.num_sequences}: draw the corpus again"
            )
        return corpus

    @property
    def num_sequences(self) -> int:
        return int(self.settings["num_sequences"])

    @property
    def begin_id(self) -> int:
        return int(self.settings["begin_id"])

    @property
    def end_id(self) -> int:
        return int(self.settings["end_id"])

    @property
    def max_length(self) -> int:
        """Maximum tokens of a sequence, its end included."""
        return int(self.settings["max_length"])

    @property
    def indices(self) -> range:
        first = int(self.settings["first"])
        return range(first, first + self.num_sequences)

    def tokenizer(self) -> PreTrainedTokenizerBase | None:
        """Load the tokenizer; None where the language has none."""
        return load_tokenizer(self.directory)

    def alphabet(self) -> list[int]:
        """Return the tokens that sequences are made of: no begin, end or padding."""
        special = {self.begin_id, self.end_id}
        if tokenizer := self.tokenizer():
            special |= {*tokenizer.all_special_ids}
        return [t for t in range(self.settings["vocab_size"]) if t not in special]

    def dataset(self) -> Dataset:
        return Dataset.from_file(str(self.directory / SEQUENCES_FILE))

    def read(self, indices: range) -> Sample:
        """Return sequences by their numbers."""
        first = self.indices.start
        table = self._table[indices.start - first : indices.stop - first]
        log_p = torch.from_numpy(table["log_p"].to_numpy().copy())
        return Sample(table["ids"].to_pylist(), log_p)

    @cached_property
    def _table(self) -> Dataset:
        return self.dataset().with_format("arrow")

    def _write(self, language: Language, quiet: bool) -> None:
        batches = self._drawn(language)
        first = next(batches)  # a first error leaves no folder
        self.directory.mkdir(parents=True, exist_ok=True)
        language.save(self.directory)
        with (
            tqdm(
                total=self.num_sequences, unit=" sequences", leave=False, disable=quiet
            ) as bar,
            replacing(self.directory / SEQUENCES_FILE) as partial,
            pa.OSFile(str(partial), "wb") as file,
            pa.ipc.new_stream(file, SCHEMA) as stream,
        ):
            for batch in chain([first], batches):
                stream.write_batch(batch)
                bar.update(len(batch))
        text = json.dumps(self.settings, indent=2)
        write_text(self.directory / SETTINGS_FILE, text + "\n")

    def _drawn(self, language: Language) -> Iterator[pa.RecordBatch]:
        for start in range(0, self.num_sequences, _ROWS_AT_ONCE):
            indices = self.indices[start : start + _ROWS_AT_ONCE]
            sample = language.sample(self.settings["seed"], indices, self.max_length)
            wrong = (~sample.log_p.isfinite()).nonzero()[:, 0].tolist()
            if wrong:
                raise ValueError(
                    f"sequence {indices[wrong[0]]} was drawn, but its log-probability "
                    f"is {sample.log_p[wrong[0]].item()}"
                )
            columns = {
                "index": list(indices),
                "ids": sample.sequences,
                "ended": [ids[-1] == self.end_id for ids in sample.sequences],
                "log_p": sample.log_p.tolist(),
            }
            yield pa.RecordBatch.from_pydict(columns, schema=SCHEMA)


class End(StrEnum):
    """How requests express that a sequence has ended."""

    WRITTEN = "written"
    """The string of the end token is the last of the text, the begin token's its
    context: for models that read both as tokens (``hf``)."""

    IMPLIED = "implied"
    """A rolling log-likelihood counts the end by itself: for models of whole texts
    (``latent_...``, ``kenlm``), which have no probability for a beginning."""


def as_texts(corpus: Corpus, end: End) -> Dataset:
    """Write sequences as texts, those that can be read back.

    A text stands for one sequence only if the tokenizer cuts it into that sequence's
    tokens. A byte-pair encoding need not: a language may utter two tokens where the
    encoding has one for both.

    Args:
        corpus: The sequences.
        end: Strings that are part of a text.

    Returns:
        A row a sequence: ``index``, ``begin`` (context), ``text`` and ``true_log_p`` in
        nats.

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

    before = [corpus.begin_id] if end is End.WRITTEN else []
    begin = written(before) if before else ""
    columns: dict[str, list[Any]] = defaultdict(list)
    for rows in corpus.dataset().iter(batch_size=_ROWS_AT_ONCE):
        scored = [ids[:-1] if end is End.IMPLIED else ids for ids in rows["ids"]]
        texts = [written(ids) if ids else "" for ids in scored]
        encoded = tokenizer([begin + text for text in texts], add_special_tokens=False)
        for row, ids in enumerate(encoded["input_ids"]):
            whole = end is End.WRITTEN or rows["ended"][row]
            # To models of sentences no words are no sentence, whatever its end costs.
            if whole and texts[row] and ids == before + scored[row]:
                columns["index"].append(rows["index"][row])
                columns["begin"].append(begin)
                columns["text"].append(texts[row])
                columns["true_log_p"].append(rows["log_p"][row])
    if not columns:
        raise ValueError(
            f"{corpus.directory}: none of {corpus.num_sequences} sequences is what its "
            "tokenizer makes of the sequence's text, so lm-eval cannot ask for them. "
            "Is it the tokenizer of this language?"
        )
    return Dataset.from_dict(columns)
