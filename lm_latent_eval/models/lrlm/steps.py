r"""Sampling and beam search of segmentations.

Both go from border to border. At a border of a text, with or without a topic, one
chooses between the next word and the names that begin with it, in proportion to

.. math:: s \cdot v_{\text{end}}

where s is p's factor and v the mass of the rest of the text. With v = beta, readings
come from p(z | x) exactly; otherwise v is the mass of the rest as plain words.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from lm_latent_eval.devices import fetched, sent, wide_zeros
from lm_latent_eval.inference.cuts import Cut
from lm_latent_eval.inference.ragged import expand_ranges, segment_logsumexp
from lm_latent_eval.inference.step_choices import Choices, Ragged
from lm_latent_eval.inference.steps import Drawn, Taken, draw_listed, follow
from lm_latent_eval.latent import Uniforms
from lm_latent_eval.models.lrlm.latents import (
    Encoded,
    Options,
    Readings,
    RelationState,
)
from lm_latent_eval.models.lrlm.lattice import FLOOR, Lattice, sunk


def words_ahead(lattice: Lattice) -> Tensor:
    """Mass after each border if all of the text were plain words, (T + 1, num_rows).

    A word that only names have costs as much as the least probable other word of its
    text. With -inf, no reading could be drawn in which another option comes before its
    name.
    """
    named = lattice.word < FLOOR / 2
    dearest = lattice.word.masked_fill(named, 0.0).amin(1, keepdim=True)
    rest = torch.where(named, dearest, lattice.word).flip(1).cumsum(1).flip(1)
    return F.pad(rest, (0, 1)).t()[:, lattice.text]


@dataclass(frozen=True)
class ReadingSteps:
    """Steps of readings of a piece, one word each, on the host.

    A state is the option that each of K readings of B texts is in or has just finished,
    (B, K).
    """

    options: Options
    log_p: Tensor
    """Log p of each option, nats, float64."""
    score: Tensor
    """Log q of each option, nats."""
    ahead: Tensor
    """Log mass of the text after each option, or its approximation."""
    num_columns: ClassVar[int] = 1

    @property
    def length(self) -> Tensor:
        return self.options.lattice.length

    @property
    def num_steps(self) -> int:
        return self.options.lattice.word.shape[1]

    def begin(self, num_histories: int | None) -> Tensor:
        """Readings before the piece: K, or those of the histories."""
        return self.options.histories(num_histories)

    def num_histories(self, state: Tensor) -> int:
        return state.shape[1]

    def draw(
        self, state: Tensor, t: int, uniforms: Uniforms, origin: Tensor | None
    ) -> Drawn:
        return draw_listed(self, state, t, uniforms(t)[..., 0], origin, 1.0)

    def choices(self, state: Tensor, t: int, score: Tensor, cut: Cut | None) -> Ragged:
        """List the next words and names, or the continued name.

        They are ranked by p so far times the mass of the rest.
        """
        (history,) = (score.flatten() > -torch.inf).nonzero(as_tuple=True)
        now, options = state.flatten()[history], self.options
        ended = options.until[now] <= t
        first = torch.where(ended, options.first[now], now)
        last = torch.where(ended, options.last[now], now + 1)
        option, parent = expand_ranges(first, last)
        return Ragged(
            (score.shape[0], score.shape[1]),
            history[parent],
            (option,),
            self.log_p[option],
            self.score[option],
            self.ahead[option],
        )

    def take(
        self,
        state: Tensor,
        t: int,
        choices: Choices,
        origin: Tensor,
        choice: Tensor,
    ) -> Taken:
        assert isinstance(choices, Ragged)
        (option,) = choices.decided(choice)
        active = (self.length > t)[:, None]
        after = self.options.then[option]
        return Taken(torch.where(active, after, state.gather(1, origin)), (option,))


def reading_steps(encoded: Encoded, lattice: Lattice, after: Tensor) -> ReadingSteps:
    """Build the steps of readings.

    Args:
        encoded: A piece of text.
        lattice: Its lattice, with tempered log-probabilities.
        after: Log mass of the text after each border, or its approximation,
            (T + 1, num_rows).
    """
    options = encoded.options
    log_p = sunk(lattice.charges[options.charge])
    end = torch.minimum(options.end, lattice.length[lattice.text[options.row]])
    ahead = after[end, options.row]
    # Beside masses near ``FLOOR``, log p would be lost to rounding.
    node = options.key // (1 + len(options.topics.naming_alias))
    coming = ahead[: len(node)]
    num_nodes = lattice.word.shape[1] * lattice.num_rows
    best = ahead.new_full((num_nodes,), FLOOR)
    best = best.scatter_reduce(0, node, coming, "amax")[node]
    score = log_p[: len(node)] + (coming - best)
    log_z = segment_logsumexp(score, node, num_nodes)[node]
    score = score - log_z.masked_fill(log_z.isneginf(), 0.0)
    score = F.pad(score, (0, len(ahead) - len(node)))
    return ReadingSteps(options, log_p, score, ahead)


def log_options(encoded: Encoded, option: Tensor) -> Tensor:
    """Log p(x, z_k) of options one after the other, nats, (B, K) float64.

    Indices are on the host, so a device is not waited for.
    """
    charges = encoded.costs.charges
    inside = encoded.batch.inside_on_host[:, None]
    index = encoded.options.charge[option].masked_fill(~inside, 0)
    return sunk(charges[sent(index, charges.device)].sum(-1))


def log_readings(encoded: Encoded, readings: Readings) -> Tensor:
    """Log p(x, z_k) in nats, (B, K) float64."""
    option = encoded.options.found(Readings(*fetched(*readings)))
    possible = torch.ones(option.shape[:2], dtype=torch.bool)
    free = torch.zeros(len(encoded.options.charge), dtype=torch.float64)
    steps = ReadingSteps(encoded.options, free, free, free)
    for step in follow(steps, (option,)):
        possible &= step.there | ~step.inside
    log_p = log_options(encoded, option)
    return log_p.masked_fill(sent(~possible, log_p.device), -torch.inf)


def after_readings(encoded: Encoded, readings: Readings) -> RelationState:
    options = encoded.options
    option = options.found(Readings(*fetched(*readings)))
    before = options.histories(option.shape[1])[..., None]
    now = options.then[torch.cat([before, option], -1)[..., -1]]
    length = options.lattice.length[:, None]
    ended = options.end[now] <= length
    columns = (
        options.lattice.topic[options.row[now]],
        (options.source[now] - 1).masked_fill(ended, -1),
        (length - options.start[now]).masked_fill(ended, 0),
        wide_zeros(ended.shape, ended.device),
    )
    return RelationState(encoded.carry, *(column[..., None] for column in columns))
