r"""Real-valued latents: numbers a token (``RealStepLM``), or a text.

.. math:: p(x, z) = \prod_t p(z_t \mid z_{<t}, x_{<t}) \, p(x_t \mid z_{\le t}, x_{<t})

where z_t is D real numbers and p(z_t | past) a product of normal densities. From a step
come log p of given latents, two proposals, importance samples, particle filters,
prefixes, contexts, pieces of long texts, predictions and generation. Nothing can be
listed, so there are no beams.

Of latents that are D numbers a text, as a variational autoencoder's, a model writes
``encode`` and ``log_joint`` itself, and ``NormalProposal`` is its proposal.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.distributions import Normal

from lm_latent_eval.devices import sent_uniforms, wide_zeros, widened
from lm_latent_eval.inference.steps import Drawn, Found, Sampled
from lm_latent_eval.inference.streams import MODEL_LANES, standard_normals
from lm_latent_eval.inference.unfolding import DrawnProposal
from lm_latent_eval.latent import Draws, Proposal, Uniforms
from lm_latent_eval.models.proposals import check_temperature, chosen
from lm_latent_eval.models.stepwise import (
    ADAPTED,
    EncodedSteps,
    EncodedText,
    Histories,
    OfModel,
    UnfoldingModel,
)
from lm_latent_eval.text.batch import TokenBatch

PREDICTING = 100
"""Smallest number of latents that a prediction averages over."""


class RealStep(NamedTuple):
    """Distributions of z_t after each of K histories of B texts."""

    prior: Normal
    """Distribution p(z_t | the past), of shape (B, K, D)."""
    adapted: Normal | None = None
    """Distribution q of the proposal ``adapted``, of shape (B, K, D); it may depend on
    x_t and, if it says so, on the later text. None: the prior."""


class RealStepLM(UnfoldingModel):
    """A latent LM of D real numbers a token that is defined by one step.

    A latent is a floating-point tensor (B, K, T, D), 0 past the end of a text.
    """

    estimators = ("smc", "is")
    """Supported estimators, the default first."""
    num_reals: ClassVar[int] = 1
    """D, at most three."""

    @abstractmethod
    def step(self, read: Any, state: tuple[Tensor, ...], t: int) -> RealStep:
        """Distribution of z_t, after K histories of each text."""

    @abstractmethod
    def log_word(
        self, read: Any, state: tuple[Tensor, ...], z: Tensor, t: int
    ) -> Tensor:
        """Log p(x_t | z_t, the past), nats, (B, K), of z_t (B, K, D)."""

    @abstractmethod
    def take(
        self, read: Any, state: tuple[Tensor, ...], z: Tensor, t: int
    ) -> tuple[Tensor, ...]:
        """State of histories after z_t, (B, K, D), and x_t."""

    @abstractmethod
    def log_words(self, read: Any, state: tuple[Tensor, ...], z: Tensor) -> Tensor:
        """Log p(next word | z, the past) of every word of the model, nats, (B, K, V).

        The next word itself, the first of the piece, is ignored.
        """

    def log_joint(self, encoded: EncodedSteps, latents: Tensor) -> Tensor:
        """Log p(x, z_k) in nats, (B, K) float64: a density in z."""
        walk, total = RealSteps(encoded, self, ADAPTED), wide_zeros((), latents.device)
        for t, state, z, _ in walk.follow(latents):
            log_p = widened(self.step(encoded.read, state.parts, t).prior.log_prob(z))
            log_x = widened(self.log_word(encoded.read, state.parts, z, t))
            outside = (walk.length <= t)[:, None]
            total = total + (log_p.sum(-1) + log_x).masked_fill(outside, 0.0)
        return total.expand(latents.shape[:2])

    def advance(self, encoded: EncodedSteps, latents: Tensor) -> Histories:
        walk = RealSteps(encoded, self, ADAPTED)
        states = [walk.begin(latents.shape[1])]
        states += [after for *_, after in walk.follow(latents)]
        return encoded.after(states[-1])

    def next_token(
        self, encoded: EncodedSteps, log_w: Tensor, uniforms: Uniforms
    ) -> Tensor:
        """Predict the first token of an encoded piece, (B, V) nats, from K histories.

        The integral over its latent is a mean over draws, ``PREDICTING`` of all
        histories together, or one of each.

        Args:
            encoded: Pieces that begin with that token, which is ignored.
            log_w: Log-weights of the histories in nats, (B, K).
            uniforms: Random numbers of the draws.
        """
        each = -(-PREDICTING // log_w.shape[1])
        index = torch.arange(log_w.shape[1]).repeat(each).expand(len(log_w), -1)
        state = encoded.before.resample(index).parts
        prior = self.step(encoded.read, state, 0).prior
        u = torch.cat([uniforms(n) for n in range(each)], 1)
        z = prior.icdf(sent_uniforms(_of_model(u, self.num_reals), log_w.device))
        share = log_w.log_softmax(-1).repeat(1, each) - math.log(each)
        return self.mixed(self.log_words(encoded.read, state, z), share)

    def proposal(
        self,
        name: str | None = None,
        temperature: float = 1.0,
    ) -> RealStepProposal:
        """Build q: ``adapted`` to each word, or the ``prior`` of its latents.

        Args:
            name: One of ``proposal_names``; None is the first.
            temperature: Divides log q up to a constant: variances are multiplied by it.

        Raises:
            ValueError: If the name is unknown or the temperature is not positive.
        """
        check_temperature(temperature)
        return RealStepProposal(self, chosen(name, self.proposal_names), temperature)


@dataclass(frozen=True)
class RealSteps(EncodedText):
    """Steps of a ``RealStepLM`` by ``adapted`` or ``prior``."""

    model: RealStepLM
    name: str
    temperature: float = 1.0

    @property
    def num_columns(self) -> int:
        return self.model.num_reals

    def q(self, state: Histories, t: int) -> Normal:
        """Distribution that z_t is drawn from, (B, K, D)."""
        step = self.model.step(self.encoded.read, state.parts, t)
        q = step.prior
        if self.name == ADAPTED and step.adapted is not None:
            q = step.adapted
        return _tempered(q, self.temperature)

    def draw(
        self, state: Histories, t: int, uniforms: Uniforms, origin: Tensor | None
    ) -> Drawn:
        before = state if origin is None else state.resample(origin)
        q = self.q(before, t)
        u = _of_model(uniforms(t), self.num_columns)
        z = q.icdf(sent_uniforms(u, q.loc.device))
        after = self.model.take(self.encoded.read, before.parts, z, t)
        state, log_q = self.gone_on(before, after, t), q.log_prob(z).sum(-1)
        return Drawn(state, z.unbind(-1), log_q, origin)

    def follow(
        self, latents: Tensor
    ) -> Iterator[tuple[int, Histories, Tensor, Histories]]:
        """Go along latents (B, K, T, D): t, histories before it, z_t, and after it."""
        state = self.begin(latents.shape[1])
        for t in range(self.num_steps):
            before, z = state, latents[:, :, t]
            after = self.model.take(self.encoded.read, before.parts, z, t)
            state = self.gone_on(before, after, t)
            yield t, before, z, state


@dataclass(frozen=True)
class RealStepProposal(OfModel, DrawnProposal):
    """q(z | x) of a ``RealStepLM``."""

    model: RealStepLM

    def log_prob(self, encoded: EncodedSteps, latents: Tensor) -> Tensor:
        """Log q(z_k | x) in nats, (B, K) float64: a density."""
        walk, total = self.drawn_steps(encoded), wide_zeros((), latents.device)
        for t, state, z, _ in walk.follow(latents):
            log_q = widened(walk.q(state, t).log_prob(z)).sum(-1)
            total = total + log_q.masked_fill((walk.length <= t)[:, None], 0.0)
        return total.expand(latents.shape[:2])

    def drawn_steps(self, encoded: EncodedSteps) -> RealSteps:
        return RealSteps(encoded, self.model, self.name, self.temperature)

    def latents(self, encoded: EncodedSteps, found: Sampled | Found) -> Tensor:
        return widened(torch.stack(found.columns, -1))


@dataclass(frozen=True)
class NormalProposal(Proposal):
    """q(z | x) of D real numbers a text: a normal distribution of each.

    A latent is a floating-point tensor (B, K, D).
    """

    name: str
    of: Callable[[TokenBatch], Normal]
    """Function from B texts to their distributions, of shape (B, D)."""
    temperature: float = 1.0
    """Divisor of log q up to a constant: variances are multiplied by it."""

    def __post_init__(self) -> None:
        check_temperature(self.temperature)

    def encode(self, batch: TokenBatch, after: None = None) -> Normal:
        """Distributions, (B, 1, D)."""
        q = self.of(batch)
        loc, scale = widened(q.loc)[:, None], widened(q.scale)[:, None]
        return _tempered(Normal(loc, scale, validate_args=False), self.temperature)

    def sample(self, q: Normal, uniforms: Uniforms, num_samples: int) -> Draws:
        z = q.loc + q.scale * standard_normals(uniforms, q.loc.shape[-1], q.loc.device)
        return Draws(z, q.log_prob(z).sum(-1))

    def log_prob(self, q: Normal, latents: Tensor) -> Tensor:
        """Log q(z_k | x) in nats, (B, K) float64: a density."""
        return widened(q.log_prob(latents)).sum(-1)


def _tempered(normal: Normal, temperature: float) -> Normal:
    scale = normal.scale * math.sqrt(temperature)
    return Normal(normal.loc, scale, validate_args=False)


def _of_model(uniforms: Tensor, num_reals: int) -> Tensor:
    """Random numbers of a step of D reals, (B, K, 4) -> (B, K, D)."""
    if num_reals > MODEL_LANES:
        raise ValueError(f"num_reals={num_reals}: a step has at most {MODEL_LANES}")
    return uniforms[..., :num_reals].contiguous()
