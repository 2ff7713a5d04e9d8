"""What the tools need of a model that learned a language: log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from lm_latent_eval.estimators import Bound


@dataclass(frozen=True)
class ScoredSequences:
    """Log-probabilities of sequences under a model."""

    log_p: Tensor
    """Nats, shape (n,), float64; ``-inf`` where the model rules a sequence out."""
    stderr: Tensor
    """Error of each as its draws tell it, shape (n,); 0 where it is exact."""


class Learner(Protocol):
    """A model of token sequences, the end included where a sequence has one."""

    @property
    def bound(self) -> Bound:
        """On which side of the truth its numbers are expected."""
        ...

    def score(
        self, indices: Sequence[int], sequences: Sequence[Sequence[int]]
    ) -> ScoredSequences:
        """Score sequences.

        Args:
            indices: Their numbers, which random numbers of an estimate follow from.
            sequences: Token ids of the language, as a corpus has them.

        Raises:
            ValueError: If a sequence cannot be scored.
        """
        ...

    def settings(self) -> dict[str, Any]:
        """Return what its numbers depend on, for a JSON file."""
        ...
