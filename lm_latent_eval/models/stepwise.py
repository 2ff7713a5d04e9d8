r"""``StepLM``: models defined by one step of their latents.

.. math:: p(x, z) = \prod_t p(z_t \mid z_{<t}, x_{<t}) \, p(x_t \mid z_{\le t}, x_{<t})

where z_t is one of N choices. From a step come log p of given latents, two proposals,
searches, filters, prefixes, contexts, pieces of long texts, predictions and generation:

* ``adapted``: q(z_t) in proportion to p(z_t) p(x_t | z_t), times what the model expects
  of the text ahead, if it says so;
* ``prior``: q(z_t) = p(z_t).

Searches rank by p, whichever draws.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from lm_latent_eval.devices import sent, wide_zeros, widened
from lm_latent_eval.inference import steps
from lm_latent_eval.inference.cuts import Cut
from lm_latent_eval.inference.step_choices import Choices, Dense
from lm_latent_eval.inference.steps import Drawn, Found, Sampled, Taken
from lm_latent_eval.inference.unfolding import StepProposal
from lm_latent_eval.latent import Uniforms
from lm_latent_eval.models.pretrained import Pretrained
from lm_latent_eval.models.proposals import check_temperature, chosen
from lm_latent_eval.text.batch import TokenBatch

ADAPTED, PRIOR = "adapted", "prior"


class Step(NamedTuple):
    """Choices of z_t after each of K histories of B texts, N each; nats."""

    log_prior: Tensor
    """Log p(z_t | the past), (B, K, N)."""
    log_word: Tensor
    """Log p(x_t | z_t, the past), (B, K, N)."""
    log_twist: Tensor | None = None
    """Expected log p of the text after x_t (look-ahead), (B, K, N), finite, up to a
    constant a text. It affects errors but no expectation. None: no look-ahead."""
    key: Tensor | None = None
    """Recombination keys, integers, (B, K, N) or less: two choices of a text have equal
    keys if their futures are identical, as the states of a hidden Markov model.
    Searches keep one history a key, with the sum of the probabilities, so nothing is
    lost while there are as many slots as keys. None: no futures are identical."""
    state: tuple[Tensor, ...] | None = None
    """Tensors (B, K, ...) that replace the state in ``take``: intermediate results of
    each history. None: the state itself."""


class Histories(NamedTuple):
    """State after K histories of B texts."""

    parts: tuple[Tensor, ...]
    """Tensors that depend on latents, (B, K, ...)."""
    recurrent: tuple[Tensor, ...] | None = None
    """Tensors that depend on the text alone, (B, ...), see ``recur``; None before the
    first token."""

    def select(self, index: Tensor) -> Histories:
        """Pick texts, by indices on the host."""
        recurrent = self.recurrent
        if recurrent is not None:
            recurrent = tuple(part[sent(index, part.device)] for part in recurrent)
        parts = tuple(part[sent(index, part.device)] for part in self.parts)
        return Histories(parts, recurrent)

    def resample(self, index: Tensor) -> Histories:
        """Pick histories of each text, (B, K')."""
        parts = tuple(_picked(part, index) for part in self.parts)
        return Histories(parts, self.recurrent)


class EncodedSteps(NamedTuple):
    """A piece of B texts: its encoding, and the histories before it."""

    batch: TokenBatch
    read: Any
    before: Histories
    recurrent: tuple[Tensor, ...] = ()
    """Result of ``recur``, (B, T + 1, ...) each."""

    def after(self, histories: Histories) -> Histories:
        """Histories after the last token, with the recurrent state there."""
        length = self.batch.length
        text = torch.arange(len(length), device=length.device)
        return Histories(
            histories.parts, tuple(part[text, length] for part in self.recurrent)
        )


class SaysSteps(Protocol):
    """Scores and transitions of one step."""

    def step(self, read: Any, state: tuple[Tensor, ...], t: int) -> Step: ...

    def take(
        self, read: Any, state: tuple[Tensor, ...], choice: Tensor, t: int
    ) -> tuple[Tensor, ...]: ...


class UnfoldingModel(Pretrained):
    """Base of models that are defined by one step of their latents."""

    proposal_names: Sequence[str] = (ADAPTED, PRIOR)
    """Names of proposals, the default first."""

    def recur(
        self, batch: TokenBatch, before: tuple[Tensor, ...] | None
    ) -> tuple[Tensor, ...]:
        """Compute a state of each text that is independent of latents, such as a GRU's.

        As part of the state of ``begin`` and ``take`` it would be computed once a
        history.

        Args:
            batch: A piece of B texts, of which ``batch.inputs`` are read.
            before: Result after the last token before, tensors (B, ...); None at the
                beginning of the texts.

        Returns:
            The state before the piece and after each token, tensors (B, T + 1, ...).
            Default: none.
        """
        return ()

    @abstractmethod
    def read(self, batch: TokenBatch, recurrent: tuple[Tensor, ...]) -> Any:
        """Compute all that is independent of latents, once a piece of B texts.

        A text comes in pieces: whole, as a context and its continuation, or 256 tokens
        at a time.

        Args:
            batch: The piece: ``inputs`` and ``targets``, (B, T), padded; ``inside`` is
                the mask of tokens. For p(y, z | x) ``batch.given`` is x; a model
                describes x in words by an attribute ``conditional_on``.
            recurrent: Result of ``recur``.

        Returns:
            The argument ``read`` of ``step``, ``take`` and ``log_words``.
        """

    @abstractmethod
    def begin(self, batch: TokenBatch) -> tuple[Tensor, ...]:
        """State before the first token: tensors (B, 1, ...)."""

    def encode(self, batch: TokenBatch, after: Histories | None = None) -> EncodedSteps:
        before = Histories(self.begin(batch)) if after is None else after
        recurrent = self.recur(batch, before.recurrent)
        return EncodedSteps(batch, self.read(batch, recurrent), before, recurrent)

    @abstractmethod
    def advance(self, encoded: EncodedSteps, latents: Tensor) -> Histories:
        """State of K histories after the encoded piece."""

    def mixed(self, log_words: Tensor, log_share: Tensor) -> Tensor:
        """Mix predictions of K histories, (B, K, V), by their shares, (B, K).

        Returns:
            Log-probabilities in nats, (B, num_words): words past V have none.
        """
        log_p = (log_share[..., None] + widened(log_words)).logsumexp(1)
        more = self.config.num_words - log_p.shape[-1]
        return F.pad(log_p, (0, more), value=-torch.inf)


class StepLM(UnfoldingModel):
    """A latent LM that is defined by one step of its latents.

    A latent is a tensor (B, K, T) of choices, 0 past the end of a text.
    """

    estimators: Sequence[str] = (*("auto", "dpf", "is", "beam", "smc", "exact"),)
    """Supported estimators, the default first."""

    # -- what a model says ------------------------------------------------------------

    @abstractmethod
    def step(self, read: Any, state: tuple[Tensor, ...], t: int) -> Step:
        """Score the choices of token t of a piece, after K histories of each text."""

    @abstractmethod
    def take(
        self, read: Any, state: tuple[Tensor, ...], choice: Tensor, t: int
    ) -> tuple[Tensor, ...]:
        """State of histories after their choices of token t, (B, K)."""

    @abstractmethod
    def log_words(self, read: Any, state: tuple[Tensor, ...]) -> Tensor:
        """Log p(next word | the past) of every word of the model, nats, (B, K, V).

        Choices are summed over; the next word itself, the first of the piece, is
        ignored.
        """

    # -- what follows -----------------------------------------------------------------

    def log_joint(self, encoded: EncodedSteps, latents: Tensor) -> Tensor:
        """Log p(x, z_k) in nats, (B, K) float64."""
        unfolding = ModelSteps(encoded, self, ADAPTED)
        total = wide_zeros(latents.shape[:2], latents.device)
        for choices, choice, possible, inside, _ in steps.follow(unfolding, (latents,)):
            log_p = choices.at(choices.log_p, choice).masked_fill(~possible, -torch.inf)
            total = total + widened(log_p).masked_fill(~inside, 0.0)
        return total

    def advance(self, encoded: EncodedSteps, latents: Tensor) -> Histories:
        unfolding = ModelSteps(encoded, self, ADAPTED)
        after = [unfolding.begin(latents.shape[1])]
        after += [step.state for step in steps.follow(unfolding, (latents,))]
        return encoded.after(after[-1])

    def next_token(
        self, encoded: EncodedSteps, log_w: Tensor, uniforms: Uniforms
    ) -> Tensor:
        """Predict the first token of an encoded piece, (B, V) nats, from K histories.

        Args:
            encoded: Pieces that begin with that token, which is ignored.
            log_w: Log-weights of the histories in nats, (B, K).
            uniforms: Random numbers, unused: choices are summed over.
        """
        log_p = self.log_words(encoded.read, encoded.before.parts)
        return self.mixed(log_p, log_w.log_softmax(-1))

    def proposal(
        self, name: str | None = None, temperature: float = 1.0
    ) -> StepProposal:
        """Build q: ``adapted`` to each word, or the ``prior`` of its latents.

        Args:
            name: One of ``proposal_names``; None is the first.
            temperature: Divides the proposal's scores.

        Raises:
            ValueError: If the name is unknown or the temperature is not positive.
        """
        check_temperature(temperature)
        return ModelProposal(self, chosen(name, self.proposal_names), temperature)


@dataclass(frozen=True)
class EncodedText:
    """An encoded piece as a sequence of steps."""

    encoded: EncodedSteps

    @property
    def length(self) -> Tensor:
        return self.encoded.batch.length

    @property
    def num_steps(self) -> int:
        return self.encoded.batch.targets.shape[1]

    def begin(self, num_histories: int | None) -> Histories:
        """Histories before the piece: K, or those of the piece."""
        before = self.encoded.before
        if num_histories is None:
            return before
        index = torch.arange(num_histories).clamp_max(self.num_histories(before) - 1)
        return before.resample(index.expand(len(self.length), -1))

    def num_histories(self, state: Histories) -> int:
        return state.parts[0].shape[1]

    def gone_on(
        self, before: Histories, after: tuple[Tensor, ...], t: int
    ) -> Histories:
        """State of histories after token t; that of ended texts stays."""
        inside = self.length > t
        parts = (
            torch.where(inside.view(-1, *[1] * (new.ndim - 1)), new, old)
            for new, old in zip(after, before.parts, strict=True)
        )
        return Histories(tuple(parts))


@dataclass(frozen=True)
class StepChoices(Dense):
    """Choices of a ``Step``, and the state of the histories for ``take``."""

    state: tuple[Tensor, ...] = ()


@dataclass(frozen=True)
class ModelSteps(EncodedText):
    """Steps of a ``StepLM`` by ``adapted`` or ``prior``."""

    model: SaysSteps
    name: str
    temperature: float = 1.0
    num_columns: ClassVar[int] = 1

    def choices(
        self, state: Histories, t: int, score: Tensor, cut: Cut | None
    ) -> StepChoices:
        one_step = self.model.step(self.encoded.read, state.parts, t)
        size = (*score.shape, one_step.log_prior.shape[-1])
        log_prior = widened(one_step.log_prior).expand(size)
        after = state.parts if one_step.state is None else one_step.state
        if self.name == PRIOR:
            return StepChoices(log_prior, state=after)
        log_p = log_prior + widened(one_step.log_word)
        key = None if one_step.key is None else one_step.key.expand(size)
        if one_step.log_twist is None:
            return StepChoices(log_p, key=key, state=after)
        ahead = widened(one_step.log_twist).expand(size)
        return StepChoices(log_p, log_p + ahead, ahead, key, after)

    def take(
        self,
        state: Histories,
        t: int,
        choices: Choices,
        origin: Tensor,
        choice: Tensor,
    ) -> Taken:
        before = state.resample(origin)
        parts = before.parts
        if isinstance(choices, StepChoices) and choices.state is not state.parts:
            parts = tuple(_picked(part, origin) for part in choices.state)
        after = self.model.take(self.encoded.read, parts, choice, t)
        return Taken(self.gone_on(before, after, t), (choice,))

    def draw(
        self, state: Histories, t: int, uniforms: Uniforms, origin: Tensor | None
    ) -> Drawn:
        u = uniforms(t)[..., 0]
        return steps.draw_listed(self, state, t, u, origin, self.temperature)


@dataclass(frozen=True)
class OfModel:
    """Base of proposals by a model's own steps, with the model's encoding."""

    model: UnfoldingModel
    name: str
    temperature: float

    def encode(self, batch: TokenBatch, after: Histories | None = None) -> EncodedSteps:
        return self.model.encode(batch, after)

    def advance(self, encoded: EncodedSteps, latents: Tensor) -> Histories:
        return self.model.advance(encoded, latents)

    def histories(self, encoded: EncodedSteps) -> int:
        return encoded.before.parts[0].shape[1]


@dataclass(frozen=True)
class ModelProposal(OfModel, StepProposal):
    """q(z | x) of a ``StepLM``."""

    model: StepLM

    def log_prob(self, encoded: EncodedSteps, latents: Tensor) -> Tensor:
        """Log q(z_k | x) in nats, (B, K) float64."""
        unfolding = self.drawn_steps(encoded)
        return steps.log_prob(unfolding, (latents,), self.temperature)

    def drawn_steps(self, encoded: EncodedSteps) -> ModelSteps:
        return ModelSteps(encoded, self.model, self.name, self.temperature)

    def searched_steps(self, encoded: EncodedSteps) -> ModelSteps:
        """Steps of searches, which rank by p for every proposal."""
        return ModelSteps(encoded, self.model, ADAPTED)

    def latents(self, encoded: EncodedSteps, found: Sampled | Found) -> Tensor:
        return found.columns[0]


def _picked(part: Tensor, index: Tensor) -> Tensor:
    """Pick histories of each text: (B, K, ...) -> (B, K', ...)."""
    index = sent(index, part.device)
    return part[torch.arange(len(index), device=part.device)[:, None], index]
