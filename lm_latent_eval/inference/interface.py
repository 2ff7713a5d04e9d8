"""What scoring asks of an estimator."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from lm_latent_eval.estimators import Estimate
from lm_latent_eval.inference.particles import Particles
from lm_latent_eval.text.batch import TokenBatch


class Estimator(Protocol):
    """A way to estimate log p(x), built with its number of samples or width."""

    @property
    def num_samples(self) -> int:
        """How many latents of a text are held."""
        ...

    def log_weights(
        self, model: Any, proposal: Any, batch: TokenBatch, keys: list[int], /
    ) -> Tensor:
        """Weigh latents of whole texts.

        Args:
            model: A latent LM.
            proposal: Its proposal.
            batch: B whole texts.
            keys: The key of each text's random numbers.

        Returns:
            Nats of shape (B, num_samples), float64, which ``estimate`` reads.
        """
        ...

    def extend(
        self,
        model: Any,
        proposal: Any,
        batch: TokenBatch,
        keys: list[int],
        starts: list[int],
        after: Particles,
        /,
    ) -> Particles:
        """Read on: weigh latents of some more tokens.

        Args:
            model: A left-to-right latent LM.
            proposal: Its left-to-right proposal.
            batch: The tokens that follow.
            keys: The key of each text's random numbers.
            starts: How many tokens each text had so far.
            after: The texts so far.
        """
        ...

    def estimate(self, log_w: Tensor, num_tokens: int, /) -> Estimate:
        """Estimate log p of one text from its weights, (num_samples,)."""
        ...

    def difference(
        self, log_w: Tensor, log_w_prefix: Tensor, num_tokens: int, /
    ) -> Estimate:
        """Estimate log p(continuation | prefix) from both under the same latents."""
        ...
