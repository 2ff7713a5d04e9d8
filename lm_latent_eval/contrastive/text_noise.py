"""The noise channel over strings, data sets and ``process_docs`` of a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from lm_latent_eval.contrastive.units import Units
from lm_latent_eval.text.noise import NoiseChannel

if TYPE_CHECKING:
    from datasets import Dataset

T = TypeVar("T")


@dataclass(frozen=True)
class TextNoise(Generic[T]):
    """Distorts strings; a callable for ``datasets.map`` over batches with indices.

    What leaves for a record follows from the seed, the record's number in its data set
    and the replicate: batches, shards and the number of processes change nothing.

    Attributes:
        channel: What happens to the units of a string.
        units: What they are; the channel's vocabulary is of the same kind.
        seed: Of the noise.
        replicate: Which of the independent distorted copies data sets become.
        column: Which column holds the strings.

    Example:
        >>> from datasets import Dataset
        >>> from lm_latent_eval.contrastive.units import WhiteSpaceWords
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
            name: What tells it from every other: its number, say.
            replicate: Which of the independent distorted copies.
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
