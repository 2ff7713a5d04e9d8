r"""LDA with its proposals: fitted to the whole text, or from left to right.

``joint.py`` has p(x, z). ``document`` draws topics independently, with pseudo-counts of
the other words' topics that are iterated until they hardly move:

.. math:: q_t(n) \propto \phi_{n, x_t} \Bigl(\alpha_n + \sum_{t' \ne t} q_{t'}(n)\Bigr)

``adapted`` draws z_t in proportion to p(z_t, x_t | z_<t), where words that no topic
utters say nothing, and ``prior`` to p(z_t | z_<t).

Source: Wallach, Murray, Salakhutdinov and Mimno (2009), "Evaluation methods for topic
models", section 3: importance sampling with iterated pseudo-counts, and the particles
of the left-to-right estimator without the redrawing of earlier topics.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lm_latent_eval.devices import sent
from lm_latent_eval.inference.gibbs import draw_choice
from lm_latent_eval.inference.steps import Found, Sampled, log_prob
from lm_latent_eval.inference.unfolding import StepProposal
from lm_latent_eval.latent import Uniforms
from lm_latent_eval.models.lda.joint import LDAConfig, LDAJoint, TopicConditionals
from lm_latent_eval.models.proposals import check_temperature, chosen
from lm_latent_eval.models.stepwise import (
    ADAPTED,
    PRIOR,
    EncodedSteps,
    Histories,
    ModelProposal,
    ModelSteps,
    Step,
)
from lm_latent_eval.text.batch import TokenBatch

ITERATIONS = 20
"""Of pseudo-counts."""


@dataclass(frozen=True)
class LeftToRightTopics(ModelProposal):
    """q(z | x), one topic after another."""

    model: LDAJoint

    def moved(
        self, encoded: EncodedSteps, topics: Tensor, uniforms: Uniforms
    ) -> tuple[Tensor, Tensor]:
        """Draw the topic of one word anew, by what topics say of the word alone."""
        u, (_, length) = uniforms(0), encoded.batch.on_host
        t = (u[..., 0] * length[:, None]).long()[..., None]
        t = sent(t, topics.device)
        scores = possible(encoded.read)
        size = len(scores), topics.shape[1], scores.shape[-1]
        log_r = scores.gather(1, t.expand(size)).log_softmax(-1)
        old, new = topics.gather(2, t), draw_choice(log_r, u[..., 1])[..., None]
        log_ratio = log_r.gather(2, old) - log_r.gather(2, new)
        return topics.scatter(2, t, new), log_ratio[..., 0]


@dataclass(frozen=True)
class PriorTopics(LeftToRightTopics):
    """q(z) = p(z), which reads no words."""

    def conditionals(
        self, encoded: EncodedSteps, latents: Tensor | int
    ) -> TopicConditionals:
        """Redraw topics, each given all others.

        Raises:
            ValueError: If the prior is flattened or sharpened.
        """
        if self.temperature != 1.0:
            raise ValueError(
                f"the prior at temperature {self.temperature:g} does not say what one "
                "topic is given the others: leave temperature out"
            )
        scores = torch.zeros_like(encoded.read)
        inside = encoded.batch.inside
        return TopicConditionals.begin(scores, inside, self.model.alpha, latents)


@dataclass(frozen=True)
class FittedTopics(StepProposal[EncodedSteps, Tensor, Histories]):
    """q(z | x) of independent topics, fitted to the whole text."""

    model: LDAJoint
    temperature: float
    name: str = "document"

    @property
    def left_to_right(self) -> LeftToRightTopics:
        """The proposal for a text that goes on."""
        return LeftToRightTopics(self.model, ADAPTED, self.temperature)

    def encode(self, batch: TokenBatch) -> EncodedSteps:
        """Iterate pseudo-counts: what is read of a text is log q_t, (B, T, N) nats."""
        read = self.model.encode(batch)
        scores = possible(read.read)
        inside = batch.inside[..., None]
        q = torch.ones_like(scores) / scores.shape[-1]
        log_q = q.log()
        for _ in range(ITERATIONS):
            q = q.masked_fill(~inside, 0.0)
            others = q.sum(1, keepdim=True) - q
            log_q = (scores + (others + self.model.alpha).log()).log_softmax(-1)
            q = log_q.exp()
        log_q = (log_q / self.temperature).log_softmax(-1)
        return EncodedSteps(batch, log_q, read.before)

    def drawn_steps(self, encoded: EncodedSteps) -> ModelSteps:
        """Return the steps, which are drawn and searched alike."""
        return ModelSteps(encoded, Independent(), PRIOR)

    searched_steps = drawn_steps

    def histories(self, encoded: EncodedSteps) -> int:
        """Return 1: a whole text follows nothing."""
        return 1

    def latents(
        self, encoded: EncodedSteps, found: Sampled[Histories] | Found[Histories]
    ) -> Tensor:
        """Return the topics, (B, K, T)."""
        return found.columns[0]

    def log_prob(self, encoded: EncodedSteps, topics: Tensor) -> Tensor:
        """Return log q(z_k | x) in nats, (B, K) float64."""
        return log_prob(self.drawn_steps(encoded), (topics,), 1.0)

    def conditionals(
        self, encoded: EncodedSteps, latents: Tensor | int
    ) -> TopicConditionals:
        """Redraw topics, which do not depend on one another."""
        inside = encoded.batch.inside
        return TopicConditionals.begin(encoded.read, inside, None, latents)


@dataclass(frozen=True)
class Independent:
    """Choices that do not depend on one another: log q_t is what is read of a text."""

    def step(self, read: Tensor, state: tuple[Tensor, ...], t: int) -> Step:
        """Return log q of the choices of token t, whatever the others are."""
        return Step(read[:, None, t], torch.zeros_like(read[:, None, t]))

    def take(
        self, read: Tensor, state: tuple[Tensor, ...], choice: Tensor, t: int
    ) -> tuple[Tensor, ...]:
        return state


def possible(log_words: Tensor) -> Tensor:
    """Score all topics alike for a word that none of them utters."""
    return log_words.masked_fill(log_words.isneginf(), 0.0)


class LDA(LDAJoint):
    """A topic model with its proposals.

    Implements ``LatentLM``, ``LeftToRight``, ``NextToken``, and ``Redraws``
    for p; ``proposal`` gives a matching q.
    """

    config_class = LDAConfig
    base_model_prefix = "lda"
    main_input_name = "inputs"
    estimators = ("ais", "l2r", "chib", "auto", "mixed", "dpf", "is", "beam", "smc")
    """Names of its estimators, the default first."""
    proposal_names = ("document", ADAPTED, PRIOR)
    """Names of its proposals."""

    def __init__(self, config: LDAConfig) -> None:
        super().__init__(config)
        self.post_init()  # type: ignore[no-untyped-call]

    def proposal(
        self, name: str | None = None, temperature: float = 1.0
    ) -> FittedTopics | LeftToRightTopics:
        """Return a proposal.

        Args:
            name: ``document`` reads whole texts; ``adapted`` and ``prior`` go from left
                to right. None is the first.
            temperature: Divides the proposal's scores.

        Raises:
            ValueError: If there is no such proposal or the temperature is not positive.
        """
        check_temperature(temperature)
        name = chosen(name, self.proposal_names)
        if name == "document":
            return FittedTopics(self, temperature)
        kind = PriorTopics if name == PRIOR else LeftToRightTopics
        return kind(self, name, temperature)
