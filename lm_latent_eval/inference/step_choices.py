"""Choices of z_t after each history with their scores, dense or ragged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from lm_latent_eval.devices import fetched, sent, sent_uniforms, wide_zeros, widened
from lm_latent_eval.inference.pruning import recombined
from lm_latent_eval.inference.ragged import invert_cdf as invert_ragged_cdf
from lm_latent_eval.inference.ragged import segment_logsumexp
from lm_latent_eval.inference.streams import invert_cdf

Columns: TypeAlias = tuple[Tensor, ...]
"""Decisions at a step, (B, K) integers each, or at T of them, (B, K, T)."""


@dataclass(frozen=True)
class Dense:
    """Choices of z_t where every history has the same N."""

    log_p: Tensor
    """Summand of a choice in the rank of its history, nats, (B, K, N): log p(z_t, x_t)
    or log q(z_t)."""
    score: Tensor | None = None
    """Log q(z_t) up to a constant a history, (B, K, N) nats; None: ``log_p``."""
    ahead: Tensor | None = None
    """A guess of the log p of the text after x_t, (B, K, N) nats up to a constant a
    text, ``-inf`` where nothing can follow; None: nothing is known of it."""
    key: Tensor | None = None
    """Integers that are equal, within a text, where everything goes on alike after
    choices, (B, K, N); None: nothing is known of it."""

    def table(self, score: Tensor, groups: int) -> Tensor:
        """Return the rank of every choice, (B groups, M) float64.

        Args:
            score: Of the histories so far, (B, K) nats.
            groups: Into how many the K histories fall.
        """
        rank = self.weights(score, groups)
        if self.ahead is not None:
            rank = rank + widened(self.ahead).reshape(rank.shape)
        return rank

    def weights(self, score: Tensor, groups: int) -> Tensor:
        """Return ``table`` without the look-ahead, (B groups, M)."""
        log_w = score[..., None] + widened(self.log_p)
        return log_w.reshape(len(score) * groups, -1)

    def picked(self, values: Tensor, origin: Tensor, choice: Tensor) -> Tensor:
        """Return a value a choice, (B, K, N), of choices of histories, (B, K')."""
        place = origin * values.shape[2] + choice
        return widened(values.flatten(1).gather(1, place))

    def recombined(self, score: Tensor, groups: int) -> Tensor | None:
        """Let one choice of each key stand for all: see ``pruning.recombined``.

        Returns:
            Log of what weights are multiplied by, (B groups, M); None: no keys.
        """
        if self.key is None:
            return None
        log_w, key = fetched(self.weights(score, groups), self.key)
        alike = recombined(log_w.double().numpy(), key.reshape(log_w.shape).numpy())
        return sent(torch.from_numpy(alike), score.device)

    def found(self, column: Tensor, groups: int) -> tuple[Tensor, Tensor]:
        """Return histories and choices of columns of the table, (B, K') each."""
        number, histories = self.log_p.shape[2], self.log_p.shape[1] // groups
        history = (column // number).unflatten(0, (-1, groups))
        first = torch.arange(groups, device=column.device)[:, None] * histories
        choice = (column % number).unflatten(0, (-1, groups))
        return (history + first).flatten(1), choice.flatten(1)

    def draw(
        self, u: Tensor, origin: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Draw a choice of each history by inverting its distribution function.

        Args:
            u: Numbers of (0, 1), on the host, (B, K').
            origin: Which history is drawn from, on the host or not, (B, K').
            temperature: Divides the scores.

        Returns:
            Choices and log q, (B, K') each, and ``origin``.
        """
        given, log_q = origin, self.log_q(temperature)
        origin = sent(origin, self.log_p.device)
        log_q = log_q.gather(1, origin[..., None].expand(-1, -1, log_q.shape[2]))
        choice = invert_cdf(log_q.exp(), sent_uniforms(u, log_q.device))
        return choice, self.at(log_q, choice), given

    def log_q(self, temperature: float) -> Tensor:
        """Return log q(z_t) of every choice, (B, K, N) float64.

        Where no choice has a score the first is sure: p is then zero whatever is drawn.
        """
        score = widened(self.log_p if self.score is None else self.score)
        dead = score.amax(-1, keepdim=True).isneginf()
        first = torch.arange(score.shape[-1], device=score.device) > 0
        score = torch.where(dead, wide_zeros((), score.device), score)
        score = score.masked_fill(dead & first, -torch.inf)
        return (score / temperature).log_softmax(-1)

    def find(self, columns: Columns) -> tuple[Tensor, Tensor]:
        """Return which choices were decided, and if there are such, (B, K) each."""
        (choice,) = columns
        there = (choice >= 0) & (choice < self.log_p.shape[2])
        return choice.masked_fill(~there, 0), there

    def at(self, values: Tensor, choice: Tensor) -> Tensor:
        """Return a value a choice, (B, K, N), of some choices, (B, K)."""
        values = values.expand(*choice.shape, values.shape[-1])
        return values.gather(2, choice[..., None])[..., 0]


@dataclass(frozen=True)
class Ragged:
    """Choices of z_t where histories have different ones: a row a choice.

    Histories count from 0 to B K - 1 through all texts. Methods do what those of
    ``Dense`` do, with choices numbered through all texts as well.
    """

    shape: tuple[int, int]
    """B and K."""
    history: Tensor
    """Index of the history that each choice is of, (N,), non-decreasing."""
    columns: Columns
    """Integers that identify the choices of a history, (N,) each."""
    log_p: Tensor
    """Log-probability of each choice, as in ``Dense``, (N,)."""
    score: Tensor | None = None
    """Score of each choice, as in ``Dense``, (N,)."""
    ahead: Tensor | None = None
    """Look-ahead of each choice, as in ``Dense``, (N,)."""

    def table(self, score: Tensor, groups: int) -> Tensor:
        rank = widened(self.log_p) + score.flatten()[self.history]
        if self.ahead is not None:
            rank = rank + widened(self.ahead)
        return self._in_groups(rank, groups)

    def picked(self, values: Tensor, origin: Tensor, choice: Tensor) -> Tensor:
        return widened(self.at(values, choice))

    def _in_groups(self, values: Tensor, groups: int) -> Tensor:
        """Put the value of every choice into the row of its group, padded."""
        start = self._starts(groups)
        group = self.history // (self.shape[1] // groups)
        place = torch.arange(len(group), device=group.device) - start[group]
        # As many columns as histories, so that a text that has ended keeps all of them.
        most = max(self.shape[1] // groups, int(start.diff().max()))
        table = values.new_full((len(start) - 1, most), -torch.inf)
        return table.index_put((group, place), values)

    def found(self, column: Tensor, groups: int) -> tuple[Tensor, Tensor]:
        last = max(len(self.history) - 1, 0)
        row = (self._starts(groups)[:-1, None] + column).clamp_max(last)
        row = row.unflatten(0, (self.shape[0], groups)).flatten(1)
        first = torch.arange(self.shape[0], device=row.device)[:, None] * self.shape[1]
        # Columns past the end of a group are left over, and belong to nobody.
        history = self.history[row] - first if len(self.history) else row * 0
        return history.clamp(0, self.shape[1] - 1), row

    def _starts(self, groups: int) -> Tensor:
        """Return where choices of each group begin, and the end, (B groups + 1,)."""
        ends = torch.arange(self.shape[0] * groups + 1, device=self.history.device)
        return torch.searchsorted(self.history, ends * (self.shape[1] // groups))

    def draw(
        self, u: Tensor, origin: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Draw as ``Dense`` does; all is on the host, for which is waited once.

        A history without choices has the choice 0.
        """
        log_q, origin = fetched(self.log_q(temperature), origin)
        batch, histories = self.shape
        which = (torch.arange(batch)[:, None] * histories + origin).flatten()
        none = self.history.bincount(minlength=batch * histories)[which] == 0
        drawn = invert_ragged_cdf(
            log_q.exp(), self.history, batch * histories, which, u.flatten()
        )
        drawn = drawn.masked_fill(none, 0)
        log_drawn = self.at(log_q, drawn).masked_fill(none, 0.0)
        return drawn.view_as(origin), log_drawn.view_as(origin), origin

    def log_q(self, temperature: float) -> Tensor:
        score = widened(self.log_p if self.score is None else self.score) / temperature
        log_z = segment_logsumexp(score, self.history, self.shape[0] * self.shape[1])
        history = sent(self.history, score.device)
        dead = log_z.isneginf()[history]
        first = F.pad(history.diff() != 0, (1, 0), value=True)[: len(history)]
        log_q = score - log_z.masked_fill(log_z.isneginf(), 0.0)[history]
        return log_q.masked_fill(dead, -torch.inf).masked_fill(dead & first, 0.0)

    def find(self, columns: Columns) -> tuple[Tensor, Tensor]:
        same = torch.ones_like(self.history, dtype=torch.bool)
        for ours, theirs in zip(self.columns, columns, strict=True):
            same &= ours == theirs.flatten()[self.history]
        (row,) = same.nonzero(as_tuple=True)
        choice = columns[0].new_full(self.shape, -1).flatten()
        choice[self.history[row]] = row
        choice = choice.view(self.shape)
        return choice.clamp_min(0), choice >= 0

    def at(self, values: Tensor, choice: Tensor) -> Tensor:
        if not len(values):
            return values.new_zeros(choice.shape)
        return values[sent(choice, values.device)]

    def decided(self, choice: Tensor) -> Columns:
        """Return what choices (B, K) stand for; 0 where there are none at all."""
        return tuple(self.at(column, choice) for column in self.columns)


Choices: TypeAlias = Dense | Ragged
