r"""Pruning of searches and filters: survivors of a cut and their weights.

A beam keeps the W best. A discrete particle filter keeps W as well, but lets every
choice survive with a probability and weighs the survivors for it, so that sums over
them stay unbiased. With ranks r_1 .. r_M, positive numbers that stand for what a choice
and all that follows it will turn out to be worth, it finds the threshold c with

.. math:: \sum_i \min(r_i / c, 1) = W

keeps every choice of r_i >= c, and W minus their number of the others, each with
probability r_i / c and then as if its rank were c: the total of the ranks is kept. The
others are drawn systematically, by one random number, in the order in which they are
listed.

Choices after which everything goes on alike, such as walks that mentioned other
entities long ago, need no places of their own: one of them is kept, drawn in proportion
to its rank, as if its rank were the total of theirs. Where ranks are proportional to p
that changes no sum at all.

Source: Fearnhead and Clifford (2003), "On-line inference for hidden Markov models via
particle filters", section 3.2: optimal resampling.

Scores that tie but for rounding are told apart by their order (``best_of``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from lm_latent_eval.devices import sent, sent_uniforms, widened
from lm_latent_eval.inference.ragged import invert_cdf as invert_ragged_cdf
from lm_latent_eval.inference.ragged import segment_logsumexp
from lm_latent_eval.latent import Uniforms

GRID = 2.0**-10
"""Nats: a hundred times what float32 scores of a text differ by in another batch."""
LEAST = -(2.0**34)
"""The rank of what is impossible, behind all that is above -2^24 nats: more than those
of a million tokens. Rank and place of fewer than 2^29 options fit into one int64."""


def ranks(score: Tensor) -> Tensor:
    """Round scores to the grid on which latents are ranked.

    Latents may tie, such as two that differ in nothing a model looks at. Their scores
    then differ by rounding, which is another in another batch; on a grid they are
    equal, and their order decides. Rounding still does where a score falls between two
    points of the grid: one time of a hundred.

    Args:
        score: Nats, ``-inf`` for what is impossible.

    Example:
        >>> ranks(torch.tensor([-3.00001, -3.0, -3.1])).tolist()
        [-3072.0, -3072.0, -3174.0]
    """
    return (score / GRID).round()


def best_of(score: Tensor, number: int) -> Tensor:
    """Return the places of the best scores of each row, the best one first.

    Of those that tie the first ones come first.

    Args:
        score: Nats, (R, N).
        number: How many, at most N.

    Example:
        >>> best_of(torch.tensor([[-3.00001, -3.1, -3.0, -2.0]]), 3)
        tensor([[3, 0, 2]])
    """
    size = score.shape[-1]
    place = torch.arange(size, device=score.device)
    rank = ranks(score).clamp_min(LEAST).long()
    return (rank * size - place).topk(number).indices


FEWEST = 40
"""Places of the widest groups, at least: what looks hopeless may be ranked wrongly."""
LEAST_USED = 1 / 32
"""Share of W that is used at least, so that wider groups err less in any text."""
ROUNDING = 1e-9
"""A number of places is no integer by so little."""
NARROW = 64
"""Columns of a table that are not worth dividing."""
LEAST_SHARE = 1e-3
"""Of p: a twentieth of what one of 50 draws moves an estimate by."""
CUT_LANE, CHOICE_LANE, MERGE_LANE = 0, 1, 2
"""Which of a step's random numbers cuts, which draws within a class of choices, and
which one of those that go on alike."""
GOLDEN = (math.sqrt(5) - 1) / 2
"""Multiples of it are spread evenly over (0, 1), modulo 1."""


class OneGroup:
    """Base class of rules that keep the best of each text."""

    groups: ClassVar[int] = 1
    num_checks: ClassVar[int] = 0
    exhaustive: ClassVar[bool] = False
    width: int

    @property
    def widths(self) -> tuple[int, ...]:
        """W of the only group."""
        return (self.width,)


@dataclass(frozen=True)
class Best(OneGroup):
    """The W best of each text: a beam."""

    width: int

    def keep(
        self, rank: Tensor, t: int, key: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Choose the best; nothing is random, and no weight changes."""
        index = best_of(rank, min(self.width, rank.shape[1]))
        return index, rank.new_zeros(index.shape)


