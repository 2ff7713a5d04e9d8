"""The estimator interface that scoring uses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Protocol, Self

from torch import Tensor

from lm_latent_eval.estimators import Bound, Estimate
from lm_latent_eval.inference.models import LM, P, Predicts, Q, Sampler
from lm_latent_eval.text.batch import TokenBatch


class Weighted(Protocol):
    """Weighted latents of B texts that can be gone on with, such as ``Particles``."""

    @property
    def log_w(self) -> Tensor:
        """Log-weights so far in nats, (B, number of latents) float64."""
        ...

    def select(self, index: Tensor, /) -> Self:
        """Pick texts."""
        ...

    def ahead(
        self, model: Predicts[P], inputs: Tensor, given: TokenBatch | None = None, /
    ) -> Self:
        """Read the last token of each text, (B,), as one predicts what follows it.

        Args:
            model: A latent LM.
            inputs: The last tokens.
            given: What the texts are conditional on, if they are.
        """
        ...

    def next_token(
        self, model: Predicts[P], keys: Sequence[int], starts: Sequence[int], /
    ) -> Tensor:
        """Predict the next token of texts that have read ``ahead``, (B, words).

        Args:
            model: A latent LM.
            keys: The key of each text's random numbers, as ``extend`` takes it.
            starts: How many tokens each text had so far.
        """
        ...


class Estimator(ABC):
    """A way to estimate log p(x), built with its number of samples or width."""

    name: ClassVar[str]
    """What ``estimator=`` calls it."""
    how: ClassVar[str]
    """What it does, for ``explain``; ``{proposal}``, ``{temperature}`` and ``{seed}``
    are filled in."""
    bound: ClassVar[Bound] = Bound.STOCHASTIC_LOWER
    """How log p-hat bounds log p where it is not found to be exact."""
    checks: ClassVar[bool] = False
    """Whether it looks for what its draws miss; without, no estimate has an error."""
    searches: ClassVar[bool] = False
    """Whether it needs the proposal's ``beam``."""
    own_proposal: ClassVar[bool] = False
    """Whether it searches by the model's own proposal, where that says what steps are,
    whatever ``proposal=`` names."""
    seeded: ClassVar[bool] = True
    """Whether random numbers move it."""

    num_samples: int
    """K: samples, particles or a beam's width."""

    @property
    def beside(self) -> int:
        """Evaluations of p(x, z) a text beside K."""
        return 0

    @property
    def held(self) -> int:
        """Latents of a text that are held at once, while it searches."""
        return 0

    @property
    def kept(self) -> int:
        """Log-weights in an estimate."""
        return 0

    @abstractmethod
    def log_weights(
        self,
        model: LM[P],
        proposal: Sampler[Q],
        batch: TokenBatch,
        keys: list[int],
        /,
    ) -> Tensor:
        """Weigh latents of whole texts.

        Args:
            model: A latent LM.
            proposal: Its proposal.
            batch: B whole texts.
            keys: The key of each text's random numbers.

        Returns:
            Nats of shape (B, number of latents), float64, as ``estimate`` reads them.
        """

    @abstractmethod
    def extend(
        self,
        model: LM[P],
        proposal: Sampler[Q],
        batch: TokenBatch,
        keys: list[int],
        starts: list[int],
        after: Weighted,
        /,
    ) -> Weighted:
        """Read on: weigh latents of some more tokens.

        Args:
            model: A left-to-right latent LM.
            proposal: Its left-to-right proposal.
            batch: The tokens that follow.
            keys: The key of each text's random numbers.
            starts: How many tokens each text had so far.
            after: The texts so far: ``Particles.begin``, or what this has returned.
        """

    @abstractmethod
    def estimate(self, log_w: Tensor, num_tokens: int, /) -> Estimate:
        """Estimate log p of one text from its row of weights."""

    @abstractmethod
    def difference(
        self, log_w: Tensor, log_w_prefix: Tensor, num_tokens: int, /
    ) -> Estimate:
        """Estimate log p(continuation | prefix) from both under the same latents."""
