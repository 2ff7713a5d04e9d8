r"""Chib's method: p(x) = p(x, z*) / p(z* | x), the second factor by a Gibbs sampler.

z* is one good latent, found with random numbers of its own. With T the transition of a
sweep over all decisions, and a chain z_1 .. z_S of such sweeps in which z* stands one
sweep, run backwards, before a place chosen at random,

.. math::
    \hat p(x) = p(x, z^*) \Big/ \frac{1}{S} \sum_{s=1}^{S} T(z^* \leftarrow z_s)

is unbiased. Of the posterior's modes a chain sees the one where it begins: where there
are others, estimates are too low, nearly always, and agree with one another.

Source: Chib (1995); Murray and Salakhutdinov (2009), "Evaluating probabilities under
high-dimensional latent variable models", section 3; Wallach et al. (2009), section 3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lm_latent_eval.devices import sent, widened
from lm_latent_eval.inference.few import MarkovChainEstimator
from lm_latent_eval.inference.left_to_right import redrawable
from lm_latent_eval.inference.models import LM, P, Q, Sampler
from lm_latent_eval.inference.streams import Streams
from lm_latent_eval.inference.sweeps import (
    SweepNumbers,
    log_transition,
    redraw,
)
from lm_latent_eval.latent import Conditionals, Latents, Redraws
from lm_latent_eval.text.batch import TokenBatch

SEARCH = 20
"""Sweeps that look for z*: half of them draw, half take the best of each decision."""
SEARCHING = 1 << 30
"""The sweep at which the search's random numbers begin: chains are shorter."""


@dataclass(frozen=True)
class ChibStyle(MarkovChainEstimator):
    """K sweeps in up to ten chains; unbiased for p(x), not nested in K."""

    name: ClassVar[str] = "chib"
    how: ClassVar[str] = (
        "Chib's method, seed {seed}; samples are sweeps (effective samples count "
        "chains, at most ten)"
    )

    def log_weights(
        self,
        model: LM[P],
        proposal: Sampler[Q],
        batch: TokenBatch,
        keys: list[int],
    ) -> Tensor:
        """Return log p-hat of each chain in nats, (B, R) float64.

        Raises:
            ValueError: If the model's decisions cannot be redrawn.
        """
        redraws = redrawable(model, self.name)
        encoded = model.encode(batch)
        num_tokens = batch.targets.shape[1]
        streams = Streams(keys, self.chains)
        numbers = SweepNumbers(streams)
        found = self._search(redraws, encoded, numbers, num_tokens)
        choices = torch.stack([found.choices(t) for t in range(num_tokens)], -1)
        best = found.latents
        # The place of the chain that z* comes one backward sweep before.
        place = (streams(0)[..., 0] * self.length).long()
        log_t = self._transitions(
            redraws, encoded, numbers, place, best, choices, num_tokens
        )
        mean = log_t.logsumexp(-1) - math.log(self.length)
        return widened(model.log_joint(encoded, best)) - mean

    @staticmethod
    def _search(
        model: Redraws[P, Latents], encoded: P, numbers: SweepNumbers, num_tokens: int
    ) -> Conditionals[Latents]:
        """Look for a latent of high probability, one a chain."""
        batch, chains = len(numbers.streams.keys), numbers.streams.num_samples
        latents = model.conditionals(encoded, chains)
        for sweep in range(SEARCH // 2):
            redraw(latents, range(num_tokens), numbers(SEARCHING + sweep, num_tokens))
        for _ in range(SEARCH // 2):
            for t in range(num_tokens):
                latents.decide(t, latents.log_p(t).argmax(-1).view(batch, chains))
        return latents

    def _transitions(
        self,
        model: Redraws[P, Latents],
        encoded: P,
        numbers: SweepNumbers,
        place: Tensor,
        best: Latents,
        choices: Tensor,
        num_tokens: int,
    ) -> Tensor:
        """Return log T(z* <- z_s) of every place of the chains, (B, R, S)."""
        # All chains walk together from their places outwards; s counts steps away.
        start = model.conditionals(encoded, best)
        backward = range(num_tokens)[::-1]
        redraw(start, backward, numbers(1, num_tokens))
        origin = start.latents
        parts = {0: log_transition(start, choices, num_tokens)}
        ahead = model.conditionals(encoded, origin)
        behind = model.conditionals(encoded, origin)
        for s in range(1, self.length):
            uniforms = numbers(1 + s, num_tokens)
            redraw(ahead, range(num_tokens), uniforms)
            redraw(behind, backward, numbers(self.length + s, num_tokens))
            for sign, chain in ((1, ahead), (-1, behind)):
                here = model.conditionals(encoded, chain.latents)
                parts[sign * s] = log_transition(here, choices, num_tokens)
        places = range(1 - self.length, self.length)
        every = torch.stack([parts[s] for s in places], -1)
        index = (self.length - 1 - place)[..., None] + torch.arange(self.length)
        return every.gather(-1, sent(index, every.device))
