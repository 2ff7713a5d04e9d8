r"""Sampling and beam search of segmentations.

Both go from border to border. At a border of a text, with or without a topic, one
chooses between the next word and the names that begin with it, in proportion to

.. math:: s \cdot v_{\text{end}}

where s is what p charges and v stands for the mass of what follows: beta itself, and
then readings come from p(z | x) exactly; or the mass of all that follows as words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from lm_latent_eval.devices import fetched, wide_zeros, widened
from lm_latent_eval.inference.cuts import Cut
from lm_latent_eval.inference.ragged import expand_ranges, invert_cdf
from lm_latent_eval.inference.step_choices import Choices, Columns, Ragged
from lm_latent_eval.inference.steps import Drawn, Taken
from lm_latent_eval.latent import Uniforms
from lm_latent_eval.models.lrlm.latents import WORD, Readings, RelationState
from lm_latent_eval.models.lrlm.lattice import FLOOR, Lattice, sunk
from lm_latent_eval.models.lrlm.topics import Topics


@dataclass(frozen=True)
class BorderChoices:
    """Options of each row of a lattice at one border, sorted by row."""

    row: Tensor
    """(N,), non-decreasing; every row has the next word as its first."""
    source: Tensor
    """``WORD``, or 1 + naming, (N,)."""
    length: Tensor
    """Words of the name; 1 for a word, (N,)."""
    topic: Tensor
    """Of which the text is then known to be, 0 for none, (N,)."""
    cost: Tensor
    """Log of what p charges, tempered, (N,)."""
    after: Tensor
    """Log of what stands for the mass of what follows, (N,)."""
    ends: Tensor
    """Where each row's options end, (num_rows,)."""

    @property
    def value(self) -> Tensor:
        """Unnormalised log-probabilities of the options, (N,) nats."""
        return (self.cost + self.after).clamp_min(FLOOR)


@dataclass(frozen=True)
class Route:
    """A lattice with the look-ahead of a proposal."""

    lattice: Lattice
    """The lattice with tempered log-probabilities."""
    after: Tensor
    """Mass, or a guess of it, of the text after each border, (T + 1, num_rows)."""

    @classmethod
    def exact(cls, lattice: Lattice) -> Route:
        """Weigh options by the posterior mass of what follows."""
        return cls(lattice, lattice.backward())

    @classmethod
    def plain(cls, lattice: Lattice) -> Route:
        """Weigh options by what follows, as if all of it were words."""
        rest = lattice.word.flip(1).cumsum(1).flip(1)
        rest = torch.cat([rest, rest.new_zeros(len(rest), 1)], 1)
        return cls(lattice, rest.t()[:, lattice.text].clamp_min(FLOOR))

    def options(self) -> Iterator[BorderChoices]:
        """Yield what can be chosen, border by border."""
        lattice, arcs = self.lattice, self.lattice.arcs
        num_tokens = lattice.word.shape[1]
        every = torch.arange(lattice.num_rows, device=arcs.place.device)
        borders = torch.searchsorted(
            arcs.start, torch.arange(num_tokens + 1, device=every.device)
        ).tolist()
        end = torch.minimum(arcs.end, lattice.length[arcs.text])
        for t in range(num_tokens):
            here = slice(borders[t], borders[t + 1])
            named, unknown = lattice.arc_row[here], arcs.text[here]
            row = torch.cat([every, named, unknown])
            order = row.argsort(stable=True)
            source, length = arcs.naming[here] + 1, arcs.length[here]
            after = self.after[end[here], named]
            score, topic = lattice.score[here], arcs.topic[here]

            def columns(of_words: Tensor, of_known: Tensor, of_new: Tensor) -> Tensor:
                return torch.cat([of_words, of_known, of_new])[order]  # noqa: B023

            yield BorderChoices(
                row[order],
                columns(torch.full_like(every, WORD), source, source),
                columns(torch.ones_like(every), length, length),
                columns(lattice.topic, topic, topic),
                columns(
                    lattice.word[lattice.text, t],
                    score,
                    score + lattice.log_prior[here],
                ),
                columns(self.after[t + 1], after, after),
                torch.searchsorted(row[order], every, right=True),
            )


@dataclass(frozen=True)
class Standing:
    """State of K readings of each of B texts, on the host, (B, K) each."""

    topic: Tensor
    """0 where it is not known yet."""
    source: Tensor
    """Of the last word."""
    offset: Tensor
    """Which word of its name comes next."""
    left: Tensor
    """Words that are left of it."""

    def resampled(self, origin: Tensor) -> Standing:
        """Pick readings of each text, (B, K')."""
        columns = (self.topic, self.source, self.offset, self.left)
        return Standing(*(column.gather(1, origin) for column in columns))


