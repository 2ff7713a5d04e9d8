r"""Estimators by Markov chains: annealed importance sampling, left-to-right, Chib's.

A Gibbs sweep redraws every decision of a text in some order, each given all others
(``Redraws``); a sweep of the opposite order reverses it, which is all that estimators
need to know of it.

Source: Neal (2001), "Annealed importance sampling", equations 3 to 11; Grosse,
Ghahramani and Adams (2015), "Sandwiching the marginal likelihood using bidirectional
Monte Carlo", section 3; Wallach, Murray, Salakhutdinov and Mimno (2009), "Evaluation
methods for topic models", sections 3 and 4; Chib (1995); Murray and Salakhutdinov
(2009), "Evaluating probabilities under high-dimensional latent variable models",
section 3; Buntine (2009), "Estimating likelihoods for topic models".
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar, Generic, NamedTuple

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
from lm_latent_eval.inference.streams import LANES, Streams, draw_choice
from lm_latent_eval.latent import (
    Conditionals,
    Latents,
    Moves,
    Redraws,
    parts_of,
    rebuilt,
)

SWEEP = 1 << 32
"""Random numbers of a sweep begin at a multiple of this: texts are shorter."""
ACCEPTANCE_LANE = 3
"""The random number of a step that models leave to inference."""


def sweep_uniforms(streams: Streams, sweep: int, num_tokens: int) -> Tensor:
    """Return uniforms of a sweep, one a decision, (B, K, T), on the host.

    They are the same for a text of any padding. Those of sweep 0 are for first draws.
    """
    blocks = -(-num_tokens // LANES)
    parts = [streams(sweep * SWEEP + block) for block in range(blocks)]
    return torch.cat(parts, -1)[..., :num_tokens]


def redraw(
    latents: Conditionals[Latents], tokens: Iterable[int], uniforms: Tensor
) -> None:
    """Redraw the decisions of tokens in their order; ``uniforms`` are (B, K, T)."""
    for t in tokens:
        latents.decide(t, draw_choice(latents.log_p(t), uniforms[..., t]))


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


# -- annealed importance sampling ------------------------------------------------------


class Scored(NamedTuple):
    """R latents of each of B texts."""

    latents: Latents
    log_p: Tensor
    """log p(x, z), nats, (B, R) float64."""
    log_q: Tensor
    """log q(z | x), nats, (B, R) float64."""

    def log_f(self, b: float) -> Tensor:
        """Return the log of f_b, nats."""
        return (1 - b) * self.log_q + b * self.log_p


@dataclass(frozen=True)
class AnnealedImportanceSampling(MarkovChainEstimator):
    r"""K evaluations of p in up to ten chains; unbiased for p(x), not nested in K.

    A chain begins with z_0 drawn from q and is moved, step by step, by transitions that
    leave the distributions between q and p as they are:

    .. math::
        f_s(z) = q(z \mid x)^{1 - b_s} \, p(x, z)^{b_s}, \qquad
        w = \prod_{s=1}^{S} \frac{f_s(z_{s-1})}{f_{s-1}(z_{s-1})}, \qquad b_s = s / S

    w is unbiased for p(x), however few the steps and however poor the transitions: with
    one step it is importance sampling. A transition redraws every decision in turn,
    where p and q say what each is given the others (``Redraws``); elsewhere it tries
    one local move of the proposal's (``Moves``) and accepts it by the rule of
    Metropolis and Hastings.
    """

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
        kernel = transitions(texts, texts.streams(self.chains))
        draws = texts.proposal.sample(kernel.q, kernel.streams, self.chains)
        log_p = widened(texts.model.log_joint(kernel.p, draws.latents))
        at = Scored(draws.latents, log_p, draws.log_q)
        return self._annealed(at, kernel, backwards=False)

    def reverse_log_weights(self, texts: Texts[P, Q], latents: Latents) -> Tensor:
        r"""Return log w' of chains that run from p to q, nats, (B, R) float64.

        .. math:: E[1 / w'] = 1 / p(x)

        if the latents are draws of p(z | x). That with which a model wrote a text is
        one, so of its own texts log p(x) has bounds on both sides.

        Arguments are those of ``log_weights``, and ``latents``, R a text, which may be
        copies of one.

        Raises:
            ValueError: If the model's latents allow no local move.
        """
        kernel = transitions(texts, texts.streams(self.chains))
        return self._annealed(kernel.scored(latents), kernel, backwards=True)

    def _annealed(self, at: Scored, move: Kernel[P, Q], *, backwards: bool) -> Tensor:
        """Move chains through all temperatures; return their log-weights, (B, R)."""
        log_w = (at.log_p - at.log_q) / self.length
        steps = range(1, self.length)
        for step in reversed(steps) if backwards else steps:
            at = move(at, step / self.length, step, backwards=backwards)
            log_w = log_w + (at.log_p - at.log_q) / self.length
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


def transitions(texts: Texts[P, Q], streams: Streams) -> Kernel[P, Q]:
    """Return what leaves q^(1 - b) p^b invariant: Gibbs sweeps or local moves.

    Raises:
        ValueError: If model and proposal allow no local move.
    """
    model, proposal, batch = texts.model, texts.proposal, texts.batch
    if isinstance(model, Redraws) and isinstance(proposal, Redraws):
        encoded = model.encode(batch), proposal.encode(batch)
        return Sweeps(texts, *encoded, streams, model, proposal)
    if isinstance(proposal, Moves):
        encoded = model.encode(batch), proposal.encode(batch)
        return Metropolis(texts, *encoded, streams, proposal)
    raise ValueError(
        f"estimator=ais: a {type(model).__name__} and its proposal have no local moves "
        "from one latent to another (`Moves` or `Redraws` of lm_latent_eval.latent); "
        "use mixed, is or smc"
    )


@dataclass(frozen=True)
class Kernel(ABC, Generic[P, Q]):
    """A transition of chains that leaves f_b invariant."""

    texts: Texts[P, Q]
    p: P
    """The texts as the model encodes them."""
    q: Q
    """As the proposal does."""
    streams: Streams

    @abstractmethod
    def __call__(self, at: Scored, b: float, step: int, *, backwards: bool) -> Scored:
        """Move R latents of each text; ``backwards`` reverses the transition."""

    def scored(self, latents: Latents) -> Scored:
        """Return latents with their log p and log q."""
        log_p = widened(self.texts.model.log_joint(self.p, latents))
        return Scored(latents, log_p, self.texts.proposal.log_prob(self.q, latents))


@dataclass(frozen=True)
class Sweeps(Kernel[P, Q]):
    """A Gibbs kernel: redraws every decision in order, backwards in reverse order."""

    model: Redraws[P, Latents]
    proposal: Redraws[Q, Latents]

    def __call__(self, at: Scored, b: float, step: int, *, backwards: bool) -> Scored:
        of_p = self.model.conditionals(self.p, at.latents)
        of_q = self.proposal.conditionals(self.q, at.latents)
        num_tokens = self.texts.batch.targets.shape[1]
        uniforms = sweep_uniforms(self.streams, step, num_tokens)
        tokens = range(num_tokens)
        for t in reversed(tokens) if backwards else tokens:
            log_f = (1 - b) * of_q.log_p(t) + b * of_p.log_p(t)
            choice = draw_choice(log_f, uniforms[..., t])
            of_p.decide(t, choice)
            of_q.decide(t, choice)
        return self.scored(of_p.latents)


@dataclass(frozen=True)
class Metropolis(Kernel[P, Q]):
    """A Metropolis-Hastings kernel of one local move; its own reversal."""

    proposal: Moves[Q, Latents]

    def __call__(self, at: Scored, b: float, step: int, *, backwards: bool) -> Scored:
        def uniforms(n: int) -> Tensor:
            return self.streams(step * SWEEP + n)

        latents, log_ratio = self.proposal.moved(self.q, at.latents, uniforms)
        tried = self.scored(latents)
        u = sent_uniforms(uniforms(0)[..., ACCEPTANCE_LANE], at.log_p.device)
        accepted = u.log() < tried.log_f(b) - at.log_f(b) + log_ratio
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


# -- left to right ---------------------------------------------------------------------


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
        streams = texts.streams(self.num_samples)
        parts = []
        for t in range(texts.batch.targets.shape[1]):
            # A word's own draw is the last of its sweep over those before it.
            uniforms = sweep_uniforms(streams, t + 1, t + 1)
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


# -- Chib's method ---------------------------------------------------------------------


SEARCH = 20
"""Sweeps that look for z*: half of them draw, half take the best of each decision."""
SEARCHING = 1 << 30
"""The sweep at which the search's random numbers begin: chains are shorter."""


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
        model, redraws = texts.model, redrawable(texts.model, self.name)
        encoded, streams = model.encode(texts.batch), texts.streams(self.chains)
        num_tokens = texts.batch.targets.shape[1]
        forward = range(num_tokens)
        shape = len(texts.keys), self.chains

        found = redraws.conditionals(encoded, self.chains)
        for sweep in range(SEARCH // 2):
            uniforms = sweep_uniforms(streams, SEARCHING + sweep, num_tokens)
            redraw(found, forward, uniforms)
        for _ in range(SEARCH // 2):
            for t in forward:
                found.decide(t, found.log_p(t).argmax(-1).view(shape))
        choices = torch.stack([found.choices(t) for t in forward], -1)
        best = found.latents

        # All chains walk together from their places outwards; s counts steps away.
        start = redraws.conditionals(encoded, best)
        redraw(start, forward[::-1], sweep_uniforms(streams, 1, num_tokens))
        origin = start.latents
        parts = {0: log_transition(start, choices, num_tokens)}
        ahead = redraws.conditionals(encoded, origin)
        behind = redraws.conditionals(encoded, origin)
        for s in range(1, self.length):
            redraw(ahead, forward, sweep_uniforms(streams, 1 + s, num_tokens))
            sweep = self.length + s
            redraw(behind, forward[::-1], sweep_uniforms(streams, sweep, num_tokens))
            for sign, chain in ((1, ahead), (-1, behind)):
                here = redraws.conditionals(encoded, chain.latents)
                parts[sign * s] = log_transition(here, choices, num_tokens)
        every = torch.stack([parts[s] for s in range(1 - self.length, self.length)], -1)

        # The place of the chain that z* comes one backward sweep before.
        place = (streams(0)[..., 0] * self.length).long()
        index = (self.length - 1 - place)[..., None] + torch.arange(self.length)
        log_t = every.gather(-1, sent(index, every.device))
        mean = log_t.logsumexp(-1) - math.log(self.length)
        return widened(model.log_joint(encoded, best)) - mean
