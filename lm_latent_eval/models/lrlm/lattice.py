r"""Semi-Markov sums over all segmentations of texts.

A node of the lattice is a border between words and what is known of the topic there;
row 0 .. B - 1 of a text are those where no topic is known yet, the rest are one row for
every topic that a text's arcs name. With w_t what word t costs and s what an arc costs,

.. math::
    \alpha_{r, t} = \alpha_{r, t-1} w_t + \sum_{a \text{ ends at } t}
        (\alpha_{r, \text{start}} + \alpha_{0, \text{start}} \, p(\text{topic of } r))
        \, s_a

and the same backwards: beta is the mass of what follows a border, where arcs that lead
out of the text end with it. All are logarithms here. What is impossible counts as
``FLOOR``, so that gradients exist.

A lattice is small, and what leads where follows from the text: so it is on the host,
but for its costs, which are fetched before anything is summed.

Source: Hayashi et al. (2020), section 3.2; Sarawagi and Cohen (2004) for semi-Markov
sums.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from lm_latent_eval.devices import fetched, sent
from lm_latent_eval.inference.ragged import expand_ranges
from lm_latent_eval.models.lrlm.topics import PAD, Topics
from lm_latent_eval.text.batch import TokenBatch


@dataclass(frozen=True)
class Arcs:
    """Namings that texts may be read as, sorted by (place, naming), on the host.

    An arc is one naming at one place: it leads from the border before its first word to
    the one after its last. Where a text stops within a name, the arc leads out of it:
    what follows may still be that name.
    """

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
    targets, _ = batch.on_host
    num_texts, num_tokens = targets.shape
    words = targets.masked_fill(~batch.inside_on_host, PAD)
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


FLOOR = -1e30


def log_sum(value: Tensor, row: Tensor, num_rows: int) -> Tensor:
    """Log of the summed exponentials of each row, ``FLOOR`` at least, (num_rows,)."""
    peak = value.new_full((num_rows,), FLOOR).scatter_reduce(
        0, row, value.detach(), "amax"
    )
    total = value.new_zeros(num_rows).index_add(0, row, (value - peak[row]).exp())
    return peak + total.clamp_min(torch.finfo(value.dtype).tiny).log()


def sunk(value: Tensor) -> Tensor:
    """Replace values of about ``FLOOR`` and less by ``-inf``."""
    return value.masked_fill(value < FLOOR / 2, -torch.inf)


@dataclass(frozen=True)
class Lattice:
    """B texts of T words, their arcs and what all of them cost."""

    length: Tensor
    """Words of each text, (B,)."""
    word: Tensor
    """Log-probability of uttering each word, (B, T) float64, 0 after the last."""
    arcs: Arcs
    score: Tensor
    """Log-probability of each arc, (N,) float64."""
    log_prior: Tensor
    """Log-probability of its topic where none is known, (N,) float64."""
    also: Tensor
    """Further (text, topic) rows, as text * (num_topics + 1) + topic, (M,)."""
    num_topics: int

    @property
    def charges(self) -> Tensor:
        """Logs of 1, of words, of names of a known and of a new topic, and of 0."""
        new = self.score + sent(self.log_prior, self.score.device)
        one = self.score.new_zeros(1)
        return torch.cat([one, self.word.flatten(), self.score, new, one - torch.inf])

    def on_host(self, *others: Tensor) -> tuple[Lattice, *tuple[Tensor, ...]]:
        """Return the lattice with its costs on the host, and other tensors there."""
        word, score, *here = fetched(self.word, self.score, *others)
        return replace(self, word=word.double(), score=score.double()), *here

    @cached_property
    def _keys(self) -> Tensor:
        key = self.arcs.text * (self.num_topics + 1) + self.arcs.topic
        keys: Tensor = torch.cat([key, self.also]).unique()
        return keys

    @property
    def num_texts(self) -> int:
        """B."""
        return len(self.length)

    @property
    def num_rows(self) -> int:
        """B and one for every (text, topic) that is named."""
        return self.num_texts + len(self._keys)

    @cached_property
    def text(self) -> Tensor:
        """The text of each row, (num_rows,)."""
        every = torch.arange(self.num_texts, device=self.length.device)
        return torch.cat([every, self._keys // (self.num_topics + 1)])

    @cached_property
    def topic(self) -> Tensor:
        """The topic of each row, 0 for none yet, (num_rows,)."""
        none = torch.zeros_like(self.length)
        return torch.cat([none, self._keys % (self.num_topics + 1)])

    def row(self, text: Tensor, topic: Tensor) -> Tensor:
        """Return the row of each text and topic: any, if that has none and is not 0."""
        place = torch.searchsorted(self._keys, text * (self.num_topics + 1) + topic)
        place = place.clamp_max(len(self._keys) - 1)
        return torch.where(topic == 0, text, place + self.num_texts)

    @cached_property
    def arc_row(self) -> Tensor:
        """The row of each arc's topic, (N,)."""
        return self.row(self.arcs.text, self.arcs.topic)

    @cached_property
    def leads_out(self) -> Tensor:
        """Which arcs end after their text, (N,) bool."""
        return self.arcs.end > self.length[self.arcs.text]

    def forward(
        self, begin: Tensor, early: tuple[Tensor, Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Sum over what leads to every border.

        Args:
            begin: What there is at the first one, (num_rows,).
            early: Names that began before: their rows, where they end, and their mass.

        Returns:
            alpha, (T + 1, num_rows), and alpha at the start of each arc, with what the
            arc costs, (N,).
        """
        arcs, rows = self.arcs, self.num_rows
        num_tokens = self.word.shape[1]
        ending = torch.where(self.leads_out, num_tokens + 1, arcs.end)
        order = ending.argsort(stable=True)
        borders = torch.searchsorted(
            ending[order], torch.arange(num_tokens + 2, device=order.device)
        ).tolist()
        early_row, early_end, early_mass = early
        columns, value = [begin], self.score.new_zeros(0)
        for t in range(1, num_tokens + 1):
            some = order[borders[t] : borders[t + 1]]
            now = early_end == t
            value = torch.cat([self._entering(columns, some), early_mass[now]])
            uttered = columns[-1] + self.word[self.text, t - 1]
            if len(value):
                into = torch.cat([self.arc_row[some], early_row[now]])
                uttered = torch.logaddexp(uttered, log_sum(value, into, rows))
            columns.append(uttered.clamp_min(FLOOR))
        every = torch.arange(len(arcs.place), device=order.device)
        alpha = torch.stack(columns)
        return alpha, self._entering(alpha, every)

    def _entering(self, columns: list[Tensor] | Tensor, some: Tensor) -> Tensor:
        """Mass that goes through arcs, given alpha up to their last start."""
        if not len(some):
            return self.score.new_zeros(0)
        start = self.arcs.start[some]
        if isinstance(columns, list):
            first = int(start.min())
            columns, start = torch.stack(columns[first:]), start - first
        known = columns[start, self.arc_row[some]]
        unknown = columns[start, self.arcs.text[some]] + self.log_prior[some]
        return torch.logaddexp(known, unknown) + self.score[some]

    def backward(self) -> Tensor:
        """Sum over what follows every border, (T + 1, num_rows)."""
        arcs, rows = self.arcs, self.num_rows
        num_tokens = self.word.shape[1]
        beta = self.score.new_zeros(num_tokens + 1, rows)
        borders = torch.searchsorted(
            arcs.start, torch.arange(num_tokens + 1, device=arcs.start.device)
        ).tolist()
        end = torch.minimum(arcs.end, self.length[arcs.text])
        for t in reversed(range(num_tokens)):
            here = slice(borders[t], borders[t + 1])
            uttered = self.word[self.text, t] + beta[t + 1]
            if borders[t + 1] > borders[t]:
                row = self.arc_row[here]
                value = self.score[here] + beta[end[here], row]
                named = log_sum(
                    torch.cat([value, value + self.log_prior[here]]),
                    torch.cat([row, arcs.text[here]]),
                    rows,
                )
                uttered = torch.logaddexp(uttered, named)
            beta[t] = uttered.clamp_min(FLOOR)
        return beta
