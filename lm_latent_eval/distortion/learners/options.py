"""Training options of learners; imports nothing heavy."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class TrainingOptions:
    """How to train; the defaults are those of LeBrun et al. (2022), section 3.3.

    Attributes:
        epochs: At most; all of them unless there is ``patience``.
        learning_rate: Of Adam (epsilon 1e-8, no weight decay), constant but halved at
            the end of every epoch whose validation loss is not below the lowest so far.
        batch_size: Sequences an update.
        micro_batch: Sequences computed together, where a batch does not fit into
            memory; moves numbers by rounding alone. None is all of them.
        max_grad_norm: Longer gradients are scaled to this norm; 0 leaves them. The
            paper names none; 1 is the default of the Trainer.
        patience: Stop after so many epochs without a new lowest validation loss.
        seed: Of the initial weights, the order of sequences and dropout.
        bf16: Compute in bfloat16 where autocast does; the weights stay float32, and
            so do all scores.
    """

    epochs: int
    learning_rate: float
    batch_size: int = 128
    micro_batch: int | None = None
    max_grad_norm: float = 1.0
    patience: int | None = None
    seed: int = 0
    bf16: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot train.

        Raises:
            ValueError: If there is such.
        """
        for name in ("epochs", "batch_size", "micro_batch", "patience"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value}: expected at least 1")
        if not 0 < self.learning_rate < float("inf"):
            raise ValueError(
                f"learning_rate={self.learning_rate}: expected more than 0"
            )
        if not self.max_grad_norm >= 0:
            raise ValueError(f"max_grad_norm={self.max_grad_norm}: expected at least 0")

    @property
    def computed_at_once(self) -> int:
        """Sequences computed together."""
        return min(self.batch_size, self.micro_batch or self.batch_size)

    def settings(self) -> dict[str, Any]:
        """Return what the result depends on; rounding apart, a micro-batch is not."""
        return {name: v for name, v in asdict(self).items() if name != "micro_batch"}
