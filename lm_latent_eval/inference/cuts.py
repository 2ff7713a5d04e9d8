"""Pruning of searches and filters: survivors of a cut and their weights.

A beam keeps the W best. A discrete particle filter keeps W as well, but lets every
choice survive with a probability and weighs the survivors for it, so that sums over
them stay unbiased (``pruning``).

Scores that tie but for rounding are told apart by their order (``best_of``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import torch
from torch import Tensor

from lm_latent_eval.devices import sent
from lm_latent_eval.inference.pruning import CUT_LANE, GRID, thin_table
from lm_latent_eval.inference.sorted_lists import Places
from lm_latent_eval.latent import Uniforms

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


FEWEST = 8
"""Places of a group, at least."""


@dataclass(frozen=True)
class Best:
    """The W best of each text: a beam."""

    groups: ClassVar[int] = 1
    num_narrow: ClassVar[int] = 0
    num_checks: ClassVar[int] = 0
    exhaustive: ClassVar[bool] = False
    width: int
    recombines: bool = False
    """Whether one history stands for all that go on alike."""

    @property
    def widths(self) -> tuple[int, ...]:
        """W of the only group."""
        return (self.width,)

    def keep(self, rank: Tensor, t: int) -> tuple[Tensor, Tensor]:
        """Choose the best; nothing is random, and no weight changes."""
        index = best_of(rank, min(self.width, rank.shape[1]))
        return index, rank.new_zeros(index.shape)


@dataclass
class Thinned:
    """Up to W of each of R groups: the best for sure, the others drawn.

    As long as all choices of a group fit, all go on. Then as many do as have the share
    ``worth`` of the total, smaller ones counted in part, but no fewer than ``FEWEST``.
    """

    exhaustive: ClassVar[bool] = True
    """Choices must be listed that cannot be among the best."""
    recombines: ClassVar[bool] = True
    widths: tuple[int, ...]
    """W: the most that go on of each group."""
    uniforms: Uniforms
    """Step -> (B, R, 4): of each group."""
    whole: Tensor
    """Mask of groups whose choices have all fitted so far, (B, R) bool."""
    worth: Tensor
    """Share of a group's total that is worth a place, (B, R) float64."""
    num_narrow: int = 0
    """Number of groups that check the first ones, with half of what those may list."""
    num_checks: int = 0
    """Number of groups after these that check by another look-ahead."""

    @property
    def groups(self) -> int:
        """R: into how many groups the histories of a text fall, which are cut apart."""
        return len(self.widths)

    @property
    def fewest(self) -> Tensor:
        """How many places groups use at least once anything was cut, (B, R)."""
        return torch.full(self.whole.shape, FEWEST)

    def keep(self, rank: Tensor, t: int) -> tuple[Tensor, Tensor]:
        """Choose by threshold and systematic sampling, on the host.

        Args:
            rank: Of the choices of B R groups at step t, nats, (B R, M) float64;
                ``-inf``: there is none.
            t: The step, counted from the beginning of the piece.

        Returns:
            Columns of ``rank``, (B R, W') with W' at most the largest W, and the
            logarithm of what a survivor's weight is multiplied by, the same shape. Of
            places that are left over that is ``-inf``.
        """
        rank, device = rank.cpu().double(), rank.device
        width = torch.tensor(self.widths).repeat(len(self.whole))
        fits = (rank > -torch.inf).sum(1) <= width
        self.whole = self.whole & fits.view_as(self.whole)
        u = torch.zeros(len(rank)).double()
        if not self.whole.all():
            u = self.uniforms(t)[..., CUT_LANE].flatten()
        numbers = width, self.fewest, self.worth, self.whole
        places = Places(*(x.flatten().numpy() for x in numbers))
        found = thin_table(rank.numpy(), places, u.numpy())
        kept = [torch.from_numpy(part) for part in found]
        return sent(kept[0], device), sent(kept[1], device)


Cut: TypeAlias = Best | Thinned
"""A rule that decides which choices survive a step: see ``Thinned``."""
