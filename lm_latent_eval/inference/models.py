"""Protocols of models and proposals as estimators use them.

Nobody looks into what they make of a batch: of a model it is a ``P``, of its proposal a
``Q``, and neither gets the other's.
"""

from __future__ import annotations

from typing import Protocol, TypeAlias, TypeVar

from torch import Tensor

from lm_latent_eval.latent import (
    EncodedT,
    Latents,
    Searches,
    State,
    UnfoldingLM,
    UnfoldingProposal,
    Uniforms,
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

    def next_token(self, encoded: P, log_w: Tensor, uniforms: Uniforms, /) -> Tensor:
        """See ``NextToken``."""
        ...


def searching(proposal: Sampler[Q]) -> Searches[Q, Latents]:
    """Return a proposal as what lists and ranks latents.

    Raises:
        ValueError: If it does not.
    """
    if isinstance(proposal, Searches):
        return proposal
    raise ValueError(
        f"the proposal {proposal.name!r} has no beam: its latents can be drawn, and "
        "neither listed nor ranked. Use is, smc or ais"
    )