@dataclass
class Fading(OneGroup):
    """The W best of each text, while they hold any of its probability.

    Where ranks are log p of what was read, the best hold a share of it that every cut
    diminishes. A sum over latents that hold less than ``LEAST_SHARE`` is worth nothing
    beside draws, so of those only the best one goes on.
    """

    width: int
    log_share: Tensor
    """Of each text so far, nats, (B,): at the beginning 0."""

    @property
    def faded(self) -> Tensor:
        """Of which texts only the best goes on, (B,) bool."""
        return self.log_share < math.log(LEAST_SHARE)

    def keep(
        self, rank: Tensor, t: int, key: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Choose the best; what is given up has a weight of zero."""
        index = best_of(rank, min(self.width, rank.shape[1]))
        log_share = rank.gather(1, index).logsumexp(1) - rank.logsumexp(1)
        # Where nothing is possible, nothing is lost.
        self.log_share = self.log_share + log_share.nan_to_num(0.0)
        if self.faded.all():
            index = index[:, :1]
        faded = self.faded[:, None] & (_columns(index) > 0)
        index = torch.where(faded, index[:, :1], index)
        return index, rank.new_zeros(index.shape).masked_fill(faded, -torch.inf)


@dataclass
class Thinned:
    """Up to W of each of R groups: the best for sure, the others drawn.

    As long as all choices of a group fit, all go on. Then as many do as have ``least``
    of the total, smaller ones counted in part. Of the widest groups these are no fewer
    than ``FEWEST`` and ``LEAST_USED`` of W, of narrower ones in proportion.
    """

    exhaustive: ClassVar[bool] = True
    """Choices must be listed that cannot be among the best."""
    widths: tuple[int, ...]
    """W: the most that go on of each group."""
    uniforms: Uniforms
    """Step -> (B, R, 4): of each group."""
    whole: Tensor
    """Of which groups all choices fit so far, (B, R) bool."""
    doubt: Tensor
    """By how much ranks may be wrong, nats, (B,)."""
    places_factor: Tensor
    """How many times as many places each text uses at least, for its length, (B,)."""
    num_checks: int = 0
    """How many groups, the last ones, check the others: they are ranked by another
    look-ahead, where there is one."""

    @property
    def groups(self) -> int:
        """R: into how many groups the histories of a text fall, which are cut apart."""
        return len(self.widths)

    @property
    def width_of(self) -> Tensor:
        """W of each group of each text, (B R,)."""
        return torch.tensor(self.widths).repeat(len(self.whole))

    def _fit(self, fits: Tensor) -> None:
        """Remember which groups fit no longer, (B R,)."""
        self.whole = sent(self.whole, fits.device) & fits.view_as(self.whole)

    @property
    def fewest(self) -> Tensor:
        """How many places groups use at least once anything was cut, (B, R)."""
        share = self.places_factor * max(FEWEST / max(self.widths), LEAST_USED)
        return (share[:, None] * torch.tensor(self.widths)).ceil().long()

    @property
    def worth(self) -> Tensor:
        """The share of a group's total that is worth a place, (B, R) float64."""
        share = (-widened(self.doubt)).exp()[:, None] / torch.tensor(self.widths)
        return share.clamp_min(torch.finfo(share.dtype).tiny)

    @property
    def _least(self) -> Tensor:
        return (
            sent(self.worth, self.whole.device).masked_fill(self.whole, 0.0).flatten()
        )

    def keep(
        self, rank: Tensor, t: int, key: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Choose by threshold and systematic sampling, of equal keys one.

        Args:
            rank: Of the choices of B R groups at step t, nats, (B R, M) float64;
                ``-inf``: there is none.
            t: The step, counted from the beginning of the piece.
            key: Integers that are equal where everything goes on alike, (B R, M); None:
                nothing is known of it.

        Returns:
            Columns of ``rank``, (B R, W') with W' at most the largest W, and the
            logarithm of what a survivor's weight is multiplied by, the same shape. Of
            places that are left over that or the rank is ``-inf``.
        """
        u = sent_uniforms(self.uniforms(t).flatten(0, 1), rank.device)
        width, possible = sent(self.width_of, rank.device), rank > -torch.inf
        self._fit(possible.sum(1) <= width)
        fewest = sent(self.fewest.flatten(), rank.device)
        least = self._least
        if rank.device.type != "cpu" or rank.shape[1] <= NARROW:
            return self._keep(rank, key, width, least, fewest, u)
        kept = []
        for rows, columns in alike(possible):
            some = None if key is None else key[rows, :columns]
            of_rows = (x[rows] for x in (width, least, fewest, u))
            kept.append((rows, *self._keep(rank[rows, :columns], some, *of_rows)))
        most = max(column.shape[1] for _, column, _ in kept)
        column = torch.zeros(len(rank), most, dtype=torch.long)
        log_f = rank.new_full((len(rank), most), -torch.inf)
        for rows, some, log_some in kept:
            column[rows, : some.shape[1]] = some
            log_f[rows, : some.shape[1]] = log_some
        return column, log_f

    def _keep(
        self,
        rank: Tensor,
        key: Tensor | None,
        width: Tensor,
        least: Tensor,
        fewest: Tensor,
        u: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Choose in some rows, which have numbers of places and random ones each."""
        whole, log_f = least == 0, torch.zeros_like(rank)
        if key is not None:
            log_f = merged(rank, key, u[:, MERGE_LANE])
            log_f = log_f.masked_fill(whole[:, None], 0.0)
            rank = rank + log_f
        mass, most = relative(rank), min(max(self.widths), rank.shape[1])
        worth = _worth(mass, least).maximum(fewest)
        number = torch.where(whole, width, worth)
        number = number.minimum(width).clamp_max(most)
        if rank.device.type == "cpu":  # a device would be waited for
            most = int(number.max())
        column, log_kept = thinned(mass, number, most, u[:, CUT_LANE])
        return column, log_kept + log_f.gather(1, column)


Cut: TypeAlias = Best | Fading | Thinned
"""A rule that decides which choices survive a step: see ``Thinned``."""


def alike(possible: Tensor) -> list[tuple[Tensor, int]]:
    """Divide the rows of a padded table into parts whose last columns are alike.

    Args:
        possible: Where the table has anything, on the host, (R, M) bool.

    Returns:
        Rows of each part, and how many columns they have.

    Example:
        >>> possible = torch.arange(400) < torch.tensor([[400], [3], [399]])
        >>> alike(possible)
        [(tensor([0, 2]), 400), (tensor([1]), 3)]
    """
    size = possible.shape[1]
    last = size - possible.flip(1).byte().argmax(1)
    last = last.masked_fill(~possible.any(1), 0)
    parts = []
    while size > 0:
        # The last part has the rows that hold nothing as well.
        least = size // 4 if size > NARROW else -1
        (rows,) = ((last <= size) & (last > least)).nonzero(as_tuple=True)
        if len(rows):
            parts.append((rows, max(1, int(last[rows].max()))))
        size = least
    return parts


def _worth(mass: Tensor, least: Tensor) -> Tensor:
    """Return how many of each row are worth a place, (R,)."""
    whole = (mass.sum(1) * least).clamp_min(torch.finfo(mass.dtype).tiny)
    places = (mass / whole[:, None]).clamp_max(1.0).sum(1)
    # What rounding adds to a whole number is no place.
    return (places - ROUNDING).ceil().long()


def relative(rank: Tensor) -> Tensor:
    """Return ranks of nats, (R, M), as numbers of which each row's largest is 1.

    What is possible stays positive despite rounding; ``-inf`` is 0.
    """
    possible = rank > -torch.inf
    top = rank.amax(1, keepdim=True).masked_fill(~possible.any(1, keepdim=True), 0.0)
    least = math.log(torch.finfo(rank.dtype).tiny)
    return (rank - top).clamp_min(least).exp().masked_fill(~possible, 0.0)


def thinned(
    mass: Tensor, number: Tensor, most: int, u: Tensor
) -> tuple[Tensor, Tensor]:
    r"""Keep some choices of each row, with weights that leave sums unbiased.

    .. math:: \mathrm{E}\Bigl[\sum_{i \text{ kept}} f_i \, g_i\Bigr] = \sum_i g_i

    for any numbers g, f_i being one over the probability that i is kept.

    Args:
        mass: Ranks, up to a factor a row, (R, M) float64; 0: no choice.
        number: How many to keep of each row, at least one, (R,).
        most: W, the most that any keeps, at most M.
        u: A number of (0, 1) each, (R,).

    Returns:
        Columns and log f, (R, W) each. Of a row with fewer choices than it may keep all
        are kept; places that are left over have the best column, and -inf for log f.

    Example:
        >>> mass = torch.tensor([[0.5, 0.2, 0.2, 0.1]]).double()
        >>> u = torch.tensor([0.7]).double()
        >>> column, log_f = thinned(mass, torch.tensor([2]), 2, u)
        >>> column, log_f.exp()
        (tensor([[0, 2]]), tensor([[1.0000, 2.5000]], dtype=torch.float64))
    """
    possible = mass > 0
    # In which order equal ones come is the same: all or none of them are sure to stay.
    ordered, order = mass.topk(most, dim=1)
    # What is left, and how many places for it, after the k best are sure to stay.
    place = _columns(order)
    number = number[:, None]
    behind = mass.scatter(1, order, 0.0).sum(1, keepdim=True)
    rest = ordered.flip(1).cumsum(1).flip(1) + behind
    settled = (ordered * (number - place) <= rest) | (place >= number - 1)
    sure = settled.long().argmax(1, keepdim=True)
    few = possible.sum(1, keepdim=True) <= number
    threshold = rest.gather(1, sure) / (number - sure)
    sure = torch.where(few, number, sure)
    is_sure = place < sure
    drawn = possible.scatter(1, order, ~is_sure & possible.gather(1, order))
    chance = (mass / threshold).masked_fill(~drawn, 0.0).cumsum(1)
    # Points at distances of one: each chance is below one, so none is met twice.
    left = (number - sure).clamp_min(0)
    total = widened(left)
    chance = chance / chance[:, -1:].clamp_min(torch.finfo(chance.dtype).tiny) * total
    point = place - sure + u[:, None]
    met = torch.searchsorted(chance, point.contiguous(), right=True)
    met = met.clamp_max(mass.shape[1] - 1)
    column = torch.where(is_sure, order, met)
    log_f = threshold.log() - mass.gather(1, column).log()
    left_over = (place >= number) | ~possible.gather(1, column)
    column = torch.where(left_over, order[:, :1], column)
    log_f = log_f.masked_fill(is_sure, 0.0).masked_fill(left_over, -torch.inf)
    # As they are listed: in the order of ranks rounding would decide between ties. What
    # is left over comes last, since how much that is depends on other rows.
    order = (column + left_over * mass.shape[1]).sort(1).indices
    return column.gather(1, order), log_f.gather(1, order)


def merged(rank: Tensor, key: Tensor, u: Tensor) -> Tensor:
    """Keep one choice of each key in a row, drawn in proportion to its rank.

    Args:
        rank: Nats, (R, M) float64; ``-inf``: no choice.
        key: Integers, (R, M).
        u: A number of (0, 1) each, (R,).

    Returns:
        Log of one over the probability that a choice is kept, (R, M) nats; ``-inf`` of
        those that are not.

    Example:
        >>> rank = torch.tensor([[0.2, 0.3, 0.5]]).double().log()
        >>> key, u = torch.tensor([[7, 4, 7]]), torch.tensor([0.7]).double()
        >>> merged(rank, key, u).exp()
        tensor([[0.0000, 1.0000, 1.4000]], dtype=torch.float64)
    """
    # What is impossible comes last, and alone: how much there is must decide nothing.
    possible = rank > -torch.inf
    key = key.masked_fill(~possible, torch.iinfo(key.dtype).max)
    key, order = key.sort(dim=1, stable=True)
    again = (key.diff(dim=1) == 0) & possible.gather(1, order)[:, 1:]
    first = F.pad(again, (0, 1)) & ~F.pad(again, (1, 0))
    (place,) = (first | F.pad(again, (1, 0))).flatten().nonzero(as_tuple=True)
    log_f = torch.zeros(rank.numel(), dtype=rank.dtype, device=rank.device)
    if len(place):
        begins = first.flatten()[place]
        group, value = begins.cumsum(0) - 1, rank.gather(1, order).flatten()[place]
        every = torch.arange(int(group[-1]) + 1, device=rank.device)
        log_total = segment_logsumexp(value, group, len(every))
        # A number of each key's own, from the one of its row.
        begin = place[begins]
        point = GOLDEN * first.cumsum(1).flatten()[begin] + u[begin // rank.shape[1]]
        point = point.frac().clamp_min(torch.finfo(point.dtype).tiny)
        share = (value - log_total[group]).exp()
        drawn = invert_ragged_cdf(share, group, len(every), every, point)
        log_f[place] = -torch.inf
        log_f[place[drawn]] = log_total - value[drawn]
    log_f = torch.empty_like(rank).scatter_(1, order, log_f.view_as(rank))
    return log_f.masked_fill(~possible, -torch.inf)


def _columns(like: Tensor) -> Tensor:
    """Return the number of each column, as large as a table."""
    return torch.arange(like.shape[1], device=like.device).expand_as(like)
