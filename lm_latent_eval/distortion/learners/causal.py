"""A Hugging Face causal language model as a learner: its log p is exact."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import torch

from lm_latent_eval.distortion.languages.causal import CausalLanguage
from lm_latent_eval.distortion.languages.corpus import Corpus
from lm_latent_eval.distortion.learners import (
    lstm as lstm,  # so that its directories load
)
from lm_latent_eval.distortion.learners.learner import ScoredSequences
from lm_latent_eval.distortion.learners.token_ids import TokenIds
from lm_latent_eval.estimators import Bound
from lm_latent_eval.networks.network import check_positions


@dataclass(frozen=True)
class CausalLearner:
    """Scores sequences by the model's own predictions.

    Attributes:
        language: What the model generates at temperature 1.
    """

    language: CausalLanguage
    bound: ClassVar[Bound] = Bound.EXACT

    def __post_init__(self) -> None:
        """Refuse predictions that are not the model's own.

        Raises:
            ValueError: If they are tempered.
        """
        if self.language.temperature != 1:
            raise ValueError(
                f"temperature={self.language.temperature}: a learner has 1, which it "
                "was trained with"
            )

    @classmethod
    def load(
        cls,
        path: str | Path,
        corpus: Corpus,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
        batch_size: int = 64,
    ) -> Self:
        """Load a model for the sequences of a corpus, whose begin and end it takes.

        Args:
            path: A directory, or a repository of the hub.
            corpus: What is to be scored.
            device: Where to compute; None is a GPU if there is one.
            dtype: Of the model.
            batch_size: Sequences computed together.

        Raises:
            ValueError: If there is no such model, it has another vocabulary than the
                corpus, or too few positions for it.
        """
        vocabulary = TokenIds.of(corpus)
        language = CausalLanguage.load(
            path,
            begin_id=vocabulary.begin_id,
            end_id=vocabulary.end_id,
            device=device,
            dtype=dtype,
            batch_size=batch_size,
        )
        vocabulary.check_tokens(str(path), language.vocab_size, language.tokenizer)
        check_positions(language.model, str(path), corpus.max_length)
        return cls(language)

    def score(
        self, indices: Sequence[int], sequences: Sequence[Sequence[int]]
    ) -> ScoredSequences:
        """Score sequences; see :meth:`Learner.score`. Their numbers play no part."""
        log_p = self.language.log_p(sequences)
        return ScoredSequences(log_p, torch.zeros_like(log_p))

    def settings(self) -> dict[str, Any]:
        """Return a digest of the weights, and begin and end."""
        return self.language.settings()
