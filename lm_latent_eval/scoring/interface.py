"""The scoring interface: base classes of models and scorers of strings.

There are two ways to offer it. A model of the latent interface (``latent.py``) offers
p(x, z) and a proposal; ``Scorer`` scores it with every estimator. The other is for
models that score strings their own way, whatever is inside them: a ``TextModel`` opens
a directory, and its ``TextScorer`` answers queries with estimates. ``Scorer`` is one as
well, and lm-eval's backend needs nothing else.

Either kind of class joins under the ``model_type`` of its ``config.json`` as an entry
point of the group ``lm_latent_eval.models``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import torch

from lm_latent_eval.latent import Normalization
from lm_latent_eval.options import OptionTable
from lm_latent_eval.scoring.answer import Answer
from lm_latent_eval.scoring.generation import GenerationOptions
from lm_latent_eval.scoring.inside.latents import BestLatents
from lm_latent_eval.scoring.inside.regions import Regions, RegionScore
from lm_latent_eval.scoring.texts import Query


class TextScorer(ABC):
    """Answers queries about strings under one choice of settings."""

    normalization: Normalization
    """Total of the probabilities of all texts."""

    @property
    @abstractmethod
    def fingerprint(self) -> dict[str, Any]:
        """Everything that numbers depend on besides the query, as JSON.

        ``model`` and ``checkpoint``, a name and a digest of its files, are among it.
        """

    @property
    @abstractmethod
    def about(self) -> dict[str, Any]:
        """Description of model and numbers for results, as JSON.

        The entries under ``latent_eval`` are read by ``lm-latent-eval explain``.
        """

    @abstractmethod
    def score_texts(self, queries: Sequence[Query], /) -> Iterator[Answer]:
        """Yield log p of whole texts, in any order.

        Raises:
            MissedTextsError: When all others are answered, if texts have no number.
        """

    @abstractmethod
    def score_continuations(self, queries: Sequence[Query], /) -> Iterator[Answer]:
        """Yield log p of texts given their contexts, in any order."""

    def generate(
        self, queries: Sequence[tuple[Query, GenerationOptions]], /
    ) -> Iterator[tuple[int, str]]:
        """Yield index and continuation of every query's context. Optional."""
        raise ValueError(f"{self._name} scores texts and generates none")

    @property
    def unknown_words(self) -> str:
        """Charge of an unknown word, a policy of ``unk``; with ``score_regions``."""
        raise NotImplementedError

    def score_regions(
        self, texts: Sequence[Regions], /
    ) -> Iterator[tuple[int, list[RegionScore]]]:
        """Yield the index of each text and the scores of its regions. Optional.

        Each region has a probability after those before it.

        Raises:
            MissedTextsError: When all others are scored, if texts have no number.
            ValueError: If a text cannot be scored; the error names the query.
        """
        raise ValueError(
            f"{self._name} gives no probability of a word after the words before it. "
            "Take a model that reads from left to right, or the whole text's log p by "
            "`estimate`"
        )

    def best_latents(
        self, queries: Sequence[Query], top: int, /
    ) -> Iterator[BestLatents]:
        """Yield the best latents of each text, sentence by sentence. Optional.

        Raises:
            ValueError: If the model has none, or a text cannot be scored.
        """
        raise ValueError(f"{self._name} shows none of its latents")

    @property
    def _name(self) -> str:
        return f"latent_{self.fingerprint['model']}"


class TextModel(ABC):
    """A model that scores strings its own way: a class that opens directories."""

    @classmethod
    @abstractmethod
    def open_directory(
        cls, directory: Path, *, dtype: torch.dtype | None, device: torch.device
    ) -> Self:
        """Open a directory, ready to evaluate.

        Args:
            directory: Folder of ``config.json``.
            dtype: Floating type to compute in; None is that of the files.
            device: Where to compute.

        Raises:
            ValueError: If the directory is incomplete or of another kind of model.
        """

    @classmethod
    def options(cls) -> type[OptionTable] | None:
        """Return the table of the options that ``scorer`` takes; None: it has none.

        The documentation and ``lm-latent-eval estimate --option`` list it.
        """
        return None

    @abstractmethod
    def scorer(
        self,
        options: Mapping[str, Any],
        /,
        *,
        batch_size: int | str | None,
        max_batch_size: int | str | None,
        quiet: bool,
    ) -> TextScorer:
        """Choose settings.

        Args:
            options: Strings or numbers by name, as a command line has them.
            batch_size: Texts scored together; None and ``auto`` are as many as memory
                allows.
            max_batch_size: The most texts that ``auto`` takes.
            quiet: Show no progress.

        Raises:
            ValueError: If there is no such option, or a value is impossible.
        """
