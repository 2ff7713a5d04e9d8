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
    def first_read(self) -> int:
        """Place from which on the network is read: all of it."""
        return 0

    @property
    def all_tokens(self) -> Tensor:
        """Those given and those to be predicted, (T,)."""
        return torch.tensor([*self.before, *self.tokens, *self.after])

    def placed(self, masked: Tensor) -> Tensor:
        """Say of all T tokens which are masked, (n, L) -> (n, T)."""
        given = (len(self.before), len(self.after))
        return torch.nn.functional.pad(masked, given, value=False)


@dataclass(frozen=True)
class Block:
    """L tokens of a target that are written before those after them.

    A bidirectional network reads the later ones as masks, as where it writes; one whose
    attention is causal over blocks does not read them.
    """

    target: TargetTokens
    first: int
    last: int
    mask: int | None
    """What stands for each later token; None: nothing, the text ends here."""
    first_read: int = 0
    """Place from which on a network reads that has kept what it read before."""

    def __len__(self) -> int:
        """L."""
        return self.last - self.first

    @property
    def num_places(self) -> int:
        """Tokens that the network reads, those that it has kept among them."""
        if self.mask is None:
            return len(self.target.before) + self.last
        return self.target.num_places

    @property
    def all_tokens(self) -> Tensor:
        """Those given, those to be predicted and the masks, (T,)."""
        tokens = [*self.target.before, *self.target.tokens[: self.last]]
        if self.mask is not None:
            later = len(self.target) - self.last
            tokens += [*[self.mask] * later, *self.target.after]
        return torch.tensor(tokens)

    def placed(self, masked: Tensor) -> Tensor:
        """Say of all T tokens which are masked and predicted, (n, L) -> (n, T)."""
        begin = len(self.target.before) + self.first
        given = (begin, self.num_places - begin - len(self))
        return torch.nn.functional.pad(masked, given, value=False)


@dataclass(frozen=True)
class Blocks:
    """How a target is cut into blocks, which are written from the left."""

    length: int | None
    """Tokens of a block; None: all of the target is one."""
    mask: int
    causal: bool = False
    """Whether attention is causal over blocks: these are counted from the text's
    beginning then, and the first one of a target has what is left of its context's
    last; else from the target's."""

    def of(self, target: TargetTokens) -> list[TargetTokens | Block]:
        """Cut a target.

        Example:
            >>> target = TargetTokens((7, 8, 9), (1, 2, 3))
            >>> [len(block) for block in Blocks(2, mask=0).of(target)]
            [2, 1]
            >>> [len(block) for block in Blocks(2, mask=0, causal=True).of(target)]
            [1, 2]
        """
        if self.length is None:
            return [target]
        begun = len(target.before) % self.length if self.causal else 0
        starts = [0, *range(self.length - begun, len(target), self.length)]
        ends = [*starts[1:], len(target)]
        before = len(target.before)
        return [
            Block(target, first, last, None, before + first - (0 if first else begun))
            if self.causal
            else Block(target, first, last, self.mask)
            for first, last in zip(starts, ends, strict=True)
        ]


Target: TypeAlias = TargetTokens | Block


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
    log_beaten: Tensor
    """How likely what is drawn at j is less probable than the target's token at i,
    (n, L, L + 1), see ``unmasking.log_beaten``; (n, 0, 0) where no rule asks."""

    def of(self, rows: Tensor) -> Predicted:
        """Return what is said under some of the choices."""
        return Predicted(*(table[rows] for table in self))


Requests: TypeAlias = Generator[Tensor, Predicted, T]
"""Yields masks, (n, L) true where a token is masked; returns what it has found."""
