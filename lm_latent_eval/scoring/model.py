"""``load`` and ``LatentModel``: a checkpoint as a Python object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from lm_latent_eval.estimators import Estimate
from lm_latent_eval.models.checkpoint import Checkpoint
from lm_latent_eval.options import at_least_0, whole
from lm_latent_eval.scoring.answer import Answer, MissedTextsError, noting_progress
from lm_latent_eval.scoring.generation import MOST_TOKENS, GenerationOptions
from lm_latent_eval.scoring.inside import surprisal
from lm_latent_eval.scoring.interface import TextModel, TextScorer
from lm_latent_eval.scoring.opening import open_model, scorer_of
from lm_latent_eval.scoring.options import (
    OpeningOptions,
    parse_device,
    parse_dtype,
)
from lm_latent_eval.scoring.texts import Query
from lm_latent_eval.text.words import checked_strings

if TYPE_CHECKING:
    from pandas import DataFrame

KEEPING = "`lm-latent-eval estimate --output` keeps each as soon as it is there"


@dataclass(frozen=True)
class LatentModel:
    """A latent language model with its vocabulary, ready to score strings.

    Example:
        >>> import lm_latent_eval
        >>> from lm_latent_eval.demo import CHECKPOINT
        >>> model = lm_latent_eval.load(CHECKPOINT)
        >>> [estimate] = model.log_likelihood(
        ...     ["It is known for its plums and its gardeners."], num_samples=50
        ... )
        >>> estimate.estimator, estimate.num_tokens, str(estimate.bound)
        ('dpf', 11, 'stochastic lower')
        >>> 0 < estimate.stderr < 0.5
        True
    """

    opened: Checkpoint | TextModel

    @property
    def checkpoint(self) -> Checkpoint:
        """Model, vocabulary and digest of a model that is scored by latents.

        Raises:
            ValueError: If it is a model that scores strings its own way.
        """
        if not isinstance(self.opened, Checkpoint):
            kind = type(self.opened).__name__
            raise ValueError(
                f"a {kind} scores strings its own way, without latents: use "
                "log_likelihood or generate"
            )
        return self.opened

    def log_likelihood(
        self,
        texts: Sequence[str],
        *,
        contexts: Sequence[str] | None = None,
        batch_size: int | str | None = "auto",
        progress: bool = False,
        **options: Any,
    ) -> list[Estimate]:
        """Estimate log p of texts, their ends included, or of continuations.

        Args:
            texts: N strings.
            contexts: N strings that they follow; then no end is counted, and the
                estimates are differences, which bound nothing. Texts after equal
                contexts share those contexts' draws, so they are compared fairly.
            batch_size: Texts scored together, or ``auto``: as many as memory allows.
                Moves no number but by rounding.
            progress: Show a progress bar.
            **options: ``estimator``, ``num_samples``, ``proposal``, ``seed`` and the
                others of ``ScoringOptions`` (docs/options.md), or those of a model
                that scores strings its own way.

        Returns:
            N estimates, in nats, in the order of the texts.

        Raises:
            MissedTextsError: If no latent was found of some texts; its ``answers`` have
                the estimates of the others.
            ValueError: If a setting is impossible or a text cannot be scored.
            TypeError: If ``texts`` or ``contexts`` is no list of strings.
        """
        texts = checked_strings(texts)
        if contexts is not None:
            contexts = checked_strings(contexts, "contexts")
            if len(contexts) != len(texts):
                raise ValueError(f"{len(texts)} texts, but {len(contexts)} contexts")
        scorer = self._scorer(options, batch_size=batch_size, quiet=not progress)
        if contexts is None:
            queries = [Query(n, f"text/{n}", text) for n, text in enumerate(texts)]
            answers = scorer.score_texts(queries)
        else:
            # A context is read once, under the name of the first text after it.
            first = {context: n for n, context in reversed([*enumerate(contexts)])}
            queries = [
                Query(n, f"text/{first[context]}", text, context)
                for n, (context, text) in enumerate(zip(contexts, texts, strict=True))
            ]
            answers = scorer.score_continuations(queries)
        by_index: dict[int, Answer] = {}
        with noting_progress(
            by_index, texts, f"texts were scored, and are lost: {KEEPING}"
        ):
            try:
                for answer in answers:
                    by_index[answer.index] = answer
            except MissedTextsError as err:
                raise err.leaving(by_index, len(texts)) from err.__cause__
        return [by_index[n].estimate for n in range(len(texts))]

    def surprisal(
        self,
        texts: Sequence[str],
        *,
        regions: bool = False,
        batch_size: int | str | None = "auto",
        progress: bool = False,
        **options: Any,
    ) -> DataFrame:
        """Return the surprisal of each word, with its Monte Carlo error, as a table.

        Args:
            texts: N strings, cut into words at their white space.
            regions: Whether ``|`` stands between regions that take the place of words.
            batch_size: As of ``log_likelihood``.
            progress: Show a progress bar.
            **options: Those of ``log_likelihood``: ``estimator``, ``num_samples`` and
                the like, or a model's own.

        Returns:
            A row a word and one an end (docs/surprisal.md), in nats and bits. Errors
            that cannot be told are ``NA``.

        Raises:
            MissedTextsError: If no latent was found of some texts.
            ValueError: If the model gives no probability of a word after those before,
                a setting is impossible or a text cannot be scored.
            TypeError: If ``texts`` is no list of strings.

        Example:
            >>> import lm_latent_eval
            >>> from lm_latent_eval.demo import CHECKPOINT
            >>> model = lm_latent_eval.load(CHECKPOINT)
            >>> table = model.surprisal(["It is known for its plums."], num_samples=50)
            >>> [*table.word]
            ['It', 'is', 'known', 'for', 'its', 'plums.', '</s>']
        """
        scorer = self._scorer(options, batch_size=batch_size, quiet=not progress)
        return surprisal.table(scorer, checked_strings(texts), regions=regions)

    def generate(
        self,
        contexts: Sequence[str],
        *,
        max_tokens: int = MOST_TOKENS,
        until: Sequence[str] = (),
        sampling_temperature: float = 1.0,
        **options: Any,
    ) -> list[str]:
        """Continue texts word by word.

        Args:
            contexts: What to continue; ``""`` begins a text.
            max_tokens: Write at most so many words.
            until: Strings to stop before.
            sampling_temperature: Of the words; 0 takes the most probable one.
            **options: Options of ``log_likelihood``: ``num_samples``, the latents that
                stand for the text so far, ``proposal`` and ``seed``.

        Returns:
            The continuations.

        Raises:
            ValueError: If a setting is impossible.
            TypeError: If ``contexts`` or ``until`` is no list of strings.
        """
        contexts = checked_strings(contexts, "contexts")
        how = GenerationOptions(
            tuple(checked_strings(until, "until")),
            whole("max_tokens", max_tokens, 1),
            at_least_0("sampling_temperature", sampling_temperature),
        )
        scorer = self._scorer(options, quiet=True)
        queries = [(Query(n, f"text/{n}", "", c), how) for n, c in enumerate(contexts)]
        texts = dict(scorer.generate(queries))
        return [texts[n] for n in range(len(contexts))]

    def _scorer(self, options: dict[str, Any], **how: Any) -> TextScorer:
        opening = OpeningOptions.names()
        if other := next((name for name in options if name in opening), None):
            raise ValueError(
                f"{other!r} is no argument of log_likelihood, which takes batch_size; "
                "load takes model, revision, device and dtype, and the others are of "
                "commands (docs/options.md)"
            )
        given = {name: value for name, value in options.items() if value is not None}
        return scorer_of(self.opened, given, **how)


def load(
    path: str | Path,
    *,
    model: str | None = None,
    revision: str | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | str | None = "auto",
) -> LatentModel:
    """Load a checkpoint directory, or a repository of the hub.

    Args:
        path: Where it is.
        model: Its name, with or without ``latent_``, or ``package.module:Class``. None:
            what the directory says.
        revision: Of the repository: a commit, tag or branch. None: the newest.
        device: Where to compute, such as ``cpu``, ``cuda``, ``cuda:1`` or ``mps``,
            which has no float64. None: a GPU if there is one.
        dtype: Floating type to compute in; ``auto`` is the checkpoint's own. One of
            ``auto``, ``float32``, ``float64``. Default: auto.

    Raises:
        ValueError: If there is no checkpoint, or it is incomplete or damaged.
    """
    return LatentModel(
        open_model(
            path,
            model=model,
            revision=revision,
            dtype=parse_dtype(dtype),
            device=parse_device(device),
        )
    )
