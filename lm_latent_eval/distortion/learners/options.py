"""Training options of learners, and the history of a training; without torch."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

from lm_latent_eval.files import write_text
from lm_latent_eval.options import OptionTable, at_least_0, option, positive, whole
from lm_latent_eval.text.files import read_text
from lm_latent_eval.text.strict_json import parse
from lm_latent_eval.training.options import LARGEST

MOST_SEED = 2**32 - 1
"""What NumPy takes; transformers refuses others when there is a folder already."""


@dataclass(frozen=True)
class TrainingOptions(OptionTable):
    """How to train; the defaults are those of LeBrun et al. (2022), section 3.3.

    Attributes:
        epochs: How many; the weights are those after the best one.
        learning_rate: Of Adam (epsilon 1e-8, no weight decay), constant but halved at
            the end of every epoch whose validation loss is not below the lowest so far.
        batch_size: Sequences an update.
        micro_batch: Sequences computed together, where a batch does not fit into
            memory; moves numbers by rounding alone.
        max_grad_norm: Longer gradients are scaled to this norm; 0 leaves them. LeBrun
            et al. name none; 1 is that of transformers.
        seed: Of the initial weights, the order of sequences and dropout.
        bf16: Compute in bfloat16 where autocast does; the weights stay float32, and
            so do all scores.
    """

    epochs: int
    learning_rate: float
    batch_size: int = 128
    micro_batch: int | None = option(None, unset="all of them")
    max_grad_norm: float = option(1.0, at_least_0)
    seed: int = 0
    bf16: bool = False

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "micro_batch"):
            value = getattr(self, name)
            if value is not None:
                whole(name, value, 1, 2**31 - 1)
        whole("seed", self.seed, 0, MOST_SEED)
        if positive("learning_rate", self.learning_rate) > LARGEST:
            raise ValueError(
                f"learning_rate={self.learning_rate}: expected at most {LARGEST:g}"
            )
        at_least_0("max_grad_norm", self.max_grad_norm)

    @property
    def computed_at_once(self) -> int:
        """Sequences computed together."""
        return min(self.batch_size, self.micro_batch or self.batch_size)

    def settings(self) -> dict[str, Any]:
        """Return what the result depends on; rounding apart, a micro-batch is not."""
        return {name: v for name, v in asdict(self).items() if name != "micro_batch"}


HISTORY_FILE = "history.jsonl"


@dataclass(frozen=True)
class Epoch:
    """One pass over the training data, and the model after it."""

    epoch: int
    """From 1 on."""
    train_nats_per_token: float
    """Over the epoch, with dropout, while the weights moved."""
    dev_nats_per_token: float
    """Exact, with the weights after the epoch."""
    learning_rate: float
    """During the epoch."""
    sequences_seen: int
    """Since the beginning."""
    updates: int
    """Since the beginning."""
    seconds: float
    """Of the epoch, its data and all scores included."""

    @property
    def dev_perplexity(self) -> float:
        """Perplexity per token of the validation data."""
        return math.exp(self.dev_nats_per_token)


@dataclass(frozen=True)
class History:
    """The epochs of a training run, in order."""

    epochs: tuple[Epoch, ...]

    @classmethod
    def of(cls, records: Iterable[Mapping[str, Any]]) -> Self:
        """Take the epochs among records, whose further entries do not count.

        Raises:
            KeyError: If an epoch lacks an entry.
            TypeError: If one is no number.
        """
        names = [field.name for field in fields(Epoch)]
        epochs = []
        for record in records:
            if "dev_nats_per_token" in record:
                values = {name: record[name] for name in names}
                for name, value in values.items():
                    if type(value) not in (int, float):
                        raise TypeError(f"{name} is {value!r:.60}")
                epochs.append(Epoch(**values))
        return cls(tuple(epochs))

    @classmethod
    def read(cls, directory: Path) -> Self:
        """Read the file of a folder.

        Raises:
            ValueError: If it is missing or damaged.
        """
        path = Path(directory) / HISTORY_FILE
        try:
            lines = read_text(path).splitlines()
            found = cls.of(parse(line, infinities=True) for line in lines)
            if not found.epochs:
                raise ValueError("it has no epochs")
            return found
        except (OSError, ValueError, KeyError, TypeError) as err:
            raise ValueError(
                f"{path} is not the history of a training ({err})"
            ) from err

    def write(self, directory: Path) -> None:
        """Write the file of a folder, as a whole."""
        rows = [
            asdict(epoch)
            | {"dev_perplexity": epoch.dev_perplexity, "best": epoch == self.best}
            for epoch in self.epochs
        ]
        lines = "".join(f"{json.dumps(row)}\n" for row in rows)
        write_text(directory / HISTORY_FILE, lines)

    @property
    def best(self) -> Epoch:
        """The first epoch of the lowest validation loss."""
        return min(self.epochs, key=lambda epoch: epoch.dev_nats_per_token)
