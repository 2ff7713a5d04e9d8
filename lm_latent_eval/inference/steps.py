r"""The engine of left-to-right latents: one loop of steps for every model.

A model says what a step is: what z_t can be after each history, what each choice is
worth, and where it leads. From that alone come draws with their log q, searches,
thinned searches (discrete particle filters) and the log q of given latents:

.. math:: q(z \mid x) = \prod_t q(z_t \mid z_{<t}, x)

B texts have K histories each. What a step lists is ``Dense``, where all histories
have the same number of choices, or ``Ragged``. The loop computes where the lists are:
on the host, or on the device with nothing to wait for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from lm_latent_eval.devices import sent, wide_zeros, widened
from lm_latent_eval.inference.cuts import Cut, best_of
from lm_latent_eval.inference.step_choices import Choices, Columns, Dense
from lm_latent_eval.latent import Uniforms


class Drawn(NamedTuple):
    state: Any
    """After the draws."""
    columns: Columns
    log_q: Tensor
    """Nats, (B, K); ignored past the end of a text."""
    origin: Tensor | None
    """Index of the history that each continues, (B, K), on the host or a device."""


class Taken(NamedTuple):
    """State after choices."""

    state: Any
    columns: Columns


class Unfolds(Protocol):
    """Base protocol of steps, drawn or listed: texts and their initial histories."""

    @property
    def length(self) -> Tensor:
        """Steps of each text, where choices are, (B,)."""
        ...

    @property
    def num_steps(self) -> int: ...

    @property
    def num_columns(self) -> int:
        """How many integers a decision is."""
        ...

    def begin(self, num_histories: int | None) -> Any:
        """Return the state before the piece, of K histories or as many as exist."""
        ...


class Steps(Unfolds, Protocol):
    """The steps of one distribution over the latents of an encoded piece of text."""

    def num_histories(self, state: Any) -> int: ...

    def choices(self, state: Any, t: int, score: Tensor, cut: Cut | None) -> Choices:
        """List what z_t can be.

        Args:
            state: Of B texts with K histories.
            t: The step. Of a text that has ended anything may be listed, or nothing.
            score: Of the histories, nats, (B, K); ``-inf``: there is none.
            cut: The rule that chooses. If not ``exhaustive``, choices may be left out
                that cannot be among the best of a group. None: every choice is asked
                for.
        """
        ...

    def take(
        self,
        state: Any,
        t: int,
        choices: Choices,
        origin: Tensor,
        choice: Tensor,
    ) -> Taken:
        """Go on with some choices of some histories.

        Args:
            state: The state that ``choices`` was listed for.
            t: The step. States of texts that have ended are ignored.
            choices: That list.
            origin: Histories, (B, K').
            choice: A choice of each, as ``choices`` numbers them, (B, K').
        """
        ...


class DrawSteps(Unfolds, Protocol):
    """Steps that are drawn, by a listing of every choice or in a quicker way."""

    def draw(
        self, state: Any, t: int, uniforms: Uniforms, origin: Tensor | None
    ) -> Drawn:
        """Draw z_t of histories that continue those of a state.

        Args:
            state: Of B texts with K histories.
            t: The step.
            uniforms: Random numbers on the host, step -> (B, K', 4).
            origin: Histories, on the host or not, (B, K'); None: each goes on itself.
        """
        ...


def draw_listed(
    steps: Steps,
    state: Any,
    t: int,
    u: Tensor,
    origin: Tensor | None,
    temperature: float,
) -> Drawn:
    """Draw z_t from a listing of every choice; ``u`` is (B, K'), on the host."""
    score = wide_zeros((len(u), steps.num_histories(state)), steps.length.device)
    if origin is None:
        origin = torch.arange(u.shape[1]).expand_as(u)
    choices = steps.choices(state, t, score, None)
    choice, log_q, origin = choices.draw(u, origin, temperature)
    there = sent(origin, choice.device)
    taken = steps.take(state, t, choices, there, choice)
    return Drawn(taken.state, taken.columns, log_q, origin)


class Sampled(NamedTuple):
    """Draws: K latents of each of B texts."""

    columns: Columns
    """Decisions at T steps, (B, K, T) each, 0 past the end of a text."""
    log_q: Tensor
    """Nats, (B, K) float64, where the draws have it."""
    origin: Tensor
    """Index of the history before the piece that each continues, (B, K)."""
    state: Any
    """After the last step, if there was any."""


def sampled(steps: DrawSteps, uniforms: Uniforms, origin: Tensor) -> Sampled:
    """Draw latents of B texts, K each.

    Args:
        steps: Of q.
        uniforms: Random numbers on the host, step -> (B, K, 4).
        origin: Which history before the piece each continues, on the host or not,
            (B, K).
    """
    state, path, begun = steps.begin(None), [], origin
    log_q = wide_zeros(origin.shape, steps.length.device)
    for t in range(steps.num_steps):
        drawn = steps.draw(state, t, uniforms, None if t else origin)
        outside = (steps.length <= t)[:, None]
        log_step = widened(drawn.log_q)
        log_step = log_step.masked_fill(sent(outside, log_step.device), 0.0)
        log_q = log_q + log_step if t else log_step
        path.append([column.masked_fill(outside, 0) for column in drawn.columns])
        state = drawn.state
        begun = begun if drawn.origin is None or t else drawn.origin
    columns = _stacked(path, steps.num_columns, origin)
    return Sampled(columns, log_q, begun, state)


class Found(NamedTuple):
    """Result of a search: K latents of each of B texts."""

    columns: Columns
    """Choices of each history, as in ``Sampled``."""
    score: Tensor
    """Scores of the histories without look-ahead, (B, K) float64 nats; ``-inf`` marks
    an unused place. Weights of a thinned search are in it."""
    origin: Tensor
    """Index of the history before the piece that each continues, (B, K)."""
    state: Any
    """After the last step, if there was any."""
    log_f: Tensor
    """Log of what p(x, z) is multiplied by in a sum, nats, (B, K) float64: one over the
    probability to survive, times what others that go on alike add. 0 of a beam that
    recombines none."""
    cut: Tensor
    """Whether any choice of a group was left out, (B, R) bool; of a beam, whether it
    was full after any step, which may not have listed what it would not keep."""


def searched(steps: Steps, cut: Cut, score: Tensor | None = None) -> Found:
    """Search for latents, cutting after every step.

    Args:
        steps: Of what is searched.
        cut: The rule that chooses which go on.
        score: Of the histories before the piece, nats, (B, K); None: there are none, or
            they are all worth the same.
    """
    state = steps.begin(None)
    device, groups = steps.length.device, cut.groups
    if score is None and groups > 1:
        state = steps.begin(groups)
    if score is None:
        score = wide_zeros((len(steps.length), steps.num_histories(state)), device)
    score = widened(sent(score, device))
    log_f = torch.zeros_like(score)
    links: list[Tensor] = []
    path: list[Columns] = []
    stay = _best_histories(score, cut)
    widths = sent(torch.tensor(cut.widths), device)
    left_out = (score > -torch.inf).unflatten(1, (groups, -1)).sum(2) > widths
    for t in range(steps.num_steps):
        choices = steps.choices(state, t, score, cut)
        going_on = (steps.length > t)[:, None]
        kept = _survivors(choices, score, cut, t, ~going_on, stay.shape[1] // groups)
        number = kept.origin.shape[1] // groups
        # Texts that have ended keep what they have.
        stay, used = _padded(stay, cut, number)
        origin = torch.where(going_on, kept.origin, stay)
        left_out = left_out | (kept.left_out & going_on)
        taken = steps.take(state, t, choices, origin, kept.choice)
        state = taken.state
        links.append(origin)
        path.append(tuple(c.masked_fill(~going_on, 0) for c in taken.columns))
        log_step = kept.log_f.masked_fill(~going_on, 0.0)
        log_f = log_f.gather(1, origin) + log_step
        log_p = choices.picked(choices.log_p, origin, kept.choice) + kept.log_f
        after = (score.gather(1, origin) + log_p).masked_fill(~kept.used, -torch.inf)
        before = score.gather(1, stay).masked_fill(~used, -torch.inf)
        score = torch.where(going_on, after, before)
        stay = _every(score)
    if not links:
        score, log_f = score.gather(1, stay), log_f.gather(1, stay)
    decided, origin = _traced_back(links, path, stay)
    columns = _stacked(decided, steps.num_columns, origin)
    return Found(columns, score, origin, state, log_f, left_out)


class _Survivors(NamedTuple):
    """Choices of one step that a cut keeps, S in each of R groups."""

    origin: Tensor
    """Index of the history that each continues, (B, R S)."""
    choice: Tensor
    """Index of that history's choice, (B, R S)."""
    log_f: Tensor
    """Log factor of this step, as ``Found.log_f``, (B, R S)."""
    used: Tensor
    """Whether the place holds a choice, (B, R S) bool."""
    left_out: Tensor
    """Whether a choice was left out at this step, as ``Found.cut``."""


def _survivors(
    choices: Choices, score: Tensor, cut: Cut, t: int, ended: Tensor, places: int
) -> _Survivors:
    """Choose which choices of step t go on.

    Args:
        choices: Of the histories.
        score: Of the histories, nats, (B, K).
        cut: The rule that chooses.
        t: The step.
        ended: Which texts have ended, (B, 1) bool.
        places: Survivors a group so far, which texts that have ended keep.
    """
    groups, size = cut.groups, (len(score), cut.groups)
    rank, log_more = choices.table(score, groups), None
    if cut.recombines and isinstance(choices, Dense):
        log_more = choices.recombined(score, groups)
    if log_more is not None:
        rank = rank + log_more
    column, log_f = cut.keep(rank, t)
    if (more := places - column.shape[1]) > 0 and ended.any():
        column = torch.cat([column, column[:, :1].expand(-1, more)], 1)
        log_f = F.pad(log_f, (0, more), value=-torch.inf)
    used = rank.gather(1, column) + log_f > -torch.inf
    possible = (rank > -torch.inf).sum(1).view(size)
    if cut.exhaustive:
        left_out = possible > used.sum(1).view(size)
    else:
        left_out = possible >= max(cut.widths)
    if log_more is not None:
        log_f = log_f + log_more.gather(1, column)
    log_f, used = (x.unflatten(0, size).flatten(1) for x in (log_f, used))
    return _Survivors(*choices.found(column, groups), log_f, used, left_out)


def _traced_back(
    links: Sequence[Tensor], path: Sequence[Columns], last: Tensor
) -> tuple[list[Columns], Tensor]:
    """Follow survivors to what they decided at each step, and where they began.

    Args:
        links: Of each step, which history before it each survivor continues, (B, K).
        path: Of each step, what its survivors decided, (B, K) each.
        last: Survivors of the last step, (B, K).
    """
    decided: list[Columns] = []
    for link, columns in zip(reversed(links), reversed(path), strict=True):
        decided.append(tuple(column.gather(1, last) for column in columns))
        last = link.gather(1, last)
    return decided[::-1], last


def _every(score: Tensor) -> Tensor:
    """Return the number of each history, (B, K)."""
    return torch.arange(score.shape[1], device=score.device).expand_as(score)


def _best_histories(score: Tensor, cut: Cut) -> Tensor:
    """Return the histories that a text without a token keeps, in order, (B, R S)."""
    size, width = score.shape[1] // cut.groups, max(cut.widths)
    if size <= width:
        return _every(score)
    best = best_of(score.unflatten(1, (cut.groups, size)).flatten(0, 1), width)
    first = torch.arange(cut.groups, device=score.device)[:, None] * size
    kept: Tensor = best.sort(1).values.unflatten(0, (len(score), cut.groups)) + first
    return kept.flatten(1)


def _padded(stay: Tensor, cut: Cut, number: int) -> tuple[Tensor, Tensor]:
    """Pad the survivors of each group to equal numbers of places."""
    stay = stay.unflatten(1, (cut.groups, -1))
    size = stay.shape[2]
    used = torch.arange(number, device=stay.device) < size
    stay = F.pad(stay, (0, max(number - size, 0)))[..., :number]
    return stay.flatten(1), used.expand_as(stay).flatten(1)


def _stacked(path: Sequence[Sequence[Tensor]], number: int, like: Tensor) -> Columns:
    """Put the decisions of T steps side by side: columns of (B, K, T)."""
    if not path:
        return (like.new_zeros(*like.shape, 0),) * number
    return tuple(torch.stack(columns, -1) for columns in zip(*path, strict=True))


class Followed(NamedTuple):
    """One step of given latents."""

    choices: Choices
    choice: Tensor
    """Index of the choice that was decided, (B, K)."""
    there: Tensor
    """Mask of histories that list that choice, (B, K) bool."""
    inside: Tensor
    """Mask of texts that have this step, (B, 1) bool."""
    state: Any
    """After the step."""


def follow(steps: Steps, columns: Columns) -> Iterator[Followed]:
    """Yield the steps of given latents.

    Args:
        steps: Of a distribution that lists every choice.
        columns: What was decided at T steps, (B, K, T) each, where choices are.
    """
    state = steps.begin(columns[0].shape[1])
    score = wide_zeros(columns[0].shape[:2], steps.length.device)
    stay = _every(score)
    for t in range(steps.num_steps):
        choices = steps.choices(state, t, score, None)
        choice, there = choices.find(tuple(column[..., t] for column in columns))
        state = steps.take(state, t, choices, stay, choice).state
        inside = (steps.length > t)[:, None]
        yield Followed(choices, choice, there, inside, state)


def log_prob(steps: Steps, columns: Columns, temperature: float) -> Tensor:
    """Return log q of given latents, nats, (B, K) float64, where choices are.

    Args:
        steps: Of q, which list every choice.
        columns: What was decided at T steps, (B, K, T) each, where choices are.
        temperature: Divides the scores.
    """
    total = wide_zeros(columns[0].shape[:2], steps.length.device)
    for choices, choice, there, inside, _ in follow(steps, columns):
        log_q = choices.at(choices.log_q(temperature), choice)
        log_q = log_q.masked_fill(~there, -torch.inf)
        total = total + log_q.masked_fill(~inside, 0.0)
    return total
