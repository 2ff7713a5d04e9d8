"""Sentence-level RNN (sRNN): unnormalised scores of whole sentences.

    h_i = sigma(W [h_{i-1}; x_i] + b),    s(x) = sum_i u . h_i,    p(x) ~ exp s(x)

It composes the sentence so far and the next word into a phrase, and a sentence scores
what its phrases do together. Nothing divides exp s(x) by its sum over all sentences, so
there is no perplexity; but the normaliser cancels where a sentence is compared with a
distorted copy of itself, which is all that contrastive entropy asks for.

Symbols: h_i -> ``hidden``; x_i -> ``embeddings``, of length 1; W, b -> ``rnn``;
u -> ``score``. Training is in ``training.py``.
Departures: none known. The paper says that the score of a sentence is made of those of
its phrases, and not how: we add them, so that a sentence's exp s(x) is a product over
its words, as that of the models it is compared with. A sentence has no end word: the
paper's has n steps for n words.
Source: Arora and Rangarajan (2016), section 4, equations 12 to 16.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional as F

from lm_latent_eval.devices import widened
from lm_latent_eval.latent import Normalization
from lm_latent_eval.models.no_latents import NoLatents
from lm_latent_eval.models.pretrained import CheckedConfig, Pretrained, value
from lm_latent_eval.models.recurrent import Carry, Elman, RecurrentStack, initialise
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.sentences import line_starts
from lm_latent_eval.text.words import UNKNOWN
from lm_latent_eval.values import Whole


class SRNNConfig(CheckedConfig):
    """Configuration of a sentence-level RNN.

    Args:
        vocab_size: Words that have an embedding.
        hidden_size: Of phrases, and of words.
    """

    model_type = "latent_eval_srnn"
    vocab_size: int = value(4, Whole(4))
    hidden_size: int = value(75, Whole(1))

    @property
    def num_words(self) -> int:
        """As many as have an embedding."""
        return self.vocab_size

    @property
    def num_unknown_types(self) -> int:
        """Not known: an unknown word is one word like others, and has no price."""
        return 0


@dataclass(frozen=True)
class Encoded:
    """What every word adds to its sentence's score."""

    batch: TokenBatch
    scores: Tensor
    """(B, T)."""
    carry: Carry


class SentenceRNN(Pretrained):
    """s(x) in the place of log p(x); z is always ().

    Implements ``LatentLM``, ``LeftToRight`` and ``SentenceModel``: the lines of a
    document are its sentences.
    """

    config_class = SRNNConfig
    base_model_prefix = "srnn"
    main_input_name = "inputs"
    estimators = ("exact",)
    """What finds its scores."""
    proposal_names = ("none",)
    """What ``proposal`` can return."""
    normalization = Normalization.UNNORMALISED
    config: SRNNConfig

    def __init__(self, config: SRNNConfig) -> None:
        super().__init__(config)
        size = config.hidden_size
        self.embeddings = nn.Embedding(config.vocab_size, size)
        self.rnn = RecurrentStack([size, size], cell=Elman)
        self.score = nn.Linear(size, 1, bias=False)
        self.post_init()  # type: ignore[no-untyped-call]

    def _init_weights(self, module: nn.Module) -> None:
        """Initialise one module of a new model."""
        initialise(module)

    def sentence_starts(self, text: str) -> list[int]:
        """Return where each line of a document begins, in characters."""
        return line_starts(text)

    def encode(self, batch: TokenBatch, after: Carry | None = None) -> Encoded:
        known = batch.targets.masked_fill(
            batch.targets >= self.config.vocab_size, UNKNOWN
        )
        words = F.normalize(self.embeddings(known), dim=-1)
        hidden, carry = self.rnn(words, batch.length, after)
        return Encoded(batch, self.score(hidden)[..., 0], carry)

    def log_joint(self, encoded: Encoded, latents: Tensor) -> Tensor:
        """Return s(x), once for each of K empty latents, (B, K) float64."""
        inside = encoded.batch.inside
        total = widened(encoded.scores).masked_fill(~inside, 0.0).sum(-1)
        return total[:, None].expand(-1, latents.shape[1])

    def advance(self, encoded: Encoded, latents: Tensor) -> Carry:
        """Return the recurrent state after the piece."""
        return encoded.carry

    def proposal(self, name: str | None = None, temperature: float = 1.0) -> NoLatents:
        """Return the only one: there is nothing to propose."""
        return NoLatents()
