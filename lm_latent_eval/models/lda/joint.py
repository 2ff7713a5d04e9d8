r"""LDA's joint distribution p(x, z): words and their topics.

.. math::
    p(x, z) = p(z) \prod_t \phi_{z_t, x_t}, \qquad
    p(z) = \frac{\Gamma(A)}{\Gamma(A + T)}
           \prod_n \frac{\Gamma(\alpha_n + c_n)}{\Gamma(\alpha_n)}

The proportions of a text, of a Dirichlet distribution, are integrated out; phi and
alpha are those of the checkpoint. Symbols: log phi -> ``log_topics``; alpha ->
``alpha``; c_n, the words of topic n so far -> ``counts``; A is the sum of alpha.
A text of T words has no end, so p is a distribution over texts of one length. The order
of words moves no probability.
Departures: none; collapsed topics are those of Griffiths and Steyvers (2004).
Source: Blei, Ng and Jordan (2003), "Latent Dirichlet allocation"; Wallach et al. (2009)
for held-out likelihoods.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lm_latent_eval.devices import sent, widened
from lm_latent_eval.latent import Normalization
from lm_latent_eval.models.lda.configuration import LDAConfig
from lm_latent_eval.models.lda.topics import (
    TopicConditionals,
    count,
    gathered,
    log_urn,
)
from lm_latent_eval.models.lda.words import KnownWords
from lm_latent_eval.models.stepwise import EncodedSteps, Step, StepLM
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.words import UNKNOWN, WordTokenizer


class LDAJoint(StepLM):
    """p(x, z) of a topic model."""

    why_whole = (
        "a topic model knows which words a text has and not in which order, so nothing "
        "follows a context: ask for whole texts (perplexity tasks), or for document "
        "completion"
    )
    normalization = Normalization.BY_LENGTH
    """What its probabilities of all texts total: one for each number of words."""
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
        never = sent(torch.tensor(self.config.never_uttered).long(), self.device)
        scores = widened(self.log_topics).index_fill(1, never, -torch.inf)
        return scores.log_softmax(-1)

    def read(self, batch: TokenBatch) -> Tensor:
        """Return log phi of each word under each topic, (B, T, N) float64."""
        known = batch.targets.masked_fill(
            batch.targets >= self.config.vocab_size, UNKNOWN
        )
        log_words = self.log_phi().T[known]
        cost = batch.unknown_log_prob.masked_fill(known != UNKNOWN, 0.0)
        return log_words + cost[..., None]

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
        log_p = (self.log_share(counts)[..., None] + self.log_phi()).logsumexp(-2)
        rest = self.config.num_words - self.config.vocab_size
        return F.pad(log_p, (0, rest), value=-torch.inf)

    def conditionals(
        self, encoded: EncodedSteps, latents: Tensor | int
    ) -> TopicConditionals:
        """Redraw topics, each given all others: the steps of a Gibbs sampler."""
        inside = encoded.batch.inside
        return TopicConditionals.begin(encoded.read, inside, self.alpha, latents)
