"""Max-margin training of a sentence-level RNN against distorted copies.

    sum over sentences x of max(0, 1 - (s(x) - s(x~))) + l2 / 2 |theta|^2

x~ is x after the noise channel of the paper (``distortion/noise.py``), new in every
epoch; that of the development text stays.

Symbols: x~ -> ``distorted``; theta -> every parameter.
Departures: the paper's equation 17 asks for the largest distance between a sentence and
its distorted copy and cites two papers that use a hinge; a distance without one would
grow without end, so the hinge it is, with a margin of 1, which sets the scale of the
scores. Adam in the place of gradient descent at a rate of 0.1.
Source: Arora and Rangarajan (2016), section 4, equation 17, and section 5.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from lm_latent_eval.latent import NO_LATENT
from lm_latent_eval.models.learning import train_checkpoint
from lm_latent_eval.models.srnn.modeling import SentenceRNN, SRNNConfig
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.noise import NoiseChannel
from lm_latent_eval.text.words import SPECIAL_WORDS, START, UNKNOWN, WordTokenizer
from lm_latent_eval.training.options import MarginObjective, Options, SRNNSize
from lm_latent_eval.training.supervised import Part

Sentence = tuple[int, list[int]]
"""Its number in the text, which its noise follows from, and its words."""


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
        directory: Where the checkpoint goes. An interrupted run there is resumed.
        tokenizer: A vocabulary to take over, so that two models compare.
        min_count: Without one: rarer words are unknown.
        already_cut: The texts' words stand between white space, cut by another program.
        size: How large the model is.
        margin: What it learns.
        options: How to train.
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
            channel.distort(ids, seed=options.seed, name=number, replicate=replicate)
            for number, ids in items
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
    """Return the hinges of B sentences, and B times l2 / 2 |theta|^2."""
    norm = sum(theta.square().sum() for theta in model.parameters())
    return hinges(model, sentences, distorted).sum() + len(sentences) * l2 / 2 * norm


def hinges(
    model: SentenceRNN,
    sentences: Sequence[Sequence[int]],
    distorted: Sequence[Sequence[int]],
) -> Tensor:
    """Return max(0, 1 - (s(x) - s(x~))) of B sentences, (B,)."""
    texts = [*sentences, *distorted]
    batch = TokenBatch.collate(texts, first=START, device=model.device)
    clean, noisy = model.log_joint(model.encode(batch), NO_LATENT)[:, 0].chunk(2)
    return (1 - (clean - noisy)).relu()


def _sentences(texts: Iterable[str], words: WordTokenizer) -> list[Sentence]:
    lines = (line for text in texts for line in text.split("\n"))
    ids = (words(line).ids for line in lines if line.strip())
    return list(enumerate(ids))
