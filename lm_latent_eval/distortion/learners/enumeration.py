r"""Exact log p of an RNNG: the sum over every binary tree of a short sentence.

.. math:: \log p(x) = \log \sum_z p(x, z), \qquad n \text{ words have }
          \frac{1}{n} \binom{2n - 2}{n - 1} \text{ trees}

A beam that holds every tree *is* this sum: the trees of a beam are distinct, and of n
words the k best are all of them once k is their number. So errors without an
estimator's part stand beside estimated ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import torch

from lm_latent_eval.distortion.languages.corpus import Corpus
from lm_latent_eval.distortion.learners.latent import LatentLearner
from lm_latent_eval.distortion.learners.lexicon import check_whole, words_of
from lm_latent_eval.estimators import Bound
from lm_latent_eval.latent import Enumerable
from lm_latent_eval.models.checkpoint import Checkpoint, load_checkpoint
from lm_latent_eval.scoring.options import ScoringOptions, parse_device, parse_dtype
from lm_latent_eval.scoring.sequence_scorer import LogLikelihoods


class EveryTree:
    """Scores sequences of a language of words with an RNNG, exactly."""

    bound = Bound.EXACT

    def __init__(
        self,
        checkpoint: Checkpoint,
        words: Mapping[int, str],
        end_id: int,
        *,
        max_words: int = 10,
        batch_size: int | None = None,
    ) -> None:
        """Match the words of language and model.

        Args:
            checkpoint: An RNNG and its vocabulary.
            words: Token of the language -> word.
            end_id: What its sequences end with.
            max_words: Of a sentence: a word more takes about four times as long.
            batch_size: Texts scored together; None is as many as memory allows.

        Raises:
            ValueError: If the model is no RNNG, or as :class:`LatentLearner`.
        """
        model = checkpoint.model
        if not isinstance(model, Enumerable):
            raise ValueError(
                f"{checkpoint.directory} holds a {checkpoint.name} model, whose "
                "latents cannot be listed: estimate its likelihoods"
            )
        if max_words < 1:
            raise ValueError(f"max_words={max_words}: expected at least 1")
        self._max_words, self._model = max_words, model
        # Sentences of n words with a beam of as many trees as they have.
        self._by_length = {}
        for n in range(max_words + 1):
            width = max(1, model.num_latents(n))
            how = ScoringOptions(estimator="beam", num_samples=width)
            self._by_length[n] = LatentLearner(
                checkpoint, words, end_id, how, batch_size=batch_size
            )

    @classmethod
    def load(
        cls,
        path: str | Path,
        corpus: Corpus,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | str | None = None,
        **options: Any,
    ) -> Self:
        """Load a checkpoint for the sequences of a corpus.

        Args:
            path: A checkpoint directory.
            corpus: Names the words, and must have whole sequences.
            device: Where to compute; None is a GPU if there is one.
            dtype: ``float32`` or ``float64``; None is that of the file.
            options: As :class:`EveryTree`.

        Raises:
            ValueError: If corpus and checkpoint do not fit together.
        """
        words = words_of(corpus)
        check_whole(corpus)
        checkpoint = load_checkpoint(
            path, device=parse_device(device), dtype=parse_dtype(dtype)
        )
        return cls(checkpoint, words, corpus.end_id, **options)

    def score(
        self,
        sequences: Sequence[Sequence[int]],
        indices: Sequence[int] | None = None,
        /,
    ) -> LogLikelihoods:
        """Sum over the trees of whole sequences.

        Raises:
            ValueError: If a sequence has more words than the maximum, or as
                :meth:`LatentLearner.score`.
        """
        indices = range(len(sequences)) if indices is None else indices
        lengths = [max(0, len(ids) - 1) for ids in sequences]
        self._check_lengths(indices, lengths)
        log_p = torch.empty(len(sequences), dtype=torch.float64)
        for n in sorted({*lengths}):
            places = [place for place, length in enumerate(lengths) if length == n]
            scored = self._by_length[n].score(
                [sequences[place] for place in places],
                [indices[place] for place in places],
            )
            log_p[places] = scored.log_p
        return LogLikelihoods.exact(log_p)

    def settings(self) -> dict[str, Any]:
        """Return what its numbers depend on, for a JSON file."""
        about = self._by_length[0].settings()
        kept = ("model", "digest", "mass", "dtype")
        return {"kind": "every tree", **{name: about[name] for name in kept}}

    def _check_lengths(self, indices: Sequence[int], lengths: list[int]) -> None:
        long = [
            (index, n)
            for index, n in zip(indices, lengths, strict=True)
            if n > self._max_words
        ]
        if long:
            index, n = long[0]
            raise ValueError(
                f"{len(long)} of {len(lengths)} sequences have more than "
                f"{self._max_words} words: number {index} has {n}, and "
                f"{self._model.num_latents(n)} trees. Leave such sequences out, or "
                "give a larger max_words"
            )
