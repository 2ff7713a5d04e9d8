r"""Annealed importance sampling by Gibbs sweeps.

A sweep redraws every decision of a text in some order, each given all others
(``conditionals``). A sweep in the opposite order is its reversal, which is all that the
estimator needs to know of it.

Source: Neal (2001), "Annealed importance sampling", equations 3 to 11; Grosse,
Ghahramani and Adams (2015), "Sandwiching the marginal likelihood using bidirectional
Monte Carlo", section 3; Wallach, Murray, Salakhutdinov and Mimno (2009), "Evaluation
methods for topic models", section 3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from lm_latent_eval.devices import widened
from lm_latent_eval.estimators import Estimate
from lm_latent_eval.inference.interface import (
    Estimator,
    Texts,
    chains_of,
)
from lm_latent_eval.inference.streams import LANES, Streams, draw_choice
from lm_latent_eval.latent import Latents

SWEEP = 1 << 32
"""Random numbers of a sweep begin at a multiple of this: texts are shorter."""


def sweep_uniforms(streams: Streams, sweep: int, num_tokens: int) -> Tensor:
    """Return uniforms of a sweep, one a decision, (B, K, T), on the host.

    They are the same for a text of any padding. Those of sweep 0 are for first draws.
    """
    blocks = -(-num_tokens // LANES)
    parts = [streams(sweep * SWEEP + block) for block in range(blocks)]
    return torch.cat(parts, -1)[..., :num_tokens]


class Scored(NamedTuple):
    """R latents of each of B texts."""

    latents: Latents
    log_p: Tensor
    """log p(x, z), nats, (B, R) float64."""
    log_q: Tensor
    """log q(z | x), nats, (B, R) float64."""


@dataclass(frozen=True)
class AnnealedImportanceSampling(Estimator):
    r"""K evaluations of p in R chains, at most ten; unbiased for p(x), not nested in K.

    A chain begins with z_0 drawn from q and is moved, step by step, by transitions that
    leave the distributions between q and p as they are:

    .. math::
        f_s(z) = q(z \mid x)^{1 - b_s} \, p(x, z)^{b_s}, \qquad
        w = \prod_{s=1}^{S} \frac{f_s(z_{s-1})}{f_{s-1}(z_{s-1})}, \qquad b_s = s / S

    w is unbiased for p(x), however few the steps and however poor the transitions: with
    one step it is importance sampling. A transition is one Gibbs sweep, so both p and q
    say what each decision is given the others (``conditionals``).
    """

    name: ClassVar[str] = "ais"
    how: ClassVar[str] = (
        "annealed importance sampling from the {proposal} proposal at temperature "
        "{temperature:g}, seed {seed}; samples are steps (effective samples count "
        "chains, at most ten)"
    )
    num_samples: int

    def __post_init__(self) -> None:
        """Refuse a number that cannot be divided."""
        chains_of(self.num_samples, self.name)

    @property
    def chains(self) -> int:
        """R: as many as leave ten steps each, and no more than ten."""
        return chains_of(self.num_samples, self.name)

    @property
    def length(self) -> int:
        """S, the steps of each chain."""
        return self.num_samples // self.chains

    def log_weights(self, texts: Texts) -> Tensor:
        """Return the log-weights of the chains in nats, (B, R) float64.

        Raises:
            ValueError: If the decisions of model or proposal cannot be redrawn.
        """
        sweep = sweeps(texts, texts.streams(self.chains))
        draws = texts.proposal.sample(sweep.q, sweep.streams, self.chains)
        log_p = widened(texts.model.log_joint(sweep.p, draws.latents))
        at = Scored(draws.latents, log_p, draws.log_q)
        return self._annealed(at, sweep, backwards=False)

    def reverse_log_weights(self, texts: Texts, latents: Latents) -> Tensor:
        r"""Return log w' of chains that run from p to q, nats, (B, R) float64.

        .. math:: E[1 / w'] = 1 / p(x)

        if the latents are draws of p(z | x). That with which a model wrote a text is
        one, so of its own texts log p(x) has bounds on both sides.

        Arguments are those of ``log_weights``, and ``latents``, R a text, which may be
        copies of one.

        Raises:
            ValueError: If the decisions of model or proposal cannot be redrawn.
        """
        sweep = sweeps(texts, texts.streams(self.chains))
        return self._annealed(sweep.scored(latents), sweep, backwards=True)

    def _annealed(self, at: Scored, sweep: Sweeps, *, backwards: bool) -> Tensor:
        """Move chains through all temperatures; return their log-weights, (B, R)."""
        log_w = (at.log_p - at.log_q) / self.length
        steps = range(1, self.length)
        for step in reversed(steps) if backwards else steps:
            at = sweep(at, step / self.length, step, backwards=backwards)
            log_w = log_w + (at.log_p - at.log_q) / self.length
        return log_w

    def estimate(self, log_w: Tensor, num_tokens: int) -> Estimate:
        """Return the estimate of one text's log p(x), from those of the chains (R,)."""
        return self.estimate_of_few(log_w, num_tokens)


def log_evidence_from_above(reverse_log_w: Tensor) -> Tensor:
    r"""Estimate log p(x) from reverse chains, on average from above, nats, (...,).

    .. math:: -\log \frac{1}{R} \sum_{r=1}^{R} \frac{1}{w'_r}

    An upper bound of log p(x) on average (Jensen); with log(1 / delta) added, one at
    confidence 1 - delta (Markov).

    Args:
        reverse_log_w: Of ``reverse_log_weights``, (..., R).

    Example:
        >>> log_evidence_from_above(torch.tensor([1.0, 3.0]).log())  # log(1 / (2 / 3))
        tensor(0.4055)
    """
    number = reverse_log_w.shape[-1]
    return math.log(number) - (-reverse_log_w).logsumexp(-1)


@dataclass(frozen=True)
class Sweeps:
    """A Gibbs kernel that leaves q^(1 - b) p^b invariant."""

    texts: Texts
    p: Any
    """The texts as the model encodes them."""
    q: Any
    """The texts as the proposal encodes them."""
    streams: Streams

    def __call__(self, at: Scored, b: float, step: int, *, backwards: bool) -> Scored:
        """Redraw every decision of R latents a text, from first to last or backwards.

        A decision's distribution is the product of its conditionals under q and p, to
        the powers 1 - b and b.
        """
        of_p = self.texts.model.conditionals(self.p, at.latents)
        of_q = self.texts.proposal.conditionals(self.q, at.latents)
        num_tokens = self.texts.batch.targets.shape[1]
        uniforms = sweep_uniforms(self.streams, step, num_tokens)
        tokens = range(num_tokens)
        for t in reversed(tokens) if backwards else tokens:
            log_f = (1 - b) * of_q.log_p(t) + b * of_p.log_p(t)
            choice = draw_choice(log_f, uniforms[..., t])
            of_p.decide(t, choice)
            of_q.decide(t, choice)
        return self.scored(of_p.latents)

    def scored(self, latents: Latents) -> Scored:
        """Return latents with their log p and log q."""
        log_p = widened(self.texts.model.log_joint(self.p, latents))
        return Scored(latents, log_p, self.texts.proposal.log_prob(self.q, latents))


def sweeps(texts: Texts, streams: Streams) -> Sweeps:
    """Return the kernel of a model and its proposal."""
    p, q = texts.model.encode(texts.batch), texts.proposal.encode(texts.batch)
    return Sweeps(texts, p, q, streams)
