r"""LDA's configuration and joint distribution p(x, z): words and their topics.

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
Departures: none; collapsed topics are those of Griffiths and Steyvers (2004).
Source: Blei, Ng and Jordan (2003), "Latent Dirichlet allocation"; Wallach et al. (2009)
for held-out likelihoods.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from lm_latent_eval.devices import widened
from lm_latent_eval.latent import Normalization
from lm_latent_eval.models.lda.words import KnownWords
from lm_latent_eval.models.pretrained import WordsConfig, value
from lm_latent_eval.models.stepwise import EncodedSteps, Step, StepLM
from lm_latent_eval.text.batch import TokenBatch, excluding
from lm_latent_eval.text.words import WordTokenizer
from lm_latent_eval.values import Each, Flag, Whole


class LDAConfig(WordsConfig):
    """Configuration of a topic model.

    Args:
        num_words: As ``vocab_size``: no word is copied.
        num_topics: N.
        lowercase: Whether words are looked up in lower case.
        never_uttered: Words that have probability zero; the reserved ones.
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
    """Return log p(z) of topics drawn after others, nats, (B, K).

    Args:
        before: How often each topic was drawn before, (B, K, N).
        drawn: How often each is drawn now.
        alpha: Parameters of the Dirichlet distribution, (N,).
    """
    begun = before + alpha
    each = torch.lgamma(begun + drawn) - torch.lgamma(begun)
    total = torch.lgamma(begun.sum(-1) + drawn.sum(-1)) - torch.lgamma(begun.sum(-1))
    return each.sum(-1) - total


@dataclass
class TopicConditionals:
    """Gibbs steps: K latents a text, and p of each topic given the others.

    With ``alpha`` the others are an urn; without it decisions are independent.
    """

    scores: Tensor
    """Score of a decision by itself, nats, (B, T, N) float64."""
    inside: Tensor
    """Which places hold a token, (B, T)."""
    alpha: Tensor | None
    topics: Tensor
    """(B, K, T)."""
    counts: Tensor
    """Of the decided ones, (B, K, N)."""
    decided: set[int] = field(default_factory=set)
    """Tokens that have a topic."""

    @classmethod
    def begin(
        cls, scores: Tensor, inside: Tensor, alpha: Tensor | None, latents: Tensor | int
    ) -> TopicConditionals:
        """Take K latents a text, or K undecided ones."""
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
        """The topics, (B, K, T); 0 where none was drawn yet."""
        return self.topics.clone()

    def choices(self, t: int) -> Tensor:
        """Return the topics of token t, (B, K)."""
        return self.topics[..., t]

    def log_p(self, t: int) -> Tensor:
        """Return log p of each topic, given the word and the others, (B, K, N)."""
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
        """Give token t its topics, (B, K)."""
        inside = self.inside[:, t, None].expand(choice.shape)
        one = widened(inside)[..., None]
        if t in self.decided:
            self.counts.scatter_add_(2, self.topics[..., t, None], -one)
        choice = choice.masked_fill(~inside, 0)
        self.counts.scatter_add_(2, choice[..., None], one)
        self.topics[..., t] = choice
        self.decided.add(t)


def gathered(scores: Tensor, topics: Tensor, inside: Tensor) -> Tensor:
    """Sum the scores of the chosen topics: (B, T, N), (B, K, T) -> (B, K)."""
    each = scores[:, None].expand(-1, topics.shape[1], -1, -1)
    chosen = each.gather(3, topics[..., None])[..., 0]
    return chosen.masked_fill(~inside[:, None], 0.0).sum(-1)


class LDAJoint(StepLM):
    """p(x, z) of a topic model."""

    why_whole = (
        "a topic model knows which words a text has and not in which order, so nothing "
        "follows a context: ask for whole texts (perplexity tasks), or for document "
        "completion"
    )
    normalization = Normalization.BY_LENGTH
    """Total of its probabilities: one for each number of words."""
    config: LDAConfig

    def __init__(self, config: LDAConfig) -> None:
        super().__init__(config)
        size = config.num_topics, config.vocab_size
        self.log_topics = nn.Parameter(torch.zeros(size))
        self.log_alpha = nn.Parameter(torch.zeros(config.num_topics))

    def _init_weights(self, module: nn.Module) -> None:
        """Initialise one module of a new model: there is none."""

    def load_encoder(self, directory: Path) -> KnownWords:
        """Read the words that the topics know."""
        words = WordTokenizer.load(directory, self.config.vocab_size)
        return KnownWords(words, self.config.lowercase)

    # -- p(x, z) --------------------------------------------------------------------

    @property
    def alpha(self) -> Tensor:
        """Parameters of the Dirichlet distribution, (N,) float64."""
        return widened(self.log_alpha).exp()

    def log_phi(self) -> Tensor:
        """Return log p(word | topic), (N, V) float64."""
        scores = excluding(widened(self.log_topics), self.config.never_uttered)
        return scores.log_softmax(-1)

    def read(self, batch: TokenBatch) -> Tensor:
        """Return log phi of each word under each topic, (B, T, N) float64."""
        known, cost = batch.uttered(self.config.vocab_size)
        return self.log_phi().T[known] + cost[..., None]

    def begin(self, batch: TokenBatch) -> tuple[Tensor, ...]:
        """Return how often each topic was drawn before all text, (B, 1, N)."""
        return (
            batch.unknown_log_prob.new_zeros(
                len(batch.length), 1, self.config.num_topics
            ),
        )

    def step(self, read: Tensor, state: tuple[Tensor, ...], t: int) -> Step:
        """Score the topics of word t as an urn does, given those before."""
        (counts,) = state
        return Step(self.log_share(counts), read[:, None, t])

    def take(
        self, read: Tensor, state: tuple[Tensor, ...], choice: Tensor, t: int
    ) -> tuple[Tensor, ...]:
        """Count the topics of word t."""
        (counts,) = state
        one = counts.new_ones(()).expand(*choice.shape, 1)
        return (counts.scatter_add(2, choice[..., None], one),)

    def log_share(self, counts: Tensor) -> Tensor:
        """Return log p(z_t) of each topic after so many of each, (B, K, N)."""
        urn = counts + self.alpha
        return urn.log() - urn.sum(-1, keepdim=True).log()

    def log_joint(self, encoded: EncodedSteps, topics: Tensor) -> Tensor:
        """Return log p(x, z_k) in nats, (B, K) float64, by the urn's closed form."""
        inside, (before,) = encoded.batch.inside, encoded.before.parts
        drawn = count(topics, inside, self.config.num_topics)
        log_p = log_urn(before, drawn, self.alpha)
        return log_p + gathered(encoded.read, topics, inside)

    def log_words(self, read: Tensor, state: tuple[Tensor, ...]) -> Tensor:
        """Return log p of every next word, (B, K, num_words)."""
        (counts,) = state
        return (self.log_share(counts)[..., None] + self.log_phi()).logsumexp(-2)

    def conditionals(
        self, encoded: EncodedSteps, latents: Tensor | int
    ) -> TopicConditionals:
        """Redraw topics, each given all others: the steps of a Gibbs sampler."""
        inside = encoded.batch.inside
        return TopicConditionals.begin(encoded.read, inside, self.alpha, latents)
