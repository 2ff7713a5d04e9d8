"""What an estimator of masked diffusion asks: predictions of a target's tokens.

An estimator is a generator. It yields which of a target's tokens are masked, as many
choices at a time as it likes, and is sent what a network predicts there. So it reads
like its equation, and passes of many targets can share batches (``batches.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")

Certainty: TypeAlias = Callable[[Tensor], Tensor]
"""Log-probabilities of V tokens at M places, (M, V) -> how sure each is, (M,)."""


@dataclass(frozen=True)
class TargetTokens:
    """L tokens to be predicted among others that are given."""

    before: tuple[int, ...]
    tokens: tuple[int, ...]
    after: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a target of nothing."""
        if not self.tokens:
            raise ValueError("an empty target: there is no token to predict")

    def __len__(self) -> int:
        """L."""
        return len(self.tokens)

    @property
    def num_places(self) -> int:
        """Tokens that the network reads."""
        return len(self.before) + len(self.tokens) + len(self.after)

    @property
    def all_tokens(self) -> Tensor:
        """Those given and those to be predicted, (T,)."""
        return torch.tensor([*self.before, *self.tokens, *self.after])

    def placed(self, masked: Tensor) -> Tensor:
        """Say of all T tokens which are masked, (n, L) -> (n, T)."""
        given = (len(self.before), len(self.after))
        return torch.nn.functional.pad(masked, given, value=False)


class Predicted(NamedTuple):
    """What is said of a target's tokens under n choices of masks, (n, L) each.

    Only what is said of masked tokens means something; the rest is zero.
    """

    log_p: Tensor
    """Log-probability of the target's token, nats, float64."""
    is_best: Tensor
    """Whether that token is the most probable one."""
    certainty: Tensor
    """How sure the prediction is, by the rule of an order; it never sees the target."""


Asking: TypeAlias = Generator[Tensor, Predicted, T]
"""Yields masks, (n, L) true where a token is masked; returns what it has found."""
