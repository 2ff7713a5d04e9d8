"""Natural text as training data, for a model that becomes a language."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from lm_latent_eval.distortion.learners.sequences import TokenSequences
from lm_latent_eval.distortion.learners.token_ids import TokenIds
from lm_latent_eval.text.corpora import stream_texts

_TEXTS_AT_ONCE = 1000


@dataclass(frozen=True)
class TextData:
    """Natural text, a sequence a text: what a language is trained on.

    A text's tokens are followed by the end. A longer one than ``max_length`` is cut
    and has no end; how many are is said. Strings that look like special tokens are
    text. All ids are kept in memory, four bytes each.

    Attributes:
        path: JSON lines, or one text a line.
        vocabulary: Its tokenizer cuts the texts.
        max_length: The most tokens of a sequence, its end included.
        quiet: Do not say how many texts were cut.
    """

    path: Path
    vocabulary: TokenIds
    max_length: int = 128
    quiet: bool = False

    def __post_init__(self) -> None:
        """Check that there is something to read, and by what.

        Raises:
            ValueError: If not.
        """
        if not Path(self.path).is_file():
            raise ValueError(f"{self.path}: no such file")
        if self.vocabulary.tokenizer is None:
            raise ValueError(
                f"{self.vocabulary.owner} has no tokenizer to read text by"
            )
        if self.max_length < 1:
            raise ValueError(f"max_length={self.max_length}: expected at least 1")

    @property
    def num_sequences(self) -> int:
        return len(self._sequences)

    @property
    def repeated(self) -> None:
        """There is no corpus of known probabilities."""
        return None

    def sequences(self, epoch: int) -> TokenSequences:
        """Return the same ones in every epoch."""
        return self._sequences

    def clear(self) -> None:
        """Keep the file."""

    def drawn(self, epochs: int) -> None:
        """They are of no language of ours."""
        return None

    def settings(self) -> dict[str, Any]:
        """Return digests of file and tokenizer, begin, end and the maximum length."""
        with Path(self.path).open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()[:16]
        tokenizer: Any = self.vocabulary.tokenizer
        rules = hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode())
        return {
            "text": digest,
            "tokenizer": rules.hexdigest()[:16],
            "begin_id": self.vocabulary.begin_id,
            "end_id": self.vocabulary.end_id,
            "max_length": self.max_length,
        }

    @cached_property
    def _sequences(self) -> TokenSequences:
        arrays, num_cut = [], 0
        for ids, cut in self._encoded():
            arrays.append(pa.array(ids, pa.list_(pa.int32())))
            num_cut += cut
        sequences = TokenSequences.of(arrays)
        if num_cut and not self.quiet:
            print(
                f"{self.path}: {num_cut} of {len(sequences)} texts have more than "
                f"{self.max_length} tokens, their end included, and are cut",
                file=sys.stderr,
            )
        return sequences

    def _encoded(self) -> Iterator[tuple[list[list[int]], int]]:
        """Yield the ids of some texts, and how many of them were cut."""
        tokenizer: Any = self.vocabulary.tokenizer
        stream = stream_texts(self.path)
        while texts := list(islice(stream, _TEXTS_AT_ONCE)):
            try:
                rows = tokenizer(
                    texts,
                    add_special_tokens=False,
                    split_special_tokens=True,
                    return_attention_mask=False,
                    verbose=False,
                ).input_ids
            except Exception as err:  # the Rust library raises nothing narrower
                raise ValueError(
                    f"the tokenizer of {self.vocabulary.owner} cannot read "
                    f"{self.path} ({err})"
                ) from err
            ended = [[*row, self.vocabulary.end_id] for row in rows]
            cut = [row[: self.max_length] for row in ended]
            yield cut, sum(len(row) > self.max_length for row in ended)
