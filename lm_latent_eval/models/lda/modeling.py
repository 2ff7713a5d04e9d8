r"""LDA's joint distribution p(x, z) of words and their topics, and its proposals.

.. math::
    p(x, z) = p(z) \prod_t \phi_{z_t, x_t}, \qquad
    p(z) = \frac{\Gamma(A)}{\Gamma(A + T)}
           \prod_n \frac{\Gamma(\alpha_n + c_n)}{\Gamma(\alpha_n)}

The proportions of a text, of a Dirichlet distribution, are integrated out, which makes
topics a Polya urn, redrawn one at a time by a Gibbs sampler:

.. math:: p(z_t = n \mid z_{-t}) = \frac{c_n + \alpha_n}{C + A}

phi and alpha are those of the checkpoint. Symbols: log phi -> ``log_topics``; alpha ->
``alpha``; c_n, the words of topic n, C in all -> ``counts``; A is the sum of alpha.
A text of T words has no end, so p is a distribution over texts of one length. The order
of words moves no probability.

Of the proposals, ``document`` draws topics independently, with pseudo-counts of the
other words' topics that are iterated until they hardly move:

.. math:: q_t(n) \propto \phi_{n, x_t} \Bigl(\alpha_n + \sum_{t' \ne t} q_{t'}(n)\Bigr)

``adapted`` draws z_t in proportion to p(z_t, x_t | z_<t), where words that no topic
utters say nothing, and ``prior`` to p(z_t | z_<t).

Departures: none; collapsed topics are those of Griffiths and Steyvers (2004).
Source: Blei, Ng and Jordan (2003), "Latent Dirichlet allocation"; Wallach, Murray,
Salakhutdinov and Mimno (2009), "Evaluation methods for topic models", section 3, for
held-out likelihoods: importance sampling with iterated pseudo-counts, and the particles
of the left-to-right estimator without the redrawing of earlier topics.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn

from lm_latent_eval.devices import sent, widened
from lm_latent_eval.inference.particles import odd_numbers
from lm_latent_eval.inference.steps import Found, Sampled, log_prob
from lm_latent_eval.inference.unfolding import StepProposal
from lm_latent_eval.latent import (
    Conditionals,
    Description,
    Normalization,
    Span,
    marked,
)
from lm_latent_eval.models.lda.words import KnownWords
from lm_latent_eval.models.pretrained import WordsConfig, value
from lm_latent_eval.models.proposals import check_temperature, chosen
from lm_latent_eval.models.stepwise import (
    ADAPTED,
    PRIOR,
    EncodedSteps,
    ModelProposal,
    ModelSteps,
    Step,
    StepLM,
)
from lm_latent_eval.text.batch import TokenBatch, excluding
from lm_latent_eval.text.words import WordTokenizer
from lm_latent_eval.values import Each, Flag, Whole

SHOWN = 3
"""Number of words that name a topic."""


class LDAConfig(WordsConfig):
    """Configuration of a topic model.

    Args:
        num_words: Equal to ``vocab_size``: no word is copied.
        num_topics: N.
        lowercase: Whether words are looked up in lower case.
        never_uttered: Words of probability zero, the reserved ones.
    """

    model_type = "latent_eval_lda"
    num_words: int = value(None, Whole("vocab_size", "vocab_size"))
    num_topics: int = value(1, Whole(1))
    lowercase: bool = value(False, Flag())
    never_uttered: list[int] = value([0, 1, 2, 3], Each(Whole(0, below="vocab_size")))


def count(topics: Tensor, inside: Tensor, num_topics: int) -> Tensor:
    """Count the topics of each latent: (B, K, T), (B, T) -> (B, K, N) float64."""
    shape = (*topics.shape[:2], num_topics)
    ones = widened(inside[:, None]).expand(topics.shape)
    return ones.new_zeros(shape).scatter_add(2, topics, ones)


def log_urn(before: Tensor, drawn: Tensor, alpha: Tensor) -> Tensor:
    """Log p(z) of topics drawn after others, (B, K) nats.

    Args:
        before: Earlier draws of each topic, (B, K, N).
        drawn: New draws of each topic, (B, K, N).
        alpha: Parameters of the Dirichlet distribution, (N,).
    """
    begun = before + alpha
    each = torch.lgamma(begun + drawn) - torch.lgamma(begun)
    total = torch.lgamma(begun.sum(-1) + drawn.sum(-1)) - torch.lgamma(begun.sum(-1))
    return each.sum(-1) - total


@dataclass
class TopicConditionals(Conditionals):
    """Gibbs steps: K latents a text, and p of each topic given the others.

    With ``alpha`` the others are an urn; without it topics are independent.
    """

    scores: Tensor
    """Scores of each topic alone, nats, (B, T, N) float64."""
    inside: Tensor
    """Mask of tokens, (B, T)."""
    alpha: Tensor | None
    topics: Tensor
    counts: Tensor
    """Counts of the drawn topics, (B, K, N)."""
    decided: set[int] = field(default_factory=set)
    """Indices of tokens with a topic."""

    @classmethod
    def begin(
        cls, scores: Tensor, inside: Tensor, alpha: Tensor | None, latents: Tensor | int
    ) -> TopicConditionals:
        """Start from K given latents a text, or from K empty ones."""
        (batch, tokens, num_topics) = scores.shape
        if isinstance(latents, int):
            topics = scores.new_zeros(batch, latents, tokens, dtype=torch.long)
            counts = scores.new_zeros(batch, latents, num_topics)
            return cls(scores, inside, alpha, topics, counts)
        counts = count(latents, inside, num_topics)
        decided = set(range(tokens))
        return cls(scores, inside, alpha, latents.clone(), counts, decided)

    @property
    def latents(self) -> Tensor:
        """Topics, (B, K, T); 0 if not drawn yet."""
        return self.topics.clone()

    def log_p(self, t: int) -> Tensor:
        """Log p of each topic, given the word and the others, (B, K, N)."""
        inside = self.inside[:, t, None, None]
        score = self.scores[:, None, t]
        if self.alpha is not None:
            others = self.counts + self.alpha
            if t in self.decided:
                one = -widened(inside).expand(*self.topics.shape[:2], 1)
                others = others.scatter_add(2, self.topics[..., t, None], one)
            score = score + others.log() - others.sum(-1, keepdim=True).log()
        past = torch.full_like(score, -torch.inf)
        past[..., 0] = 0.0
        return torch.where(inside, score, past).expand_as(self.counts)

    def decide(self, t: int, choice: Tensor) -> None:
        inside = self.inside[:, t, None].expand(choice.shape)
        one = widened(inside)[..., None]
        if t in self.decided:
            self.counts.scatter_add_(2, self.topics[..., t, None], -one)
        choice = choice.masked_fill(~inside, 0)
        self.counts.scatter_add_(2, choice[..., None], one)
        self.topics[..., t] = choice
        self.decided.add(t)


class LDA(StepLM):
    """A topic model with its proposals."""

    config_class = LDAConfig
    base_model_prefix = "lda"
    main_input_name = "inputs"
    estimators = ("auto", "ais", "dpf", "is", "beam", "smc")
    """Supported estimators, the default first."""
    proposal_names = ("document", ADAPTED, PRIOR)
    why_whole = (
        "a topic model knows which words a text has and not in which order, so nothing "
        "follows a context: ask for whole texts (perplexity tasks), or for document "
        "completion"
    )
    normalization = Normalization.BY_LENGTH  # one for each number of words
    config: LDAConfig

    def __init__(self, config: LDAConfig) -> None:
        super().__init__(config)
        size = config.num_topics, config.vocab_size
        self.log_topics = nn.Parameter(torch.zeros(size))
        self.log_alpha = nn.Parameter(torch.zeros(config.num_topics))
        self.post_init()  # type: ignore[no-untyped-call]

    def _init_weights(self, module: nn.Module) -> None: ...

    def load_encoder(self, directory: Path) -> KnownWords:
        words = WordTokenizer.load(directory, self.config.vocab_size)
        return KnownWords(words, self.config.lowercase)

    def describe(
        self,
        words: Sequence[str],
        topics: Tensor,
        decode: Callable[[Sequence[int]], str],
    ) -> Description:
        likeliest = self.log_topics.topk(min(SHOWN, self.config.vocab_size)).indices
        names = [decode(ids) for ids in likeliest.tolist()]
        spans = [
            Span(t, t + 1, f"topic {topic}: {names[topic]}", topic + 1)
            for t, topic in enumerate(topics[0, 0, : len(words)].tolist())
        ]
        return marked(words, spans)

    # -- p(x, z) --------------------------------------------------------------------

    @property
    def alpha(self) -> Tensor:
        """Parameters of the Dirichlet distribution, (N,) float64."""
        return widened(self.log_alpha).exp()

    def log_phi(self) -> Tensor:
        """Log p(word | topic), (N, V) float64."""
        scores = excluding(widened(self.log_topics), self.config.never_uttered)
        return scores.log_softmax(-1)

    def read(self, batch: TokenBatch, recurrent: tuple[Tensor, ...]) -> Tensor:
        """Log phi of each word under each topic, (B, T, N) float64."""
        word, cost = batch.uttered(self.config.vocab_size)
        return self.log_phi().T[word] + cost[..., None]

    def begin(self, batch: TokenBatch) -> tuple[Tensor, ...]:
        """Counts of topics before all text, (B, 1, N)."""
        return (
            batch.unknown_log_prob.new_zeros(
                len(batch.length), 1, self.config.num_topics
            ),
        )

    def step(self, read: Tensor, state: tuple[Tensor, ...], t: int) -> Step:
        """Score the topics of word t by the urn.

        Histories with equal counts are recombined.
        """
        (counts,) = state
        odd = sent(odd_numbers(counts.shape[-1]), counts.device)
        key = (counts.long() * odd).sum(-1, keepdim=True) + odd
        return Step(self.log_share(counts), read[:, None, t], key=key)

    def take(
        self, read: Tensor, state: tuple[Tensor, ...], choice: Tensor, t: int
    ) -> tuple[Tensor, ...]:
        (counts,) = state
        one = counts.new_ones(()).expand(*choice.shape, 1)
        return (counts.scatter_add(2, choice[..., None], one),)

    def log_share(self, counts: Tensor) -> Tensor:
        """Log p(z_t) of each topic given the counts, (B, K, N)."""
        urn = counts + self.alpha
        return urn.log() - urn.sum(-1, keepdim=True).log()

    def log_joint(self, encoded: EncodedSteps, topics: Tensor) -> Tensor:
        """Log p(x, z_k) in nats, (B, K) float64, by the urn's closed form."""
        inside, (before,) = encoded.batch.inside, encoded.before.parts
        drawn = count(topics, inside, self.config.num_topics)
        read: Tensor = encoded.read[:, None].expand(-1, topics.shape[1], -1, -1)
        spoken = read.gather(3, topics[..., None])[..., 0]
        spoken = spoken.masked_fill(~inside[:, None], 0.0).sum(-1)
        return log_urn(before, drawn, self.alpha) + spoken

    def log_words(self, read: Tensor, state: tuple[Tensor, ...]) -> Tensor:
        """Log p of every next word, (B, K, num_words)."""
        (counts,) = state
        return (self.log_share(counts)[..., None] + self.log_phi()).logsumexp(-2)

    def conditionals(
        self, encoded: EncodedSteps, latents: Tensor | int
    ) -> TopicConditionals:
        """Conditional of each topic given all others: the steps of a Gibbs sampler."""
        inside = encoded.batch.inside
        return TopicConditionals.begin(encoded.read, inside, self.alpha, latents)

    # -- q(z | x) -------------------------------------------------------------------

    def proposal(
        self, name: str | None = None, temperature: float = 1.0
    ) -> FittedTopics | ModelProposal:
        """Build a proposal.

        Args:
            name: ``document`` reads whole texts; ``adapted`` and ``prior`` go from left
                to right. None is the first.
            temperature: Divides the proposal's scores.

        Raises:
            ValueError: If the name is unknown or the temperature is not positive.
        """
        check_temperature(temperature)
        name = chosen(name, self.proposal_names)
        if name == "document":
            return FittedTopics(self, temperature)
        kind = PriorTopics if name == PRIOR else ModelProposal
        return kind(self, name, temperature)


