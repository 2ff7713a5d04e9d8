"""What DERIVED mentions of a text are worth, by who their parents are."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

LEAST = 1e-12
"""Probabilities are taken to be no less where their logarithm is."""

LITTLE = 0.05
"""Nats. Tokens that no parents can change by more are not looked at."""


class Derivable(NamedTuple):
    r"""What a DERIVED mention is worth at tokens of a text, by who its parents are.

    With o, m, w and v from here, and the states e being parents with probability rho,
    the probability of the text over what it is by the chain is

    .. math::
        o_t + \sum_c m_t(c)
            \frac{\sum_e \rho_t(e) \, w_t(e) \, v_t(e)}{\sum_e \rho_t(e) \, w_t(e)}
    """

    otherwise: Tensor
    """o, if nothing is derived, or after a less likely last mention, (B, T)."""
    mass: Tensor
    """m, the probability that something is derived after each of L last mentions, over
    what that is worth, (B, T, L)."""
    last: Tensor
    """c, the states that these are, (B, T, L)."""
    weight: Tensor
    """w, (B, T, S)."""
    paid: Tensor
    """v, (B, T, S)."""
    unknown: Tensor
    """What parents from before the piece pay and weigh, (B, T, 2)."""
    best: Tensor
    """The largest v of any parent, (B, T)."""

    @property
    def at_most(self) -> Tensor:
        """Return the probability with the best of parents, at least ``LEAST``."""
        return (self.otherwise + self.mass.sum(-1) * self.best).clamp_min(LEAST)

    def ahead(self, t: int, most: int) -> tuple[Tensor, Derivable]:
        """Return those of the next ``most`` tokens from t on that parents may change.

        Returns:
            How far from t they are, (B, J), and their values. Texts with fewer than J
            have others, of which nothing is derived.
        """
        near = Derivable(*(part[:, t : t + most] for part in self))
        change = near.at_most.log() - near.otherwise.clamp_min(LEAST).log()
        some = change > LITTLE
        number = int(some.sum(1).max()) if some.shape[1] else 0
        distance = some.byte().argsort(dim=1, descending=True, stable=True)[:, :number]
        chosen = Derivable(*(tokens_of(part, distance) for part in near))
        return distance, chosen.only(some.gather(1, distance))

    def only(self, some: Tensor) -> Derivable:
        """Return these, but that nothing is derived at other than some tokens."""
        otherwise = self.otherwise.masked_fill(~some, 1.0)
        mass = self.mass.masked_fill(~some[..., None], 0.0)
        return self._replace(otherwise=otherwise, mass=mass)


def tokens_of(value: Tensor, token: Tensor) -> Tensor:
    """Return the values of some tokens, (B, T, ...) and (B, J) -> (B, J, ...)."""
    text = torch.arange(len(token))[:, None]
    return value[text, token]
