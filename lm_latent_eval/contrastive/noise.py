"""The noise channel over strings and data sets: its units and its substitutes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from lm_latent_eval import manifest
from lm_latent_eval.text.corpora import read_texts
from lm_latent_eval.text.files import read_json
from lm_latent_eval.text.noise import NoiseChannel
from lm_latent_eval.text.words import WordTokenizer

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase


def distinct_words(texts: Iterable[str]) -> list[str]:
    """Return the words of texts, cut at white space, each once, in alphabetical order.

    Example:
        >>> distinct_words(["a plum", "a river"])
        ['a', 'plum', 'river']
    """
    return sorted({word for text in texts for word in text.split()})


def read_vocabulary(path: Path) -> list[str]:
    """Read the words of a training text, or those that a checkpoint can utter.

    Args:
        path: A text file (``read_texts``), or the directory of one of our checkpoints.

    Raises:
        ValueError: If there is neither, or the checkpoint's tokens are not words.
    """
    path = Path(path)
    if path.is_dir():
        return _uttered(path)
    if not path.is_file():
        raise ValueError(
            f"{path}: no such file; expected a training text or a checkpoint directory"
        )
    return distinct_words(read_texts(path))


def _uttered(directory: Path) -> list[str]:
    try:
        config = read_json(directory / "config.json")
        tokenizer = WordTokenizer.load(directory, int(config["vocab_size"]))
    except (OSError, KeyError, TypeError, ValueError) as err:
        raise ValueError(
            f"{directory} is not a checkpoint of words ({err}): name a training text, "
            "or distort its tokens themselves"
        ) from err
    manifest.verify(directory)
    return tokenizer.vocabulary


T = TypeVar("T")

_WORD = re.compile(r"(\S+)")


class Units(Protocol[T]):
    """A way to cut strings, and to write other units in the same places."""

    def cut(self, text: str) -> list[T]:
        """Return the units of a string."""
        ...

    def paste(self, units: Sequence[T], text: str) -> str:
        """Write as many units as a string has in the place of its own."""
        ...


class WhiteSpaceWords:
    """Words are what stands between white space, which stays as it is.

    Example:
        >>> words = WhiteSpaceWords()
        >>> words.cut(" a  plum. ")
        ['a', 'plum.']
        >>> words.paste(["two", "rivers"], " a  plum. ")
        ' two  rivers '
    """

    name = "words at white space"

    def cut(self, text: str) -> list[str]:
        """Return the words of a string."""
        return _WORD.findall(text)

    def paste(self, units: Sequence[str], text: str) -> str:
        """Write as many words as a string has, with its own white space.

        Raises:
            ValueError: If there are more or fewer.
        """
        gaps = _WORD.split(text)[::2]
        if len(units) != len(gaps) - 1:
            raise ValueError(
                f"{text[:40]!r} has {len(gaps) - 1} words; got {len(units)} to put in "
                "their places"
            )
        pieces = [piece for pair in zip(gaps, units, strict=False) for piece in pair]
        return "".join([*pieces, gaps[-1]])


class Tokens:
    """Token ids of a Hugging Face tokenizer, without the special ones.

    As many tokens leave the channel as entered it, but what they spell may be cut
    otherwise when it is read again, and bytes that are no character become U+FFFD: to
    score a distorted string is not to score these ids.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer

    @property
    def name(self) -> str:
        return f"tokens of {self.tokenizer.name_or_path}"

    @property
    def vocabulary(self) -> list[int]:
        """Every id but the special ones."""
        ids = set(self.tokenizer.get_vocab().values())
        return sorted(ids - set(self.tokenizer.all_special_ids))

    def cut(self, text: str) -> list[int]:
        """Return the ids of a string.

        Raises:
            ValueError: If they do not spell that string: it would be distorted by the
                tokenizer as well.
        """
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        spelled = self.paste(ids, text)
        if spelled != text:
            raise ValueError(
                f"{self.name} turn {text[:40]!r} into {spelled[:40]!r}: distort words "
                "at white space instead, or take a tokenizer that loses nothing"
            )
        return ids

    def paste(self, units: Sequence[int], text: str) -> str:
        """Write token ids as a string; nothing is left of the one before."""
        return str(
            self.tokenizer.decode(list(units), clean_up_tokenization_spaces=False)
        )


@dataclass(frozen=True)
class TextNoise(Generic[T]):
    """Distorts strings; a callable for ``datasets.map`` over batches with indices.

    What leaves for a record follows from the seed, the record's number in its data set
    and the replicate: batches, shards and the number of processes change nothing.

    Attributes:
        channel: Noise channel over the units of a string.
        units: Kind of the units; the channel's vocabulary is of the same kind.
        seed: Seed of the noise.
        replicate: Index of the independent distorted copy that data sets become.
        column: Column of the strings.

    Example:
        >>> from datasets import Dataset
        >>> from lm_latent_eval.contrastive.noise import WhiteSpaceWords
        >>> channel = NoiseChannel(0.25, 0.25, ["plum", "river"])
        >>> noise = TextNoise(channel, WhiteSpaceWords())
        >>> texts = Dataset.from_list([{"text": "She sold her house."}])
        >>> noise.process_docs(texts)["text"][0]
        'She sold plum house.'
    """

    channel: NoiseChannel[T]
    units: Units[T]
    seed: int = 0
    replicate: int = 0
    column: str = "text"

    def distort(self, text: str, name: str | int, replicate: int = 0) -> str:
        """Return a string as it leaves the channel.

        Args:
            text: The string; one without units stays as it is.
            name: Name that no other string has, such as its index.
            replicate: Index of the independent distorted copy.
        """
        noisy = self.channel.distort(
            self.units.cut(text), seed=self.seed, name=name, replicate=replicate
        )
        return self.units.paste(noisy, text)

    def __call__(
        self, records: Mapping[str, Sequence[Any]], indices: Sequence[int]
    ) -> dict[str, list[str]]:
        """Distort a batch: ``dataset.map(noise, batched=True, with_indices=True)``."""
        texts = records[self.column]
        return {
            self.column: [
                self.distort(text, index, self.replicate)
                for text, index in zip(texts, indices, strict=True)
            ]
        }

    def process_docs(self, dataset: Dataset) -> Dataset:
        """Distort a whole data set; what a task's YAML calls ``process_docs``."""
        return dataset.map(self, batched=True, with_indices=True)
