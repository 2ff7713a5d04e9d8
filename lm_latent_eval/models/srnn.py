"""Sentence-level RNN (sRNN): unnormalised scores of whole sentences, and its training.

    h_i = sigma(W [h_{i-1}; x_i] + b),    s(x) = sum_i u . h_i,    p(x) ~ exp s(x)

It composes the sentence so far and the next word into a phrase, and a sentence scores
what its phrases do together. Nothing divides exp s(x) by its sum over all sentences, so
there is no perplexity; but the normaliser cancels where a sentence is compared with a
distorted copy of itself, which is all that contrastive entropy asks for.

It is trained with a margin against distorted copies:

    sum over sentences x of max(0, 1 - (s(x) - s(x~))) + l2 / 2 |theta|^2

x~ is x after the noise channel of the paper (``text/noise.py``), new in every epoch;
that of the development text stays.

Symbols: h_i -> ``hidden``; x_i -> ``embeddings``, of length 1; W, b -> ``rnn``;
u -> ``score``; x~ -> ``distorted``; theta -> every parameter.
Departures: the paper says that the score of a sentence is made of those of its phrases,
and not how: we add them, so that a sentence's exp s(x) is a product over its words, as
that of the models it is compared with. A sentence has no end word: the paper's has n
steps for n words. Equation 17 asks for the largest distance between a sentence and its
distorted copy and cites two papers that use a hinge; a distance without one would grow
without end, so the hinge it is, with a margin of 1, which sets the scale of the scores.
Adam in the place of gradient descent at a rate of 0.1.
Source: Arora and Rangarajan (2016), sections 4 and 5, equations 12 to 17.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lm_latent_eval.devices import widened
from lm_latent_eval.latent import NO_LATENT, Normalization
from lm_latent_eval.models.learning import train_checkpoint
from lm_latent_eval.models.pretrained import CheckedConfig, Pretrained, value
from lm_latent_eval.models.proposals import NoLatents
from lm_latent_eval.models.recurrent import Carry, Elman, RecurrentStack, initialise
from lm_latent_eval.text.batch import TokenBatch, known_ids
from lm_latent_eval.text.counts import line_starts
from lm_latent_eval.text.noise import NoiseChannel
from lm_latent_eval.text.words import SPECIAL_WORDS, START, UNKNOWN, WordTokenizer
from lm_latent_eval.training.options import MarginObjective, Options, SRNNSize
from lm_latent_eval.training.supervised import Part
from lm_latent_eval.values import Whole


class SRNNConfig(CheckedConfig):
    """Configuration of a sentence-level RNN.

    Args:
        vocab_size: Number of words with an embedding.
        hidden_size: Size of phrases and of words.
    """

    model_type = "latent_eval_srnn"
    vocab_size: int = value(4, Whole(4))
    hidden_size: int = value(75, Whole(1))

    @property
    def num_words(self) -> int:
        return self.vocab_size

    @property
    def num_unknown_types(self) -> int:
        """Zero: the unknown word is one word like others, without a price."""
        return 0


@dataclass(frozen=True)
class Encoded:
    """Contribution of each word to its sentence's score, (B, T)."""

    batch: TokenBatch
    scores: Tensor
    carry: Carry


class SentenceRNN(Pretrained):
    """s(x) instead of log p(x); z is always ().

    The lines of a document are its sentences.
    """

    config_class = SRNNConfig
    base_model_prefix = "srnn"
    main_input_name = "inputs"
    estimators = ("exact",)
    proposal_names = ("none",)
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
        initialise(module)

    def sentence_starts(self, text: str) -> list[int]:
        return line_starts(text)

    def encode(self, batch: TokenBatch, after: Carry | None = None) -> Encoded:
        words = known_ids(batch.targets, self.config.vocab_size)
        words = F.normalize(self.embeddings(words), dim=-1)
        hidden, carry = self.rnn(words, batch.length, after)
        return Encoded(batch, self.score(hidden)[..., 0], carry)

    def log_joint(self, encoded: Encoded, latents: Tensor) -> Tensor:
        """s(x), once for each of K empty latents, (B, K) float64."""
        inside = encoded.batch.inside
        total = widened(encoded.scores).masked_fill(~inside, 0.0).sum(-1)
        return total[:, None].expand(-1, latents.shape[1])

    def advance(self, encoded: Encoded, latents: Tensor) -> Carry:
        return encoded.carry

    def proposal(self, name: str | None = None, temperature: float = 1.0) -> NoLatents:
        return NoLatents()


