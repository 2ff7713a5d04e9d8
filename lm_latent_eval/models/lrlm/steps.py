r"""Sampling and beam search of segmentations.

Both go from border to border. At a border of a text, with or without a topic, one
chooses between the next word and the names that begin with it, in proportion to

.. math:: s \cdot v_{\text{end}}

where s is what p charges and v stands for the mass of what follows: beta itself, and
then readings come from p(z | x) exactly; or the mass of all that follows as words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from lm_latent_eval.devices import fetched, sent, wide_zeros
from lm_latent_eval.inference.cuts import Cut
from lm_latent_eval.inference.ragged import expand_ranges
from lm_latent_eval.inference.step_choices import Choices, Ragged
from lm_latent_eval.inference.steps import Drawn, Taken, draw_listed, follow
from lm_latent_eval.latent import Uniforms
from lm_latent_eval.models.lrlm.latents import (
    WORD,
    Encoded,
    Readings,
    RelationState,
    goes_on,
)
from lm_latent_eval.models.lrlm.lattice import FLOOR, Lattice, sunk
from lm_latent_eval.models.lrlm.topics import Topics


@dataclass(frozen=True)
class BorderChoices:
    """Options of each row of a lattice at one border, sorted by row."""

    row: Tensor
    """(N,), non-decreasing; every row has the next word as its first."""
    source: Tensor
    """``WORD``, or 1 + naming, (N,)."""
    cost: Tensor
    """Log of what p charges, tempered, (N,)."""
    ends: Tensor
    """Where each row's options end, (num_rows,)."""


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
        for t in range(num_tokens):
            here = slice(borders[t], borders[t + 1])
            row = torch.cat([every, lattice.arc_row[here], arcs.text[here]])
            order = row.argsort(stable=True)
            source, score = arcs.naming[here] + 1, lattice.score[here]
            words = lattice.word[lattice.text, t]
            cost = torch.cat([words, score, score + lattice.log_prior[here]])
            yield BorderChoices(
                row[order],
                torch.cat([torch.full_like(every, WORD), source, source])[order],
                cost[order],
                torch.searchsorted(row[order], every, right=True),
            )


class Standing(NamedTuple):
    """State of K readings of each of B texts, on the host, (B, K) each."""

    topic: Tensor
    """0 where it is not known yet."""
    source: Tensor
    """Of the last word."""
    offset: Tensor
    """Which word of its name comes next."""
    left: Tensor
    """Words that are left of it."""


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
        """Draw what is next."""
        return draw_listed(self, state, t, uniforms(t)[..., 0], origin, 1.0)

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
        topic, source, offset, left = (column[text, place] for column in state)
        choosing = (left == 0) & (self.length[text] > t)
        row = lattice.row(text, topic)
        start = torch.cat([options.ends.new_zeros(1), options.ends[:-1]])
        option, parent = expand_ranges(
            start[row].masked_fill(~choosing, 0),
            options.ends[row].masked_fill(~choosing, 1),
        )
        chosen, text = choosing[parent], text[parent]
        source = torch.where(chosen, options.source[option], source[parent])
        offset = offset[parent].masked_fill(chosen, 0)
        log_p = sunk(options.cost[option]).masked_fill(~chosen, 0.0)
        topic, left = self._after(topic[parent], source, offset)
        end = torch.minimum(t + 1 + left, self.length[text])
        ahead = self.route.after[end, lattice.row(text, topic)]
        history = text * score.shape[1] + place[parent]
        shape = score.shape[0], score.shape[1]
        # Of equal ones that are about ``FLOOR`` nothing would be left of log p.
        best = ahead.new_full((score.numel(),), FLOOR)
        best = best.scatter_reduce(0, history, ahead, "amax")
        twisted = log_p + (ahead - best[history])
        return Ragged(shape, history, (source, offset), log_p, twisted, ahead)

    def take(
        self,
        state: Standing,
        t: int,
        choices: Choices,
        origin: Tensor,
        choice: Tensor,
        uniforms: Callable[[], Tensor],
    ) -> Taken[Standing]:
        """Extend readings; those of texts that have ended stay as they are."""
        assert isinstance(choices, Ragged)
        source, offset = choices.decided(choice)
        before = [column.gather(1, origin) for column in state]
        topic, left = self._after(before[0], source, offset)
        after = topic, source, offset + (source != WORD).long(), left
        going_on = (self.length > t)[:, None]
        columns = zip(after, before, strict=True)
        state = Standing(*(torch.where(going_on, new, old) for new, old in columns))
        return Taken(state, (source, offset))

    def _after(
        self, topic: Tensor, source: Tensor, offset: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the topics that are known after words, and what is left of names."""
        named, naming = source != WORD, (source - 1).clamp_min(0)
        begun = named & (offset == 0)
        left = (self.topics.length(naming) - offset - 1).clamp_min(0)
        topic = torch.where(begun, self.topics.naming_topic[naming], topic)
        return topic, left.masked_fill(~named, 0)


def given_steps(encoded: Encoded) -> tuple[ReadingSteps, Tensor]:
    """Return steps of given readings, and a table of costs, where the model is.

    What a step charges is its place in the table: so nothing is waited for.
    """
    costs = encoded.costs
    new = costs.score + sent(costs.log_prior, costs.score.device)
    nothing = costs.word.new_zeros(1)
    table = torch.cat([nothing, costs.word.flatten(), costs.score, new])
    words, arcs = costs.word.numel(), len(new)
    place = 1 + torch.arange(words + arcs, dtype=torch.float64)
    numbered = replace(
        costs,
        word=place[:words].view(costs.word.shape),
        score=place[words:],
        log_prior=torch.full_like(place[words:], arcs),
    )
    after = place.new_zeros(costs.word.shape[1] + 1, numbered.num_rows)
    agrees = goes_on(encoded).all(-1)
    steps = ReadingSteps(Route(numbered, after), encoded.topics, encoded.state, agrees)
    return steps, table


def log_readings(encoded: Encoded, readings: Readings) -> Tensor:
    """Return log p(x, z_k) in nats, (B, K) float64."""
    steps, table = given_steps(encoded)
    possible = torch.ones(readings.source.shape[:2], dtype=torch.bool)
    places = [torch.zeros(possible.shape, dtype=torch.float64)]
    for choices, choice, there, inside, _ in follow(steps, fetched(*readings)):
        possible &= there | ~inside
        places.append(
            choices.at(choices.log_p, choice).masked_fill(~there | ~inside, 0.0)
        )
    total = table[sent(torch.stack(places).long(), table.device)].sum(0)
    return sunk(total).masked_fill(sent(~possible, table.device), -torch.inf)


def after_readings(encoded: Encoded, readings: Readings) -> RelationState:
    """Return the state after pieces under given readings."""
    steps, _ = given_steps(encoded)
    state = steps.begin(readings.source.shape[1])
    for step in follow(steps, fetched(*readings)):
        state = step.state
    ended = state.left == 0
    columns = (
        state.topic,
        (state.source - 1).masked_fill(ended, -1),
        state.offset.masked_fill(ended, 0),
        wide_zeros(ended.shape, ended.device),
    )
    return RelationState(encoded.carry, *(column[..., None] for column in columns))
