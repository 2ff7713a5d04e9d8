"""Tables of facts and names, with word positions in names."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from lm_latent_eval.models.lrlm.topics import PAD, Topics


@dataclass(frozen=True)
class Tables:
    """What facts and names look like to the model; their numbers are on the host."""

    topics: Topics
    fact: Tensor
    """No fact, and every fact, (F + 1, 2 * fact_dim)."""
    alias: Tensor
    """(A, alias_dim)."""
    knowledge: Tensor | None
    """What predictions are informed by, of no topic and of each, (N + 1, ...)."""

    @cached_property
    def cells(self) -> tuple[Tensor, Tensor, Tensor]:
        """Every word of every naming: word and topic as one key, naming, offset.

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
        """Every word with every topic that has it in a name, keyed and sorted alike."""
        key, _, _ = self.cells
        pairs: Tensor = key.unique_consecutive()
        return pairs
