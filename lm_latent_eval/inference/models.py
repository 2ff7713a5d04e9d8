"""Models and proposals as estimators ask them.

Nobody looks into what they make of a batch: of a model it is a ``P``, of its proposal a
``Q``, and neither gets the other's.
"""

from __future__ import annotations

from typing import Protocol, TypeAlias, TypeVar

from torch import Tensor

from lm_latent_eval.latent import (
    EncodedT,
    Latents,
    State,
    UnfoldingLM,
    UnfoldingProposal,
)
from lm_latent_eval.text.batch import TokenBatch

P = TypeVar("P")
Q = TypeVar("Q")

LM: TypeAlias = UnfoldingLM[TokenBatch, EncodedT, Latents]
Sampler: TypeAlias = UnfoldingProposal[TokenBatch, EncodedT, Latents]


class Predicts(Protocol[P]):
    """A left-to-right model that predicts the next token."""

    def encode(self, batch: TokenBatch, after: State | None = None, /) -> P:
        """See ``LeftToRight``."""
        ...

    def next_token(self, encoded: P, log_w: Tensor, /) -> Tensor:
        """See ``NextToken``."""
        ...