Sentence = tuple[int, list[int]]
"""Index in the text, which seeds the noise, and word ids."""


def train_srnn(
    texts: Sequence[str],
    dev: Sequence[str],
    directory: Path,
    *,
    tokenizer: WordTokenizer | None = None,
    min_count: int = 2,
    already_cut: bool = False,
    size: SRNNSize | None = None,
    margin: MarginObjective | None = None,
    options: Options | None = None,
) -> SentenceRNN:
    """Train s and write the checkpoint.

    Args:
        texts: Training text; every line is a sentence.
        dev: Development text, for the learning rate and for stopping.
        directory: Folder of the checkpoint. An interrupted run there is resumed.
        tokenizer: Vocabulary of another model, to compare both; None trains one.
        min_count: Without ``tokenizer``: rarer words are unknown.
        already_cut: The texts' words are separated by white space by another program.
        size: Size of the model.
        margin: Training objective.
        options: Options of training.
    """
    size, margin = size or SRNNSize(), margin or MarginObjective()
    options = options or Options()
    if tokenizer is None:
        tokenizer = WordTokenizer.train(
            texts, min_count=min_count, already_cut=already_cut
        )
    words = [UNKNOWN, *range(len(SPECIAL_WORDS), tokenizer.vocab_size)]
    channel = NoiseChannel.preset(margin.distortion, words)
    torch.manual_seed(options.seed)
    model = SentenceRNN(SRNNConfig(vocab_size=tokenizer.vocab_size, **vars(size)))

    def loss(items: Sequence[Sentence]) -> Tensor:
        # Drawn from what an epoch's randomness follows from; development noise stays.
        replicate = int(torch.randint(1, 1 << 31, ())) if model.training else 0
        distorted = [
            channel.distort(ids, seed=options.seed, name=index, replicate=replicate)
            for index, ids in items
        ]
        clean = [ids for _, ids in items]
        if not model.training:
            return hinges(model, clean, distorted).sum()
        return objective(model, clean, distorted, margin.l2)

    train_checkpoint(
        model,
        {"s": Part(model, loss)},
        _sentences(texts, tokenizer),
        _sentences(dev, tokenizer),
        directory,
        tokenizer,
        options,
        size=lambda sentence: len(sentence[1]),
        about={**vars(size), **vars(margin)},
        spelled=(),
        unit="sentences",
    )
    return model


def objective(
    model: SentenceRNN,
    sentences: Sequence[Sequence[int]],
    distorted: Sequence[Sequence[int]],
    l2: float,
) -> Tensor:
    """Hinges of B sentences summed, plus B times l2 / 2 |theta|^2."""
    norm = sum(theta.square().sum() for theta in model.parameters())
    return hinges(model, sentences, distorted).sum() + len(sentences) * l2 / 2 * norm


def hinges(
    model: SentenceRNN,
    sentences: Sequence[Sequence[int]],
    distorted: Sequence[Sequence[int]],
) -> Tensor:
    """Hinges max(0, 1 - (s(x) - s(x~))) of B sentences, (B,)."""
    texts = [*sentences, *distorted]
    batch = TokenBatch.collate(texts, first=START, device=model.device)
    clean, noisy = model.log_joint(model.encode(batch), NO_LATENT)[:, 0].chunk(2)
    return (1 - (clean - noisy)).relu()


def _sentences(texts: Iterable[str], words: WordTokenizer) -> list[Sentence]:
    lines = (line for text in texts for line in text.split("\n"))
    ids = (words(line).ids for line in lines if line.strip())
    return list(enumerate(ids))
