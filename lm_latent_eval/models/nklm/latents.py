"""Copy latents of words, tables of facts and names, and the state of a text."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lm_latent_eval.devices import sent
from lm_latent_eval.models.lrlm.topics import PAD, Topics
from lm_latent_eval.models.recurrent import Carry
from lm_latent_eval.text.batch import TokenBatch


@dataclass(frozen=True)
class Tables:
    """Embeddings of facts and names; their indices are on the host."""

    topics: Topics
    fact: Tensor
    """Vectors of no fact, and of every fact, (F + 1, 2 * fact_dim)."""
    alias: Tensor
    knowledge: Tensor | None
    """Knowledge vectors of no topic and of each, (N + 1, ...)."""

    @cached_property
    def cells(self) -> tuple[Tensor, Tensor, Tensor]:
        """Every word of every naming: key, naming, offset.

        Sorted by the key, which is word * (num_topics + 1) + topic.
        """
        topics = self.topics
        words = topics.alias_words[topics.naming_alias]
        naming, offset = (words != PAD).nonzero(as_tuple=True)
        key = words[naming, offset] * (topics.num_topics + 1)
        key = key + topics.naming_topic[naming]
        order = key.argsort(stable=True)
        return key[order], naming[order], offset[order]

    @cached_property
    def pairs(self) -> Tensor:
        """Every word with every topic that has it in a name, as sorted keys."""
        key, _, _ = self.cells
        pairs: Tensor = key.unique_consecutive()
        return pairs


WORD = 0
"""Source of a plain word."""


class Copies(NamedTuple):
    """K latents of B texts: a topic, and the source of every word."""

    topic: Tensor
    """Topics from 1 to num_topics, (B, K)."""
    source: Tensor
    """``WORD``, or 1 + the naming that the word is copied from, (B, K, T)."""
    offset: Tensor
    """Index of the word in that name, (B, K, T)."""


@dataclass(frozen=True)
class NKLMState:
    """State of B texts with K latents each."""

    carry: Carry
    """Recurrent state of every latent after its last word, (B, K, size) each."""
    topic: Tensor
    """Topic, 0 before the first word unless given, on the host, (B, K)."""
    tables: Tables
    """Embeddings of all topics, computed where texts begin."""

    @property
    def hidden(self) -> Tensor:
        """Hidden state that predicts the next word, (B, K, size)."""
        return self.carry.layers[-1][0]

    def select(self, index: Tensor) -> NKLMState:
        return self._picked((index,))

    def resample(self, index: Tensor) -> NKLMState:
        return self._picked((torch.arange(len(index))[:, None], index))

    def expanded(self, samples: int) -> NKLMState:
        """Expand the latents of each text to K.

        Raises:
            ValueError: If there are neither 1 nor K.
        """
        histories = self.topic.shape[1]
        if histories not in (1, samples):
            raise ValueError(
                f"{histories} histories cannot continue in {samples} latents"
            )
        index = torch.arange(samples) % histories
        return self._picked((slice(None), index))

    def _picked(self, index: Any) -> NKLMState:
        def carried(part: Tensor) -> Tensor:
            on_device = (
                i if isinstance(i, slice) else sent(i, part.device) for i in index
            )
            return part[tuple(on_device)]

        return replace(self, carry=self.carry.each(carried), topic=self.topic[index])


def folded(carry: Carry, batch: int) -> Carry:
    """Fold the latents of each text, (B * K, ..) -> (B, K, ..)."""
    return carry.each(lambda state: state.unflatten(0, (batch, -1)))


@dataclass(frozen=True)
class Encoded:
    """A batch of pieces. Nothing is computed yet: all scores depend on z."""

    batch: TokenBatch
    state: NKLMState
    """State of the latents before the pieces."""
    tables: Tables
