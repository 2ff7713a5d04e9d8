"""Topic-word tables, and checkpoints written from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from lm_latent_eval.models.checkpoint import save
from lm_latent_eval.models.lda.configuration import LDAConfig
from lm_latent_eval.models.lda.modeling import LDA
from lm_latent_eval.text.words import SPECIAL_WORDS, WordTokenizer


@dataclass(frozen=True)
class TopicTables:
    """N topics over V words."""

    words: Sequence[str]
    """V, in the order of the columns."""
    phi: NDArray[np.float64]
    """p(word | topic) up to a number a topic, positive, (N, V)."""
    alpha: NDArray[np.float64]
    """Parameters of the Dirichlet distribution of proportions, (N,) or one for all."""
    lowercase: bool = False
    """Whether texts are written in lower case before their words are looked up."""
    already_cut: bool = False
    """Whether words stand between white space, cut by another program."""

    def write(self, directory: Path) -> LDA:
        """Write the checkpoint, in float64.

        Raises:
            ValueError: If the tables are of no topic model.
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
