"""Errors of ``latent_tokens`` on trained networks, against exact sums: docs/tokens.md.

    python -m lm_latent_eval.demo --out corpus
    python benchmarks/tokens_errors.py --data corpus/train.jsonl \
        --test corpus/test.jsonl

trains six GPT-2s in a few minutes: byte-level BPE, Unigram and WordPiece tokenizers,
each with a network that has read texts as their usual tokens (peaked), and one that has
read random tokenizations of them (flat). Test texts are beginnings of sentences, in
words of small letters, with at most ``--most`` beginnings of tokenizations.
"""

from __future__ import annotations

import argparse
import math
import platform
import random
import re
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from causal_lm import END, batches, loss
from scipy.special import stdtrit
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from lm_latent_eval.inference.discrete import DEGREES
from lm_latent_eval.networks.network import Network
from lm_latent_eval.scoring.answer import Answer
from lm_latent_eval.scoring.texts import Query
from lm_latent_eval.text.corpora import read_texts
from lm_latent_eval.wrappers.tokens.lattice import SegmentationLattice
from lm_latent_eval.wrappers.tokens.model import SegmentedLM
from lm_latent_eval.wrappers.tokens.vocabulary import ByteVocabulary

VOCABULARY, WIDTH, LAYERS, EPOCHS, BATCH, RATE = 400, 48, 2, 2, 16, 3e-3
REACH = float(stdtrit(DEGREES, 0.975))
"""Half-width of a 95 % interval over its standard error."""


def byte_level(texts: list[str]) -> Tokenizer:
    built = Tokenizer(models.BPE())
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    built.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY + len(alphabet),
        special_tokens=[END],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    built.train_from_iterator(texts, trainer)
    return built


def unigram(texts: list[str]) -> Tokenizer:
    built = Tokenizer(models.Unigram())
    built.pre_tokenizer = pre_tokenizers.Metaspace()
    built.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=VOCABULARY, special_tokens=[END], show_progress=False
    )
    built.train_from_iterator(texts, trainer)
    return built


def word_piece(texts: list[str]) -> Tokenizer:
    built = Tokenizer(models.WordPiece(unk_token=END))
    built.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    built.decoder = decoders.WordPiece(cleanup=False)
    trainer = trainers.WordPieceTrainer(
        vocab_size=VOCABULARY, special_tokens=[END], show_progress=False
    )
    built.train_from_iterator(texts, trainer)
    return built


ROUNDING = 1e-4
"""Nats that float32 may move an exact sum by."""
KINDS: dict[str, Callable[[list[str]], Tokenizer]] = {
    "byte-level BPE": byte_level,
    "Unigram": unigram,
    "WordPiece": word_piece,
}


def trained(built: Tokenizer, texts: list[str], *, flat: bool) -> SegmentedLM:
    """Train a network on the usual, or on random, tokenizations."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=built, eos_token=END)
    vocabulary = ByteVocabulary.of(tokenizer, len(tokenizer))
    dice, end = random.Random(0), tokenizer.eos_token_id

    def read(text: str) -> list[int]:
        tokens = tokenizer.encode(text)
        if flat:
            lattice = SegmentationLattice(vocabulary, text.encode())
            tokens, node = [], lattice.start
            while not lattice.ends(node):
                token, node = dice.choice(lattice.onward(node))
                tokens.append(token)
        return [end, *tokens, end]

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_embd=WIDTH,
        n_layer=LAYERS,
        n_head=4,
        n_positions=256,
        bos_token_id=end,
        eos_token_id=end,
    )
    network = GPT2LMHeadModel(config)
    optimizer = torch.optim.AdamW(network.parameters(), lr=RATE)
    for _ in range(EPOCHS):
        for batch in batches([read(text)[:128] for text in texts], BATCH):
            total, tokens = loss(network, batch)
            optimizer.zero_grad()
            (total / tokens).backward()
            optimizer.step()
    return SegmentedLM(Network.of(network.eval(), tokenizer))


def words(text: str) -> str:
    """Return the first sentence in small letters and spaces."""
    return " ".join(re.findall("[a-z]+", text.split(".")[0].lower()))


def beginning(model: SegmentedLM, text: str, most: int) -> str:
    """Return the first words of a text, so many as have an exact sum."""
    parts = text.split()
    while len(parts) > 1:
        whole = " ".join(parts).encode()
        if SegmentationLattice(model.vocabulary, whole).num_prefixes <= most:
            break
        parts.pop()
    return " ".join(parts)


class Errors(NamedTuple):
    """What is printed and true of a text, nats."""

    gap: float
    """Log p less that of the usual tokens."""
    half_width: float
    """Of the 95 % interval; infinite where no error is printed."""
    error: float
    """Of log p, without its sign."""


def measured(
    model: SegmentedLM, texts: list[str], samples: int, most: int
) -> list[Errors]:
    queries = [Query(n, f"text/{n}", text) for n, text in enumerate(texts)]

    def answers(**options: object) -> list[Answer]:
        scored = model.scorer(options, quiet=True).score_texts(queries)
        return sorted(scored, key=lambda answer: answer.index)

    exact = answers(estimator="exact", max_segmentations=most)
    found = []
    for answer, truth in zip(answers(num_samples=samples), exact, strict=True):
        log_p, stderr = truth.estimate.log_evidence, answer.estimate.stderr
        found.append(
            Errors(
                log_p - (truth.canonical or 0.0),
                math.inf if stderr is None else REACH * stderr,
                abs(answer.estimate.log_evidence - log_p),
            )
        )
    return found


def cells(found: list[Errors]) -> str:
    gaps, halves, errors = zip(*found, strict=True)
    refuted = sum(one.error > one.half_width + ROUNDING for one in found)
    printed = sum(map(math.isfinite, halves))
    medians = [statistics.median(column) for column in (gaps, halves, errors)]
    gap, half, error = (f"{median:.5f}" for median in medians)
    return f"{len(found)} | {printed} | {refuted} | {gap} | {half} | {error}"


def main() -> None:
    """Train the networks and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--test", type=Path, required=True)
    parser.add_argument("--samples", type=int, nargs="+", default=[32, 100])
    parser.add_argument("--texts", type=int, default=20)
    parser.add_argument("--most", type=int, default=3000)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{platform.machine()}, torch {torch.__version__}\n")
    texts, test = ([*map(words, read_texts(f))] for f in (args.data, args.test))
    print("| network | K | texts | printed | refuted | gap | half-width | error |")
    print("|---|---|---|---|---|---|---|---|")
    every: dict[int, list[Errors]] = {samples: [] for samples in args.samples}
    for name, build in KINDS.items():
        for flat in (False, True):
            model = trained(build(texts), texts, flat=flat)
            short = [beginning(model, one, args.most) for one in test[: args.texts]]
            kind = f"{name}, {'flat' if flat else 'peaked'}"
            for samples in args.samples:
                found = measured(model, short, samples, args.most)
                every[samples] += found
                print(f"| {kind} | {samples} | {cells(found)} |", flush=True)
    for samples, found in every.items():
        print(f"| all | {samples} | {cells(found)} |")


if __name__ == "__main__":
    main()