@dataclass(frozen=True)
class ReadingSteps:
    """The steps of readings of a piece, from border to border, on the host."""

    route: Route
    topics: Topics
    state: RelationState
    """Before the piece."""
    agrees: Tensor
    """Whether the open name of each reading so far goes on as the text does, (B, K)."""
    num_columns: ClassVar[int] = 2

    @property
    def length(self) -> Tensor:
        """Words of each text, (B,)."""
        return self.route.lattice.length

    @property
    def num_steps(self) -> int:
        """T."""
        return self.route.lattice.word.shape[1]

    @cached_property
    def _borders(self) -> list[BorderChoices]:
        """Options at every border."""
        return list(self.route.options())

    def begin(self, num_histories: int | None) -> Standing:
        """Return the readings before the piece: K, or those there are."""
        histories = num_histories or self.state.topic.shape[1]
        topic, naming, offset = self.state.expanded(histories)
        left = self.topics.length(naming.clamp_min(0)) - offset
        return Standing(topic, naming + 1, offset, left.masked_fill(naming < 0, 0))

    def num_histories(self, state: Standing) -> int:
        """Return K."""
        return state.topic.shape[1]

    def draw(
        self, state: Standing, t: int, uniforms: Uniforms, origin: Tensor | None
    ) -> Drawn[Standing]:
        """Draw what is next of those that are not inside a name."""
        if origin is not None:
            (origin,) = fetched(origin)
            state = state.resampled(origin)
        lattice, options = self.route.lattice, self._borders[t]
        choosing = (state.left == 0) & (self.length[:, None] > t)
        log_p, prob = _normalised(options, lattice.num_rows)
        text, _ = choosing.nonzero(as_tuple=True)
        row = lattice.row(text, state.topic[choosing])
        u = uniforms(t)[..., 0][choosing]
        drawn = invert_cdf(prob, options.row, lattice.num_rows, row, u)
        log_q = widened(torch.zeros(choosing.shape))
        log_q[choosing] = log_p[drawn]
        chosen = torch.zeros_like(state.topic).masked_scatter(choosing, drawn)
        after, columns = self._after(state, options, choosing, chosen)
        return Drawn(after, columns, log_q, origin)

    def choices(
        self, state: Standing, t: int, score: Tensor, cut: Cut | None
    ) -> Ragged:
        """List the words and names that may come next, or the name that goes on.

        They are ranked by what p charges them so far times what stands for the rest.
        """
        lattice, options = self.route.lattice, self._borders[t]
        if t == 0:  # what is open must go on as the text does; there may be more of one
            score = score.masked_fill(~self.agrees.expand_as(score), -torch.inf)
        text, place = (score > -torch.inf).nonzero(as_tuple=True)
        left, topic = state.left[text, place], state.topic[text, place]
        choosing = (left == 0) & (self.length[text] > t)
        row = lattice.row(text, topic)
        start = torch.cat([options.ends.new_zeros(1), options.ends[:-1]])
        option, parent = expand_ranges(
            start[row].masked_fill(~choosing, 0),
            options.ends[row].masked_fill(~choosing, 1),
        )
        chosen = choosing[parent]
        log_p = sunk(options.cost[option]).masked_fill(~chosen, 0.0)
        lefts = torch.where(chosen, options.length[option], left[parent])
        topics = torch.where(chosen, options.topic[option], topic[parent])
        end = torch.minimum(t + lefts.clamp_min(1), self.length[text[parent]])
        ahead = self.route.after[end, lattice.row(text[parent], topics)]
        history = (text * score.shape[1] + place)[parent]
        columns = (option.masked_fill(~chosen, -1),)
        shape = score.shape[0], score.shape[1]
        return Ragged(shape, history, columns, log_p, ahead=ahead)

    def take(
        self,
        state: Standing,
        t: int,
        choices: Choices,
        origin: Tensor,
        choice: Tensor,
        uniforms: Callable[[], Tensor],
    ) -> Taken[Standing]:
        """Extend readings by chosen options."""
        assert isinstance(choices, Ragged)
        (option,) = choices.decided(choice)
        before, options = state.resampled(origin), self._borders[t]
        after, columns = self._after(before, options, option >= 0, option.clamp_min(0))
        return Taken(after, columns)

    def _after(
        self, state: Standing, options: BorderChoices, choosing: Tensor, option: Tensor
    ) -> tuple[Standing, Columns]:
        """Return the state of readings after a word, and the word's source."""

        def known(of_option: Tensor, of_state: Tensor) -> Tensor:
            return torch.where(choosing, of_option[option], of_state)

        source = known(options.source, state.source)
        offset = state.offset.masked_fill(choosing, 0)
        left = (known(options.length, state.left) - 1).clamp_min(0)
        topic = known(options.topic, state.topic)
        coming = offset + (source != WORD).long()
        return Standing(topic, source, coming, left), (source, offset)


def log_prob_readings(route: Route, state: RelationState, readings: Readings) -> Tensor:
    """Return log q of given readings in nats, (B, K) float64."""
    lattice = route.lattice
    samples = readings.source.shape[1]
    topic, _, _ = state.expanded(samples)
    log_q = wide_zeros(topic.shape, topic.device)
    for t, options in enumerate(route.options()):
        source = readings.source[:, :, t]
        choosing = (readings.offset[:, :, t] == 0) & (lattice.length[:, None] > t)
        log_p, _ = _normalised(options, lattice.num_rows)
        text, _ = choosing.nonzero(as_tuple=True)
        row = lattice.row(text, topic[choosing])
        many = int(options.source.max()) + 1
        key = options.row * many + options.source
        order = key.argsort(stable=True)
        wanted = row * many + source[choosing].clamp_max(many - 1)
        place = torch.searchsorted(key[order], wanted).clamp_max(len(key) - 1)
        place = order[place]
        found = (key[place] == wanted) & (source[choosing] < many)
        log_q[choosing] += log_p[place].masked_fill(~found, -torch.inf)
        known = torch.where(found, options.topic[place], topic[choosing])
        topic = topic.masked_scatter(choosing, known)
    return log_q


def _normalised(options: BorderChoices, num_rows: int) -> tuple[Tensor, Tensor]:
    """Return log-probabilities of options, and probabilities, (N,) each."""
    value = options.value
    peak = value.new_full((num_rows,), FLOOR).scatter_reduce(
        0, options.row, value, "amax"
    )
    prob = (value - peak[options.row]).exp()
    total = prob.new_zeros(num_rows).index_add(0, options.row, prob)
    log_p = value - peak[options.row] - total.log()[options.row]
    return log_p, log_p.exp()
