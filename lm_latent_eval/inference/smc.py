r"""Particle filters: sequential importance sampling with resampling.

K particles are divided among R independent filters of M each. A filter extends its
particles token by token, and where their weights have become uneven it draws M of them
in proportion to weight and goes on with equal weights:

.. math::
    \hat p(x) = \frac{1}{R} \sum_{r=1}^{R} \hat Z_r, \qquad
    \hat Z_r = \prod_{s} \frac{1}{M} \sum_{m=1}^{M} w_{rm}^{(s)}

over the stretches s between resamplings. Each Z_r is unbiased for p(x), so they are to
this estimator what weights are to importance sampling: their mean is the estimate,
their spread its error, and the certificate holds.

A device chooses which particles go on, and the host, which has their states, learns of
it together with what is drawn next (``sample_from``): it waits once a token.

A weight tells what a particle has cost so far. What the rest of the text will cost
under it is psi, a guess of the proposal's, 1 of those that have none. Particles are
then drawn in proportion to w psi, and each goes on with the mean of w psi over its own
psi, so what psi gave is taken back and Z_r stays unbiased whatever the guess.

Source: Gordon, Salmond and Smith (1993); Del Moral (2004), chapter 7, for unbiasedness;
Pitt and Shephard (1999) for psi.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from lm_latent_eval.devices import fetched, sent_uniforms
from lm_latent_eval.estimators import Estimate
from lm_latent_eval.inference.importance import weighed
from lm_latent_eval.inference.interface import (
    Estimator,
    Texts,
    Weighted,
    chains_of,
    stderr_of_few,
)
from lm_latent_eval.inference.particles import (
    Particles,
    as_particles,
    in_pieces,
)
from lm_latent_eval.latent import State, offers

RESAMPLING_LANE = 3
"""The random number of a decision that models leave to inference."""


@dataclass(frozen=True)
class ParticleFilter(Estimator):
    """K particles in up to ten filters; unbiased for p(x), not nested in K."""

    name: ClassVar[str] = "smc"
    how: ClassVar[str] = (
        "particle filters from the {proposal} proposal at temperature {temperature:g}, "
        "seed {seed} (effective samples count filters, at most ten)"
    )
    num_samples: int
    """K, all particles."""

    def __post_init__(self) -> None:
        """Refuse a number that cannot be divided."""
        chains_of(self.num_samples, self.name, "filters")

    @property
    def filters(self) -> int:
        """R: as many as leave ten particles each, and no more than ten."""
        return chains_of(self.num_samples, self.name, "filters")

    def extend(self, texts: Texts, after: Weighted | None) -> Particles:
        """Read on, token by token.

        The mean of the weights of a filter's particles is its Z_r.

        A proposal that reads ahead does so to the end of the batch, ``PIECE`` tokens at
        a time: of a text to its end, and of a context to where it stops.

        Raises:
            ValueError: If model or proposal is not one that can stop at a token.
        """
        if not offers(texts.model, "advance"):
            raise ValueError(
                f"estimator=smc: {type(texts.model).__name__} has no advance(encoded, "
                "latents) and reads whole texts at once; use another estimator"
            )
        if not offers(texts.proposal, "advance"):
            raise ValueError(
                f"estimator=smc: the proposal {texts.proposal.name!r} reads whole "
                "texts at once; name one that goes from left to right"
            )
        begun, size = as_particles(after, texts), (len(texts.keys), self.num_samples)
        begun = replace(  # the empty text has one
            begun,
            log_w=begun.log_w.expand(size),
            log_q=begun.log_q.expand(size),
            path=begun.path.expand(size),
        )
        return in_pieces(texts, begun, self._read)

    def _read(self, texts: Texts, particles: Particles) -> Particles:
        """Draw, weigh and choose at every token of pieces."""
        proposal, piece = texts.proposal, texts.batch
        ahead = offers(proposal, "token")
        whole = proposal.encode(piece, particles.proposal_state) if ahead else None

        def read(t: int, after: State | None, before: Any = None) -> Any:
            if ahead:
                return proposal.token(whole, t, after)
            token = piece.piece(t, t + 1)
            if before is not None:
                return proposal.encode_again(before, token, after)
            return proposal.encode(token, after)

        origin = torch.arange(self.num_samples).expand(len(texts.keys), -1)
        for t in range(piece.targets.shape[1]):
            token = texts.piece(t, t + 1)
            streams = token.streams(self.num_samples)
            # On a CPU it is known which go on, so those that do not are not drawn from.
            if origin.is_cpu or not offers(proposal, "sample_from"):
                (origin,) = fetched(origin)
                particles = _gone_on(particles, origin)
                q = read(t, particles.proposal_state)
                draws = proposal.sample(q, streams, self.num_samples)
            else:
                q = read(t, particles.proposal_state)
                draws, origin = proposal.sample_from(q, streams, origin)
                particles = _gone_on(particles, origin)
                q = read(t, particles.proposal_state, before=q)
            p = particles.encoded(token.model, token.batch, particles.model_state)
            particles = weighed(token, p, q, draws, particles)
            log_psi = torch.zeros_like(particles.log_w)
            if ahead:
                log_psi = proposal.log_twist(whole, t + 1, particles.proposal_state)
            uniform = streams(0)[..., RESAMPLING_LANE]
            uniform = sent_uniforms(uniform, log_psi.device)
            # Which states go on is asked on the host.
            went_on, log_w = token.batch.length > 0, particles.log_w
            log_w, origin = resampled(log_w, log_psi, uniform, self.filters, went_on)
            log_q, path = (
                x.gather(1, origin) for x in (particles.log_q, particles.path)
            )
            particles = replace(particles, log_w=log_w, log_q=log_q, path=path)
        return _gone_on(particles, *fetched(origin))

    def unbiased(self, log_w: Tensor) -> Tensor:
        """Return the logarithms of independent unbiased estimates of p(x), (R,)."""
        filters = log_w.view(self.filters, -1)
        return filters.logsumexp(-1) - math.log(filters.shape[-1])

    def estimate(self, log_w: Tensor, num_tokens: int) -> Estimate:
        """Return the estimate of one text's log p(x), from log-weights (K,).

        Its log-weights and effective sample size are those of the filters. Its error is
        infinite, which is to say unknown, of fewer than ``FEWEST`` filters.
        """
        return self.estimate_of_few(self.unbiased(log_w), num_tokens)

    def ratio_stderr(self, whole: Tensor, prefix: Tensor) -> float:
        """Return the error of a difference: of as many filters as there are."""
        return stderr_of_few(super().ratio_stderr(whole, prefix), self.filters)


def resampled(
    log_w: Tensor, log_psi: Tensor, uniform: Tensor, filters: int, went_on: Tensor
) -> tuple[Tensor, Tensor]:
    """Draw particles anew where a filter's effective sample size is below half of M.

    Systematic resampling: one random number a filter, so a particle of (twisted)
    weight v = w psi is drawn M v times, rounded up or down.

    Args:
        log_w: Of the particles, nats, (B, K).
        log_psi: What each expects of the text ahead, nats, (B, K).
        uniform: A random number each, of which the first of a filter counts, (B, K).
        filters: R, which have M = K / R particles each.
        went_on: Whose particles are drawn anew, (B,) bool.

    Returns:
        Log-weights, and which particles there are then, (B, K) each.
    """
    shape = (filters, log_w.shape[1] // filters)
    log_v = (log_w + log_psi).unflatten(-1, shape)
    log_mean = log_v.logsumexp(-1, keepdim=True) - math.log(shape[1])
    alive = log_mean > -torch.inf
    weight = log_v.masked_fill(~alive, 0.0).softmax(-1)
    uneven = weight.square().sum(-1, keepdim=True) * shape[1] > 2
    uneven = uneven & alive & went_on[:, None, None]
    every = torch.arange(log_w.shape[1], device=log_v.device).view(shape)
    points = (every[0] + uniform.unflatten(-1, shape)[..., :1]) / shape[1]
    drawn = torch.searchsorted(weight.cumsum(-1), points).clamp_max(shape[1] - 1)
    index = torch.where(uneven, every[:, :1] + drawn, every).flatten(1)
    even = (log_mean - log_psi.gather(1, index).unflatten(-1, shape)).flatten(1)
    return torch.where(uneven.expand_as(log_v).flatten(1), even, log_w), index


def _gone_on(particles: Particles, origin: Tensor) -> Particles:
    """Select the states of resampled particles, (B, K) on the host."""
    p, q = particles.model_state, particles.proposal_state
    if bool((origin == torch.arange(origin.shape[1])).all()):  # all stay
        return particles
    return replace(
        particles,
        model_state=p and p.resample(origin),
        proposal_state=q and q.resample(origin),
    )
