"""Segmentations of texts into words and names, and their state between pieces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lm_latent_eval.devices import wide_zeros, widened
from lm_latent_eval.latent import NO_LATENT
from lm_latent_eval.models.lrlm.topics import Topics

WORD = 0
"""The source of a word that belongs to no name."""


class Readings(NamedTuple):
    """K readings of B texts: where every word comes from."""

    source: Tensor
    """``WORD``, or 1 + the naming that the word belongs to, (B, K, T)."""
    offset: Tensor
    """Which word of that name it is, (B, K, T)."""


class Everything(NamedTuple):
    """All readings of a text at once: a latent that has been summed out."""

    choice: Tensor = NO_LATENT
    """Nothing is left to choose, (B, K, 0)."""


@dataclass(frozen=True)
class RelationState:
    """Where B texts with K latents each have got to.

    A latent is H readings that have been summed, or one. All but the recurrent state is
    on the host.
    """

    carry: Any
    """The recurrent state; None before the first word."""
    topic: Tensor
    """0 where it is not known yet, (B, K, H)."""
    naming: Tensor
    """The name that is not at its end, -1 for none, (B, K, H)."""
    offset: Tensor
    """Which word of it comes next, (B, K, H)."""
    log_share: Tensor
    """Log of each one's share of its latent, (B, K, H) float64; ``-inf``: unused."""

    @classmethod
    def begin(cls, topic: Tensor) -> RelationState:
        """Return the state of texts of which nothing has been read, (B,)."""
        topic = topic[:, None, None]
        nothing = torch.zeros_like(topic)
        return cls(None, topic, nothing - 1, nothing, widened(nothing))

    def select(self, index: Tensor) -> RelationState:
        return self._picked(index, self.carry and self.carry.select(index))

    def resample(self, index: Tensor) -> RelationState:
        """Pick latents of each text, (B, K')."""
        texts = torch.arange(len(index))[:, None]
        return self._picked((texts, index), self.carry)

    def _picked(self, index: Any, carry: Any) -> RelationState:
        return RelationState(
            carry,
            self.topic[index],
            self.naming[index],
            self.offset[index],
            self.log_share[index],
        )

    @property
    def used(self) -> Tensor:
        """Which of them there are, (B, K, H) bool."""
        return self.log_share > -torch.inf

    def expanded(self, samples: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return topic, naming and offset of K single readings, (B, K) each."""
        if self.topic.shape[-1] != 1:
            raise ValueError("readings that have been summed cannot go on one by one")
        if self.topic.shape[1] not in (1, samples):
            raise ValueError(
                f"{self.topic.shape[1]} histories cannot continue in {samples} readings"
            )
        columns = (self.topic, self.naming, self.offset)
        topic, naming, offset = (c[..., 0].expand(-1, samples) for c in columns)
        return topic, naming, offset


def after_last(
    topics: Topics, carry: Any, topic: Tensor, source: Tensor, offset: Tensor
) -> RelationState:
    """Return the state after single readings, given where the last words come from.

    Args:
        topics: The namings.
        carry: The recurrent state.
        topic: What is known of the topic, (B, K).
        source: Of the last word, (B, K).
        offset: Of the last word, (B, K).
    """
    naming = source - 1
    length = topics.length(naming.clamp_min(0))
    going_on = (source != WORD) & (offset + 1 < length)
    columns = (
        topic,
        naming.masked_fill(~going_on, -1),
        (offset + 1).masked_fill(~going_on, 0),
        wide_zeros(topic.shape, topic.device),
    )
    return RelationState(carry, *(column[..., None] for column in columns))
