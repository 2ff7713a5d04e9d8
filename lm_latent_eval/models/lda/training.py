"""Topic-word tables as checkpoints, and their training by tomotopy's Gibbs sampler."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from lm_latent_eval.models.checkpoint import save
from lm_latent_eval.models.lda.modeling import LDA, LDAConfig
from lm_latent_eval.models.lda.words import lowered
from lm_latent_eval.registry import require
from lm_latent_eval.text.words import SPECIAL_WORDS, WordTokenizer
from lm_latent_eval.training.options import LDAFit


@dataclass(frozen=True)
class TopicTables:
    """N topics over V words."""

    words: Sequence[str]
    """The V words, in the order of the columns."""
    phi: NDArray[np.float64]
    """Positive p(word | topic) up to a factor a topic, (N, V)."""
    alpha: NDArray[np.float64]
    """Parameters of the Dirichlet distribution of proportions, (N,) or one for all."""
    lowercase: bool = False
    """Whether texts are lower-cased before their words are looked up."""
    already_cut: bool = False
    """Whether another program has separated the words by white space."""

    def write(self, directory: Path) -> LDA:
        """Write the checkpoint, in float64.

        Raises:
            ValueError: If the tables describe no topic model.
        """
        phi = np.asarray(self.phi, dtype=np.float64)
        if phi.ndim != 2 or phi.shape[1] != len(self.words) or phi.size == 0:
            raise ValueError(
                f"topics are a table of shape {phi.shape} for {len(self.words)} words"
            )
        alpha = np.broadcast_to(np.asarray(self.alpha, np.float64), len(phi))
        for name, table in (("topics", phi), ("alpha", alpha)):
            if not (np.isfinite(table).all() and (table > 0).all()):
                raise ValueError(
                    f"{name} hold a number that is not positive: every word needs some "
                    "probability under every topic (eta above 0)"
                )
        tokenizer = WordTokenizer.of_words(self.words, already_cut=self.already_cut)
        model: LDA = LDA(
            LDAConfig(
                vocab_size=tokenizer.vocab_size,
                num_topics=len(phi),
                lowercase=self.lowercase,
            )
        )
        model.double().requires_grad_(False)
        model.eval()  # type: ignore[no-untyped-call]
        first = len(SPECIAL_WORDS)
        log_phi = np.log(phi) - np.log(phi.sum(1, keepdims=True))
        model.log_topics[:, first:] = torch.from_numpy(log_phi)
        model.log_alpha.copy_(torch.from_numpy(np.log(alpha)))
        save(model, tokenizer, directory, model.state_dict())
        return model


LINES = 10
"""Largest number of lines that a training prints."""


def train_lda(
    texts: Sequence[str],
    directory: Path,
    *,
    min_count: int = 2,
    lowercase: bool = False,
    fit: LDAFit | None = None,
) -> LDA:
    """Fit topics and write the checkpoint.

    Args:
        texts: Training text, a document each.
        directory: Folder of the checkpoint.
        min_count: Rarer words are left out.
        lowercase: Write every word in lower case.
        fit: Number of topics, and options of the sampler.

    Raises:
        ModuleNotFoundError: If tomotopy is not installed.
        ValueError: If no word is left.
    """
    tomotopy, fit = require("tomotopy", extra="topics"), fit or LDAFit()
    texts = [lowered(text) if lowercase else text for text in texts]
    tokenizer = WordTokenizer.train(texts, min_count=min_count)
    vocabulary = set(tokenizer.vocabulary)
    if not vocabulary:
        raise ValueError(
            f"no word occurs {min_count} times: give more text, or lower min_count"
        )
    model = tomotopy.LDAModel(
        k=fit.num_topics, alpha=fit.alpha, eta=fit.eta, seed=fit.seed
    )
    for text in texts:
        if words := [word for word in tokenizer.cut(text) if word in vocabulary]:
            model.add_doc(words)
    _sweep(model, fit.iterations)
    return tables_of(model, lowercase=lowercase).write(directory)


def _sweep(model: Any, iterations: int) -> None:
    print(f"training lda: {len(model.docs):,} texts", file=sys.stderr)
    bar = tqdm(total=iterations, desc="sweeps", unit="sweep", leave=False, disable=None)
    shown = -(-iterations // LINES)
    with bar:
        for begun in range(0, iterations, shown):
            sweeps = min(shown, iterations - begun)
            # On one core the same seed gives the same topics, in any chunks.
            model.train(sweeps, workers=1)
            bar.update(sweeps)
            print(
                f"sweep {begun + sweeps} of {iterations}: "
                f"{-model.ll_per_word:.4f} nats a word of the training text",
                file=sys.stderr,
            )


def tables_of(model: Any, *, lowercase: bool) -> TopicTables:
    return TopicTables(
        words=list(model.used_vocabs),
        phi=np.stack(
            [
                np.asarray(model.get_topic_word_dist(k), np.float64)
                for k in range(model.k)
            ]
        ),
        alpha=np.asarray(model.alpha, np.float64),
        lowercase=lowercase,
    )
