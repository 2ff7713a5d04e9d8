r"""The left-to-right estimator of topic models (Wallach et al., 2009).

A particle draws z_t, the decision of word t, given the words and decisions so far, and
before every word redraws all earlier decisions once:

.. math::
    w = \prod_t p(x_t \mid z_{<t}, x_{<t}), \qquad
    \hat p(x) = \frac{1}{K} \sum_{k=1}^{K} w_k

Redrawing leaves p(z_<t | x_<t) as it is, so every w is unbiased for p(x) (an annealed
importance sample whose steps are words). The published estimator multiplies the means
over particles word by word instead, which is unbiased only where particles have
forgotten where they began: ``word_by_word`` has it, for comparison.

Its work is quadratic in the number of words.

Source: Wallach, Murray, Salakhutdinov and Mimno (2009), section 4, algorithm 1; Buntine
(2009), "Estimating likelihoods for topic models", for products within a particle.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from lm_latent_eval.estimators import Estimate
from lm_latent_eval.inference.few import WholeTextEstimator
from lm_latent_eval.inference.importance import ImportanceSampling
from lm_latent_eval.inference.models import LM, P, Q, Sampler
from lm_latent_eval.inference.streams import Streams
from lm_latent_eval.inference.sweeps import SweepNumbers, draw_choice, redraw
from lm_latent_eval.latent import Latents, Redraws
from lm_latent_eval.text.batch import TokenBatch


@dataclass(frozen=True)
class LeftToRightEstimator(WholeTextEstimator):
    """K independent particles a text; unbiased for p(x), nested in K."""

    name: ClassVar[str] = "l2r"
    how: ClassVar[str] = "the left-to-right estimator, seed {seed}"

    def log_weights(
        self,
        model: LM[P],
        proposal: Sampler[Q],
        batch: TokenBatch,
        keys: list[int],
    ) -> Tensor:
        """Return the log-weights of whole texts in nats, (B, K) float64.

        Raises:
            ValueError: If the model's decisions cannot be redrawn.
        """
        return self.log_predicted(model, batch, keys).sum(-1)

    def log_predicted(self, model: LM[P], batch: TokenBatch, keys: list[int]) -> Tensor:
        """Return log p(x_t | z_<t, x_<t) of every particle, nats, (B, K, T); 0 past T.

        Raises:
            ValueError: If the model's decisions cannot be redrawn.
        """
        redraws = redrawable(model, self.name)
        latents = redraws.conditionals(model.encode(batch), self.num_samples)
        streams = Streams(keys, self.num_samples)
        numbers = SweepNumbers(streams)
        parts = []
        for t in range(batch.targets.shape[1]):
            # A word's own draw is the last of its sweep over those before it.
            uniforms = numbers(t + 1, t + 1)
            redraw(latents, range(t), uniforms)
            log_p = latents.log_p(t)
            parts.append(log_p.logsumexp(-1))
            latents.decide(t, draw_choice(log_p, uniforms[..., t]))
        return torch.stack(parts, -1)

    def word_by_word(self, log_predicted: Tensor) -> Tensor:
        """Return the published estimate: the product of means over particles.

        Args:
            log_predicted: Nats, (..., K, T).

        Returns:
            Nats, (...,).
        """
        means = log_predicted.logsumexp(-2) - math.log(self.num_samples)
        return means.sum(-1)

    def estimate(self, log_w: Tensor, num_tokens: int) -> Estimate:
        """Return the estimate of one text's log p(x), from log-weights (K,)."""
        estimate = ImportanceSampling(self.num_samples).estimate(log_w, num_tokens)
        return replace(estimate, estimator=self.name)


def redrawable(model: LM[P], estimator: str) -> Redraws[P, Latents]:
    """Return a model whose decisions can be redrawn given the others.

    Raises:
        ValueError: If they cannot.
    """
    if isinstance(model, Redraws):
        return model
    raise ValueError(
        f"estimator={estimator} redraws each decision given all others, which a "
        f"{type(model).__name__} has no closed form for: use mixed, is or smc"
    )
