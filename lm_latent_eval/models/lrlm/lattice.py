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
    """Namings that agree with texts, sorted by (place, naming), on the host.

    An arc is one naming at one position: it leads from the border before its first word
    to the border after its last. Where a text stops within a name, the arc leads out of
    the text, because the next words may complete the name.
    """

    position: Tensor
    """Key start * B + text, non-decreasing, (N,)."""
    text: Tensor
    start: Tensor
    """Number of words before it, (N,)."""
    length: Tensor
    """Number of words of the name, also of those beyond the text, (N,)."""
    naming: Tensor
    topic: Tensor
    """Topics from 1 to num_topics, (N,)."""

    @property
    def end(self) -> Tensor:
        return self.start + self.length

    def select(self, index: Tensor) -> Arcs:
        columns = {name: column[index] for name, column in vars(self).items()}
        return replace(self, **columns)


def find_arcs(topics: Topics, batch: TokenBatch) -> Arcs:
    """Find every naming that agrees with a text as far as both go."""
    targets, _ = batch.on_host
    num_texts, num_tokens = targets.shape
    words = targets.masked_fill(~batch.inside_on_host, PAD)
    flat = words.t().flatten()  # by place
    first = topics.first_words
    match, position = expand_ranges(
        torch.searchsorted(first, flat), torch.searchsorted(first, flat, right=True)
    )
    alias = topics.by_first_word[match]
    width = topics.alias_words.shape[1]
    beyond = words.new_full((num_texts, width), PAD)
    ahead = torch.cat([words, beyond], 1).unfold(1, width, 1)[:, :num_tokens]
    words_ahead = ahead.transpose(0, 1).flatten(0, 1)[position]
    name = topics.alias_words[alias]
    agrees = ((name == words_ahead) | (name == PAD) | (words_ahead == PAD)).all(-1)
    alias, position = alias[agrees], position[agrees]
    key = topics.aliases_sorted
    which, row = expand_ranges(
        torch.searchsorted(key, alias), torch.searchsorted(key, alias, right=True)
    )
    naming, position, alias = topics.by_alias[which], position[row], alias[row]
    order = (position * len(topics.naming_alias) + naming).argsort()
    naming, position, alias = naming[order], position[order], alias[order]
    return Arcs(
        position,
        position % num_texts,
        position // num_texts,
        topics.alias_length[alias],
        naming,
        topics.naming_topic[naming],
    )


FLOOR = -1e30


def log_sum(value: Tensor, row: Tensor, num_rows: int) -> Tensor:
    """Log of the summed exponentials of each row, at least ``FLOOR``, (num_rows,)."""
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
    """B texts of T words, their arcs and all log-probabilities."""

    length: Tensor
    """Number of words of each text, (B,)."""
    word: Tensor
    """Log-probability of each word, (B, T) float64, 0 after the last."""
    arcs: Arcs
    score: Tensor
    """Log-probability of each arc, (N,) float64."""
    log_prior: Tensor
    """Log-probability of its topic if none is known, (N,) float64."""
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
        word, score, *others_on_host = fetched(self.word, self.score, *others)
        return replace(self, word=word.double(), score=score.double()), *others_on_host

    @cached_property
    def _keys(self) -> Tensor:
        key = self.arcs.text * (self.num_topics + 1) + self.arcs.topic
        keys: Tensor = torch.cat([key, self.also]).unique()
        return keys

    @property
    def num_texts(self) -> int:
        return len(self.length)

    @property
    def num_rows(self) -> int:
        return self.num_texts + len(self._keys)

    @cached_property
    def text(self) -> Tensor:
        every = torch.arange(self.num_texts, device=self.length.device)
        return torch.cat([every, self._keys // (self.num_topics + 1)])

    @cached_property
    def topic(self) -> Tensor:
        """Topic of each row, 0 for none yet, (num_rows,)."""
        none = torch.zeros_like(self.length)
        return torch.cat([none, self._keys % (self.num_topics + 1)])

    def row(self, text: Tensor, topic: Tensor) -> Tensor:
        """Row of each text and topic, which must exist unless the topic is 0."""
        index = torch.searchsorted(self._keys, text * (self.num_topics + 1) + topic)
        index = index.clamp_max(len(self._keys) - 1)
        return torch.where(topic == 0, text, index + self.num_texts)

    @cached_property
    def arc_row(self) -> Tensor:
        return self.row(self.arcs.text, self.arcs.topic)

    @cached_property
    def leads_out(self) -> Tensor:
        """Mask of arcs that end after their text, (N,)."""
        return self.arcs.end > self.length[self.arcs.text]

    def forward(
        self, begin: Tensor, early: tuple[Tensor, Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Sum over the paths to every border.

        Args:
            begin: Log mass at the first border, (num_rows,).
            early: Names that began before: their rows, ends and log mass.

        Returns:
            alpha, (T + 1, num_rows), and alpha at the start of each arc plus the arc's
            score, (N,).
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
            arc = order[borders[t] : borders[t + 1]]
            now = early_end == t
            value = torch.cat([self._entering(columns, arc), early_mass[now]])
            uttered = columns[-1] + self.word[self.text, t - 1]
            if len(value):
                into = torch.cat([self.arc_row[arc], early_row[now]])
                uttered = torch.logaddexp(uttered, log_sum(value, into, rows))
            columns.append(uttered.clamp_min(FLOOR))
        every = torch.arange(len(arcs.position), device=order.device)
        alpha = torch.stack(columns)
        return alpha, self._entering(alpha, every)

    def _entering(self, columns: list[Tensor] | Tensor, arc: Tensor) -> Tensor:
        """Log mass of arcs, given alpha up to their last start."""
        if not len(arc):
            return self.score.new_zeros(0)
        start = self.arcs.start[arc]
        if isinstance(columns, list):
            first = int(start.min())
            columns, start = torch.stack(columns[first:]), start - first
        same_topic = columns[start, self.arc_row[arc]]
        new_topic = columns[start, self.arcs.text[arc]] + self.log_prior[arc]
        return torch.logaddexp(same_topic, new_topic) + self.score[arc]

    def backward(self) -> Tensor:
        """Sum over the paths from every border, (T + 1, num_rows)."""
        arcs, rows = self.arcs, self.num_rows
        num_tokens = self.word.shape[1]
        beta = self.score.new_zeros(num_tokens + 1, rows)
        borders = torch.searchsorted(
            arcs.start, torch.arange(num_tokens + 1, device=arcs.start.device)
        ).tolist()
        end = torch.minimum(arcs.end, self.length[arcs.text])
        for t in reversed(range(num_tokens)):
            part = slice(borders[t], borders[t + 1])
            uttered = self.word[self.text, t] + beta[t + 1]
            if borders[t + 1] > borders[t]:
                row = self.arc_row[part]
                value = self.score[part] + beta[end[part], row]
                named = log_sum(
                    torch.cat([value, value + self.log_prior[part]]),
                    torch.cat([row, arcs.text[part]]),
                    rows,
                )
                uttered = torch.logaddexp(uttered, named)
            beta[t] = uttered.clamp_min(FLOOR)
        return beta
