"""Arcs of the lattice: occurrences of fact names in a text.

An arc is one naming at one place: it leads from the border before its first word to the
one after its last. Where a text stops within a name, the arc leads out of it: what
follows may still be that name.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lm_latent_eval.inference.ragged import expand_ranges
from lm_latent_eval.models.lrlm.topics import PAD, Topics
from lm_latent_eval.text.batch import TokenBatch


@dataclass(frozen=True)
class Arcs:
    """Namings that texts may be read as, sorted by (place, naming), on the host."""

    place: Tensor
    """start * B + text, non-decreasing, (N,)."""
    text: Tensor
    """(N,)."""
    start: Tensor
    """Words before it, (N,)."""
    length: Tensor
    """Words of the name, of which the text may have the first ones only, (N,)."""
    naming: Tensor
    """(N,)."""
    topic: Tensor
    """1 .. num_topics, (N,)."""

    @property
    def end(self) -> Tensor:
        """Words up to its last one, (N,)."""
        return self.start + self.length

    def select(self, index: Tensor) -> Arcs:
        """Pick arcs, by numbers or a mask."""
        columns = {name: column[index] for name, column in vars(self).items()}
        return replace(self, **columns)


def find_arcs(topics: Topics, batch: TokenBatch) -> Arcs:
    """Find every naming that agrees with a text as far as both go.

    Args:
        topics: The namings.
        batch: B texts of T tokens.
    """
    targets, lengths = batch.on_host
    num_texts, num_tokens = targets.shape
    inside = torch.arange(num_tokens) < lengths[:, None]
    words = targets.masked_fill(~inside, PAD)
    flat = words.t().flatten()  # by place
    first = topics.first_words
    found, place = expand_ranges(
        torch.searchsorted(first, flat), torch.searchsorted(first, flat, right=True)
    )
    alias = topics.by_first_word[found]
    width = topics.alias_words.shape[1]
    beyond = words.new_full((num_texts, width), PAD)
    ahead = torch.cat([words, beyond], 1).unfold(1, width, 1)[:, :num_tokens]
    here = ahead.transpose(0, 1).flatten(0, 1)[place]
    name = topics.alias_words[alias]
    agrees = ((name == here) | (name == PAD) | (here == PAD)).all(-1)
    alias, place = alias[agrees], place[agrees]
    known = topics.aliases_sorted
    which, row = expand_ranges(
        torch.searchsorted(known, alias), torch.searchsorted(known, alias, right=True)
    )
    naming, place, alias = topics.by_alias[which], place[row], alias[row]
    order = (place * len(topics.naming_alias) + naming).argsort()
    naming, place, alias = naming[order], place[order], alias[order]
    return Arcs(
        place,
        place % num_texts,
        place // num_texts,
        topics.alias_length[alias],
        naming,
        topics.naming_topic[naming],
    )
