r"""Annealed importance sampling: from q to p in many small steps.

A chain begins with z_0 drawn from q and is moved, step by step, by transitions that
leave the distributions between q and p as they are:

.. math::
    f_s(z) = q(z \mid x)^{1 - b_s} \, p(x, z)^{b_s}, \qquad
    w = \prod_{s=1}^{S} \frac{f_s(z_{s-1})}{f_{s-1}(z_{s-1})}, \qquad b_s = s / S

w is unbiased for p(x), however few the steps and however poor the transitions: with one
step it is importance sampling. A transition redraws every decision in turn, where p and
q say what each is given the others (``Redraws``); elsewhere it tries one local move of
the proposal's (``Moves``) and accepts it by the rule of Metropolis and Hastings.

Run backwards from a draw of the posterior, a chain has weights w' with
E[1 / w'] = 1 / p(x). Of a text that the model itself wrote, the latent that it wrote it
with is such a draw: so log p(x) has bounds on both sides.

Source: Neal (2001), "Annealed importance sampling", equations 3 to 11; Grosse,
Ghahramani and Adams (2015), "Sandwiching the marginal likelihood using bidirectional
Monte Carlo", section 3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Generic, NamedTuple, Protocol

import torch
from torch import Tensor

from lm_latent_eval.devices import sent, sent_uniforms, widened
from lm_latent_eval.inference.gibbs import SWEEP, SweepNumbers, draw_choice
from lm_latent_eval.inference.interface import (
    LM,
    MarkovChainEstimator,
    P,
    Q,
    Sampler,
    Texts,
)
from lm_latent_eval.inference.streams import Streams
from lm_latent_eval.latent import (
    Latents,
    Moves,
    Redraws,
    UnfoldingLM,
    UnfoldingProposal,
    parts_of,
    rebuilt,
)
from lm_latent_eval.text.batch import TokenBatch

ACCEPTANCE_LANE = 3
"""The random number of a step that models leave to inference."""


class Scored(NamedTuple):
    """R latents of each of B texts."""

    latents: Latents
    log_p: Tensor
    """log p(x, z), nats, (B, R) float64."""
    log_q: Tensor
    """log q(z | x), nats, (B, R) float64."""

    @property
    def log_ratio(self) -> Tensor:
        """Log p(x, z) - log q(z | x), nats."""
        return self.log_p - self.log_q


@dataclass(frozen=True)
class AnnealedImportanceSampling(MarkovChainEstimator):
    """K evaluations of p in up to ten chains; unbiased for p(x), not nested in K."""

    name: ClassVar[str] = "ais"
    how: ClassVar[str] = (
        "annealed importance sampling from the {proposal} proposal at temperature "
        "{temperature:g}, seed {seed}; samples are steps (effective samples count "
        "chains, at most ten)"
    )

    def log_weights(self, texts: Texts[P, Q]) -> Tensor:
        """Return the log-weights of the chains in nats, (B, R) float64.

        Raises:
            ValueError: If the model's latents allow no local move.
        """
        model, proposal, batch = texts.model, texts.proposal, texts.batch
        p, q = model.encode(batch), proposal.encode(batch)
        streams = texts.streams(self.chains)
        move = transitions(model, proposal, p, q, streams, batch.targets.shape[1])
        draws = proposal.sample(q, streams, self.chains)
        log_p = widened(model.log_joint(p, draws.latents))
        at = Scored(draws.latents, log_p, draws.log_q)
        return self._annealed(at, move, backwards=False)

    def reverse_log_weights(self, texts: Texts[P, Q], latents: Latents) -> Tensor:
        r"""Return log w' of chains that run from p to q, nats, (B, R) float64.

        .. math:: E[1 / w'] = 1 / p(x)

        if the latents are draws of p(z | x). Those of a text that the model wrote are.

        Arguments are those of ``log_weights``, and ``latents``, R a text, which may be
        copies of one.

        Raises:
            ValueError: If the model's latents allow no local move.
        """
        model, proposal, batch = texts.model, texts.proposal, texts.batch
        p, q = model.encode(batch), proposal.encode(batch)
        streams = texts.streams(self.chains)
        move = transitions(model, proposal, p, q, streams, batch.targets.shape[1])
        log_p = widened(model.log_joint(p, latents))
        at = Scored(latents, log_p, proposal.log_prob(q, latents))
        return self._annealed(at, move, backwards=True)

    def _annealed(
        self, at: Scored, move: Sweeps[P, Q] | Metropolis[P, Q], *, backwards: bool
    ) -> Tensor:
        """Move chains through all temperatures; return their log-weights, (B, R)."""
        log_w = at.log_ratio / self.length
        steps = range(1, self.length)
        for step in reversed(steps) if backwards else steps:
            at = move(at, step / self.length, step, backwards=backwards)
            log_w = log_w + at.log_ratio / self.length
        return log_w


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


def transitions(
    model: LM[P],
    proposal: Sampler[Q],
    p: P,
    q: Q,
    streams: Streams,
    num_tokens: int,
) -> Sweeps[P, Q] | Metropolis[P, Q]:
    """Return what leaves q^(1 - b) p^b invariant: Gibbs sweeps or local moves.

    Raises:
        ValueError: If they allow no local move.
    """
    if isinstance(model, Redraws) and isinstance(proposal, Redraws):
        return Sweeps(model, proposal, p, q, SweepNumbers(streams), num_tokens)
    if isinstance(proposal, Moves):
        return Metropolis(model, proposal, p, q, streams)
    raise ValueError(
        f"estimator=ais: a {type(model).__name__} and its proposal have no local moves "
        "from one latent to another (`Moves` or `Redraws` of lm_latent_eval.latent); "
        "use mixed, is or smc"
    )


class RedrawnLM(UnfoldingLM[TokenBatch, P, Latents], Redraws[P, Latents], Protocol[P]):
    """A latent LM whose decisions can be redrawn."""


class RedrawnProposal(
    UnfoldingProposal[TokenBatch, Q, Latents], Redraws[Q, Latents], Protocol[Q]
):
    """A proposal whose decisions can be redrawn."""


class MovingProposal(
    UnfoldingProposal[TokenBatch, Q, Latents], Moves[Q, Latents], Protocol[Q]
):
    """A proposal with a Metropolis-Hastings kernel of local moves."""


@dataclass(frozen=True)
class Sweeps(Generic[P, Q]):
    """A Gibbs kernel: redraws every decision in order, backwards in reverse order."""

    model: RedrawnLM[P]
    proposal: RedrawnProposal[Q]
    p: P
    q: Q
    numbers: SweepNumbers
    num_tokens: int

    def __call__(self, at: Scored, b: float, step: int, *, backwards: bool) -> Scored:
        of_p = self.model.conditionals(self.p, at.latents)
        of_q = self.proposal.conditionals(self.q, at.latents)
        uniforms = self.numbers(step, self.num_tokens)
        tokens = range(self.num_tokens)
        for t in reversed(tokens) if backwards else tokens:
            log_f = (1 - b) * of_q.log_p(t) + b * of_p.log_p(t)
            choice = draw_choice(log_f, uniforms[..., t])
            of_p.decide(t, choice)
            of_q.decide(t, choice)
        moved = of_p.latents
        log_p = widened(self.model.log_joint(self.p, moved))
        return Scored(moved, log_p, self.proposal.log_prob(self.q, moved))


@dataclass(frozen=True)
class Metropolis(Generic[P, Q]):
    """A Metropolis-Hastings kernel of one local move; its own reversal."""

    model: LM[P]
    proposal: MovingProposal[Q]
    p: P
    q: Q
    streams: Streams

    def __call__(self, at: Scored, b: float, step: int, *, backwards: bool) -> Scored:
        def uniforms(n: int) -> Tensor:
            return self.streams(step * SWEEP + n)

        latents, log_ratio = self.proposal.moved(self.q, at.latents, uniforms)
        log_p = widened(self.model.log_joint(self.p, latents))
        tried = Scored(latents, log_p, self.proposal.log_prob(self.q, latents))
        log_f = (1 - b) * at.log_q + b * at.log_p
        new_f = (1 - b) * tried.log_q + b * tried.log_p
        u = sent_uniforms(uniforms(0)[..., ACCEPTANCE_LANE], log_f.device)
        accepted = u.log() < new_f - log_f + log_ratio
        return Scored(
            _chosen(accepted, tried.latents, at.latents),
            torch.where(accepted, tried.log_p, at.log_p),
            torch.where(accepted, tried.log_q, at.log_q),
        )


def _chosen(accepted: Tensor, new: Latents, old: Latents) -> Latents:
    """Select new latents where accepted, old ones elsewhere, (B, K, ...)."""
    news, olds = parts_of(new), parts_of(old)
    accepted = sent(accepted, news[0].device)  # all are in one place
    chosen = []
    for one, other in zip(news, olds, strict=True):
        where = accepted.view(*accepted.shape, *[1] * (one.ndim - 2))
        chosen.append(torch.where(where, one, other))
    return rebuilt(new, chosen)
