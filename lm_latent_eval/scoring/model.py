"""A checkpoint as a Python object that answers questions about strings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lm_latent_eval.arguments import at_least_0, whole
from lm_latent_eval.estimators import Estimate
from lm_latent_eval.models.checkpoint import Checkpoint
from lm_latent_eval.scoring.answer import telling
from lm_latent_eval.scoring.decoding import MOST_TOKENS, GenerationOptions
from lm_latent_eval.scoring.interface import (
    TextModel,
    TextScorer,
    open_model,
    scorer_of,
)
from lm_latent_eval.scoring.options import ScoringOptions, parse_device, parse_dtype
from lm_latent_eval.scoring.texts import Query

KEEPING = "`lm-latent-eval estimate --output` keeps each as soon as it is there"


@dataclass(frozen=True)
class LatentModel:
    """A latent language model with its vocabulary, ready to score strings.

    Example:
        >>> import lm_latent_eval
        >>> from lm_latent_eval.demo import CHECKPOINT
        >>> model = lm_latent_eval.load(CHECKPOINT)
        >>> [estimate] = model.log_likelihood(
        ...     ["It is known for its plums and its gardeners."],
        ...     estimator="mixed", num_samples=50,
        ... )
        >>> estimate.num_samples, estimate.num_tokens, str(estimate.bound)
        (50, 11, 'stochastic lower')
        >>> 0 < estimate.stderr < 0.5 and 1 <= estimate.effective_sample_size <= 50
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
            raise ValueError(f"a {kind} scores strings its own way, without latents")
        return self.opened

    def log_likelihood(
        self,
        texts: Sequence[str],
        *,
        contexts: Sequence[str] | None = None,
        num_samples: int = 100,
        estimator: str | None = None,
        proposal: str | None = None,
        temperature: float = 1.0,
        seed: int = 0,
        unk: str | None = None,
        target_stderr: float | None = None,
        max_samples: int = 100_000,
        bounds: str = "lower",
        batch_size: int | str | None = None,
        progress: bool = False,
        **more: Any,
    ) -> list[Estimate]:
        """Estimate log p of texts, their ends included, or of continuations.

        Args:
            texts: N strings.
            contexts: N strings that they follow; then no end is counted, and the
                estimates are differences, which bound nothing.
            num_samples: K, latents of a text that are found or drawn; ``auto`` takes up
                to 4K.
            estimator: ``auto``, ``mixed``, ``is``, ``beam``, ``smc`` or ``exact``; None
                is the model's own.
            proposal: What latents are drawn from; None reads most of the text.
            temperature: Divides the proposal's scores.
            seed: Of the random numbers, which follow from it and a text's index.
            unk: ``spelled``, ``penalized`` or ``closed``.
            target_stderr: Choose K a text for this Monte Carlo error, nats.
            max_samples: The most that ``target_stderr`` may choose.
            bounds: ``lower``, or ``both`` for an upper bound as well.
            batch_size: Texts scored together, which moves no number; None or ``auto``:
                as many as memory allows.
            progress: Show a progress bar.
            **more: Options of a model that scores strings its own way.

        Returns:
            N estimates, in nats, in the order of the texts.

        Raises:
            ValueError: If a setting is impossible or a text cannot be scored.
            TypeError: If ``texts`` is one string.
        """
        if isinstance(texts, str) or isinstance(contexts, str):
            raise TypeError("expected a list of strings, not one string")
        if contexts is not None and target_stderr is not None:
            raise ValueError("target_stderr is for whole texts: give num_samples")
        if contexts is not None and len(contexts) != len(texts):
            raise ValueError(f"{len(texts)} texts, but {len(contexts)} contexts")
        options = {
            "num_samples": num_samples,
            "estimator": estimator,
            "proposal": proposal,
            "temperature": temperature,
            "seed": seed,
            "unk": unk,
            "target_stderr": target_stderr,
            "max_samples": max_samples,
            "bounds": bounds,
            **more,
        }
        scorer = self._scorer(options, batch_size=batch_size, quiet=not progress)
        if contexts is None:
            queries = [Query(n, f"text/{n}", text) for n, text in enumerate(texts)]
            answers = scorer.score_texts(queries)
        else:
            pairs = enumerate(zip(contexts, texts, strict=True))
            queries = [
                Query(n, f"text/{n}", text, context) for n, (context, text) in pairs
            ]
            answers = scorer.score_continuations(queries)
        found: dict[int, Estimate] = {}
        with telling(found, texts, f"texts were scored, and are lost: {KEEPING}"):
            for answer in answers:
                found[answer.index] = answer.estimate
        return [found[n] for n in range(len(texts))]

    def generate(
        self,
        contexts: Sequence[str],
        *,
        max_tokens: int = MOST_TOKENS,
        until: Sequence[str] = (),
        sampling_temperature: float = 1.0,
        num_samples: int = 100,
        proposal: str | None = None,
        seed: int = 0,
    ) -> list[str]:
        """Continue texts word by word.

        Args:
            contexts: What to continue; ``""`` begins a text.
            max_tokens: Write at most so many words.
            until: Strings to stop before.
            sampling_temperature: Of the words; 0 takes the most probable one.
            num_samples: Latents that stand for the text so far.
            proposal: What they are drawn from.
            seed: Of the random numbers.

        Returns:
            The continuations.

        Raises:
            ValueError: If a setting is impossible.
            TypeError: If ``contexts`` or ``until`` is one string.
        """
        if isinstance(contexts, str) or isinstance(until, str):
            raise TypeError("expected a list of strings, not one string")
        options = {"num_samples": num_samples, "proposal": proposal, "seed": seed}
        how = GenerationOptions(
            tuple(until),
            whole("max_tokens", max_tokens, 1),
            at_least_0("sampling_temperature", sampling_temperature),
        )
        scorer = self._scorer(options, quiet=True)
        queries = [(Query(n, f"text/{n}", "", c), how) for n, c in enumerate(contexts)]
        texts = dict(scorer.generate(queries))
        return [texts[n] for n in range(len(contexts))]

    def _scorer(self, options: dict[str, Any], **how: Any) -> TextScorer:
        """Tell the model of the options that were given, not of our defaults."""
        given = {
            name: value
            for name, value in options.items()
            if value != getattr(ScoringOptions, name, None)
        }
        return scorer_of(self.opened, given, **how)


def load(
    path: str | Path,
    *,
    model: str | None = None,
    revision: str | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | str | None = None,
) -> LatentModel:
    """Load a checkpoint directory, or a repository of the hub.

    Args:
        path: Where it is.
        model: The model's name or ``package.module:Class``; None is what is there.
        revision: Of the repository: a commit, tag or branch.
        device: Where to compute; None is a GPU if there is one.
        dtype: ``float32`` or ``float64``; None is that of the file.

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