# -- proposals ----------------------------------------------------------------------

ITERATIONS = 20
"""Number of updates of the pseudo-counts."""


@dataclass(frozen=True)
class PriorTopics(ModelProposal):
    """q(z) = p(z), which reads no words."""

    model: LDA

    def conditionals(
        self, encoded: EncodedSteps, latents: Tensor | int
    ) -> TopicConditionals:
        """Conditional of each topic given all others.

        Raises:
            ValueError: If the temperature is not 1.
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
class FittedTopics(StepProposal):
    """q(z | x) of independent topics, fitted to the whole text."""

    # Histories of equal counts are one, so few of them hold most of p.
    widening: ClassVar[int] = 4
    model: LDA
    temperature: float
    name: str = "document"

    @property
    def left_to_right(self) -> ModelProposal:
        return ModelProposal(self.model, ADAPTED, self.temperature)

    def encode(self, batch: TokenBatch, after: None = None) -> EncodedSteps:
        """Iterate pseudo-counts; ``read`` becomes log q_t, (B, T, N) nats."""
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
        return ModelSteps(encoded, Independent(), PRIOR)

    def searched_steps(self, encoded: EncodedSteps) -> ModelSteps:
        """Steps of p with a look-ahead by q.

        A search that ranked by q could not validate draws from q.
        """
        p, inside = self.model.encode(encoded.batch), encoded.batch.inside
        q = encoded.read.exp().masked_fill(~inside[..., None], 0.0)
        to_come = q.flip(1).cumsum(1).flip(1) - q
        p = p._replace(read=torch.stack([p.read, to_come]))
        return ModelSteps(p, LookingAhead(self.model), ADAPTED)

    def histories(self, encoded: EncodedSteps) -> int:
        return 1

    def latents(self, encoded: EncodedSteps, found: Sampled | Found) -> Tensor:
        return found.columns[0]

    def log_prob(self, encoded: EncodedSteps, topics: Tensor) -> Tensor:
        """Log q(z_k | x) in nats, (B, K) float64."""
        return log_prob(self.drawn_steps(encoded), (topics,), 1.0)

    def conditionals(
        self, encoded: EncodedSteps, latents: Tensor | int
    ) -> TopicConditionals:
        """Conditionals of topics that are independent."""
        inside = encoded.batch.inside
        return TopicConditionals.begin(encoded.read, inside, None, latents)


@dataclass(frozen=True)
class LookingAhead:
    r"""Steps of p whose look-ahead expects the topics that q gives later words.

    .. math::
        \psi(c) = \prod_n \frac{\Gamma(\alpha_n + c_n + Q_n)}{\Gamma(\alpha_n + c_n)}

    with Q_n later words of topic n under q. So z_t = n is ranked by alpha_n + c_n +
    Q_n, as q weighs it.
    """

    model: LDA

    def step(self, read: Tensor, state: tuple[Tensor, ...], t: int) -> Step:
        """Score the topics of token t; ``read`` is log phi, and Q after each token."""
        words, to_come = read
        (counts,) = state
        before = counts + self.model.alpha
        after = before + to_come[:, None, t]
        log_after, log_before = after.log(), before.log()
        log_psi = log_gamma(after, log_after) - log_gamma(before, log_before)
        log_psi = log_psi.sum(-1, keepdim=True) + log_after - log_before
        return self.model.step(words, state, t)._replace(log_twist=log_psi)

    def take(
        self, read: Tensor, state: tuple[Tensor, ...], choice: Tensor, t: int
    ) -> tuple[Tensor, ...]:
        return self.model.take(read[0], state, choice, t)


def log_gamma(x: Tensor, log_x: Tensor) -> Tensor:
    """Log Gamma(x) by Stirling's formula of x + 1: within 0.003 nats."""
    more = x + 1
    stirling = (x + 0.5) * more.log() - more + 1 / (12 * more)
    return stirling + math.log(2 * math.pi) / 2 - log_x


@dataclass(frozen=True)
class Independent:
    """Choices that are independent of one another: ``read`` holds log q_t."""

    def step(self, read: Tensor, state: tuple[Tensor, ...], t: int) -> Step:
        return Step(read[:, None, t], torch.zeros_like(read[:, None, t]))

    def take(
        self, read: Tensor, state: tuple[Tensor, ...], choice: Tensor, t: int
    ) -> tuple[Tensor, ...]:
        return state


def possible(log_words: Tensor) -> Tensor:
    """Scores of words, equal for all topics if none has the word."""
    return log_words.masked_fill(log_words.isneginf(), 0.0)
