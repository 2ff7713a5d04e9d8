r"""Estimators by Gibbs sampling: left-to-right (Wallach et al.) and Chib's method.

Both need models whose decisions can be redrawn, each given all others (``Redraws``). A
sweep redraws every decision in some order; one of the opposite order reverses it, which
is all that estimators need to know of it.

Source: Wallach, Murray, Salakhutdinov and Mimno (2009), "Evaluation methods for topic
models", sections 3 and 4; Chib (1995); Murray and Salakhutdinov (2009), "Evaluating
probabilities under high-dimensional latent variable models", section 3; Buntine (2009),
"Estimating likelihoods for topic models".
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from lm_latent_eval.devices import sent, sent_uniforms, wide_zeros, widened
from lm_latent_eval.estimators import Estimate
from lm_latent_eval.inference.importance import ImportanceSampling
from lm_latent_eval.inference.interface import (
    LM,
    MarkovChainEstimator,
    P,
    Q,
    Texts,
    WholeTextEstimator,
)
from lm_latent_eval.inference.streams import LANES, Streams, invert_cdf
from lm_latent_eval.latent import Conditionals, Latents, Redraws

SWEEP = 1 << 32
"""Random numbers of a sweep begin at a multiple of this: texts are shorter."""


@dataclass(frozen=True)
class SweepNumbers:
    """The random numbers of sweeps: one a decision."""

    streams: Streams

    def __call__(self, sweep: int, num_tokens: int) -> Tensor:
        """Return uniforms of a sweep, (B, K, T); those of sweep 0 are for first draws.

        They are the same for a text of any padding.
        """
        blocks = -(-num_tokens // LANES)
        parts = [self.streams(sweep * SWEEP + block) for block in range(blocks)]
        return torch.cat(parts, -1)[..., :num_tokens]


def draw_choice(log_p: Tensor, uniform: Tensor) -> Tensor:
    """Draw from unnormalised log-probabilities, (B, K, N) and (B, K) -> (B, K).

    The uniform numbers are on the host.
    """
    return invert_cdf(log_p.softmax(-1), sent_uniforms(uniform, log_p.device))


def redraw(
    latents: Conditionals[Latents], tokens: Iterable[int], uniforms: Tensor
) -> None:
    """Redraw the decisions of tokens in their order; ``uniforms`` are (B, K, T)."""
    for t in tokens:
        latents.decide(t, draw_choice(latents.log_p(t), uniforms[..., t]))


def log_transition(
    latents: Conditionals[Latents], to: Tensor, num_tokens: int
) -> Tensor:
    """Return the log-probability that a sweep from first to last leads to z*.

    Args:
        latents: Where it begins, K a text; they are at z* afterwards.
        to: The choices of z*, (B, K or 1, T).
        num_tokens: T.

    Returns:
        Nats, (B, K) float64.
    """
    total = wide_zeros((), to.device)
    for t in range(num_tokens):
        log_p = latents.log_p(t).log_softmax(-1)
        choice = to[..., t].expand(log_p.shape[:2])
        total = total + log_p.gather(-1, choice[..., None])[..., 0]
        latents.decide(t, choice)
    return total


@dataclass(frozen=True)
class LeftToRightEstimator(WholeTextEstimator):
    r"""K independent particles a text; unbiased for p(x), nested in K.

    A particle draws z_t, the decision of word t, given the words and decisions so far,
    and before every word redraws all earlier decisions once:

    .. math::
        w = \prod_t p(x_t \mid z_{<t}, x_{<t}), \qquad
        \hat p(x) = \frac{1}{K} \sum_{k=1}^{K} w_k

    Redrawing leaves p(z_<t | x_<t) as it is, so every w is unbiased for p(x) (an
    annealed importance sample whose steps are words). The published estimator
    multiplies the means over particles word by word instead, which is unbiased only
    where particles have forgotten where they began: ``word_by_word`` has it, for
    comparison. The work is quadratic in the number of words.

    Source: Wallach et al. (2009), section 4, algorithm 1; Buntine (2009), for products
    within a particle.
    """

    name: ClassVar[str] = "l2r"
    how: ClassVar[str] = "the left-to-right estimator, seed {seed}"

    def log_weights(self, texts: Texts[P, Q]) -> Tensor:
        """Return the log-weights of whole texts in nats, (B, K) float64.

        Raises:
            ValueError: If the model's decisions cannot be redrawn.
        """
        return self.log_predicted(texts).sum(-1)

    def log_predicted(self, texts: Texts[P, Q]) -> Tensor:
        """Return log p(x_t | z_<t, x_<t) of every particle, nats, (B, K, T); 0 past T.

        Raises:
            ValueError: If the model's decisions cannot be redrawn.
        """
        redraws = redrawable(texts.model, self.name)
        encoded = texts.model.encode(texts.batch)
        latents = redraws.conditionals(encoded, self.num_samples)
        numbers = SweepNumbers(texts.streams(self.num_samples))
        parts = []
        for t in range(texts.batch.targets.shape[1]):
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


SEARCH = 20
"""Sweeps that look for z*: half of them draw, half take the best of each decision."""
SEARCHING = 1 << 30
"""The sweep at which the search's random numbers begin: chains are shorter."""


@dataclass(frozen=True)
class ChibStyle(MarkovChainEstimator):
    r"""K sweeps in up to ten chains; unbiased for p(x), not nested in K.

    p(x) = p(x, z*) / p(z* | x), the second factor by a Gibbs sampler. z* is one good
    latent, found with random numbers of its own. With T the transition of a sweep over
    all decisions, and a chain z_1 .. z_S of such sweeps in which z* stands one sweep,
    run backwards, before a place chosen at random,

    .. math::
        \hat p(x) = p(x, z^*) \Big/ \frac{1}{S} \sum_{s=1}^{S} T(z^* \leftarrow z_s)

    is unbiased. Of the posterior's modes a chain sees the one where it begins: where
    there are others, estimates are too low, nearly always, and agree with one another.

    Source: Chib (1995); Murray and Salakhutdinov (2009), section 3; Wallach et al.
    (2009), section 3.
    """

    name: ClassVar[str] = "chib"
    how: ClassVar[str] = (
        "Chib's method, seed {seed}; samples are sweeps (effective samples count "
        "chains, at most ten)"
    )

    def log_weights(self, texts: Texts[P, Q]) -> Tensor:
        """Return log p-hat of each chain in nats, (B, R) float64.

        Raises:
            ValueError: If the model's decisions cannot be redrawn.
        """
        model, num_tokens = texts.model, texts.batch.targets.shape[1]
        redraws = redrawable(model, self.name)
        encoded = model.encode(texts.batch)
        streams = texts.streams(self.chains)
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
