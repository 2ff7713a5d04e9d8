"""Log-scores of texts from whatever can give them, and of their distorted copies.

A scorer is a function from texts to log-scores in nats, normalised or not; a Hugging
Face causal LM; or one of our latent LMs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch.nn.functional import cross_entropy
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from lm_latent_eval.distortion.noise import NoiseChannel
from lm_latent_eval.distortion.texts import TextNoise
from lm_latent_eval.distortion.units import WhiteSpaceWords
from lm_latent_eval.distortion.vocabulary import distinct_words
from lm_latent_eval.estimators import Estimate
from lm_latent_eval.models import name_of
from lm_latent_eval.scoring.model import LatentModel, load

TextScorer: TypeAlias = Callable[[list[str]], Sequence[float | Estimate]]
"""Texts -> a log-score of each, nats, or an estimate that knows its error."""


def text_scorer(
    scorer: TextScorer | LatentModel | PreTrainedModel | str | Path,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    **settings: Any,
) -> TextScorer:
    """Make a function that scores texts out of any model.

    Args:
        scorer: Such a function; a causal LM of ``transformers``, or its directory or
            name on the hub; a latent LM of ours, or its directory.
        tokenizer: Of a causal LM; by default the one saved beside it.
        **settings: For a latent LM, as :meth:`LatentModel.log_likelihood` takes them;
            for a causal LM ``batch_size``.

    Raises:
        TypeError: If it is none of these, or a setting is not one of its own.
        ValueError: If there is no model at that path.
    """
    if isinstance(scorer, str | Path):
        if is_latent(scorer):
            scorer = load(scorer)
        else:
            tokenizer = tokenizer or AutoTokenizer.from_pretrained(scorer)
            scorer = AutoModelForCausalLM.from_pretrained(scorer)
    if isinstance(scorer, LatentModel):
        latent = scorer
        return lambda texts: latent.log_likelihood(texts, **settings)
    if isinstance(scorer, PreTrainedModel):  # callable too, but not on strings
        tokenizer = tokenizer or AutoTokenizer.from_pretrained(scorer.name_or_path)
        return CausalLMScorer(scorer, tokenizer, **settings)
    if not callable(scorer):
        raise TypeError(
            "scorer must be a function from texts to log-scores, a causal LM of "
            f"transformers, a latent LM, or the path of either; got {scorer!r}"
        )
    if settings:
        raise TypeError(f"a function takes no settings; got {', '.join(settings)}")
    return scorer


@dataclass(frozen=True)
class CausalLMScorer:
    """Scores texts by a causal LM of ``transformers``.

    log p(text | start), where the start is the tokenizer's BOS token or else its EOS
    token, as in lm-eval's rolling log-likelihood; no end is charged.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    batch_size: int = 16

    def __call__(self, texts: list[str]) -> list[float]:
        """Return the log-likelihood of each text, nats.

        Raises:
            ValueError: If dropout is on, the tokenizer has no start, or a text is
                longer than the model's window.
        """
        if self.model.training:
            raise ValueError("the model is in training mode: call its eval() first")
        ids = [[self._start, *self._encode(text)] for text in texts]
        window = getattr(self.model.config, "max_position_embeddings", None)
        for index, each in enumerate(ids):
            if window is not None and len(each) > window:
                raise ValueError(
                    f"texts[{index}] has {len(each) - 1} tokens and a start; the "
                    f"model's window is {window}"
                )
        step = self.batch_size
        return [
            log_p
            for first in range(0, len(ids), step)
            for log_p in self._log_likelihood(ids[first : first + step])
        ]

    @property
    def _start(self) -> int:
        for index in (self.tokenizer.bos_token_id, self.tokenizer.eos_token_id):
            if isinstance(index, int):
                return index
        raise ValueError("the tokenizer has neither a BOS nor an EOS token to start by")

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return ids

    @torch.inference_mode()
    def _log_likelihood(self, ids: list[list[int]]) -> list[float]:
        """Score a batch, padded on the right, where a causal model does not look."""
        longest = max(map(len, ids))
        padded = torch.tensor([row + [0] * (longest - len(row)) for row in ids])
        lengths = torch.tensor([len(row) for row in ids])
        inside = torch.arange(longest) < lengths[:, None]
        device = self.model.device
        logits = self.model(
            input_ids=padded.to(device), attention_mask=inside.long().to(device)
        ).logits
        target = padded.masked_fill(~inside, -100)[:, 1:].to(device)
        nats = cross_entropy(
            logits[:, :-1].mT.float(), target, ignore_index=-100, reduction="none"
        )
        found: list[float] = (-nats.double().sum(-1)).tolist()
        return found


@dataclass(frozen=True)
class ScoredCopies:
    """Log-scores of texts and of their copies from a noise channel."""

    log_scores: list[float]
    """Nats, a text."""
    stderrs: list[float]
    """Their Monte Carlo errors, 0 of scores that are just numbers; ``inf`` where that
    of a text, or of one of its copies, is not known."""
    distorted: dict[float, list[list[float]]]
    """Level -> replicate -> nats, a text."""
    num_words: list[int]
    """Between white space, a text; the same in its copies."""
    vocabulary_size: int
    """Of what substitutes were drawn from."""


def score_copies(
    texts: Sequence[str],
    scorer: TextScorer,
    *,
    levels: Sequence[float],
    replicates: int,
    vocabulary: Sequence[str] | None = None,
    seed: int = 0,
) -> ScoredCopies:
    """Score texts and, in the same call, their distorted copies.

    Args:
        texts: Sentences; what is between white space counts as a word.
        scorer: Called once, with all of it.
        levels: Of distortion, each from 0 to 0.5: so many words are substituted, and as
            many transposed.
        replicates: Distorted copies a text and level.
        vocabulary: What substitutes are drawn from; None is the words of ``texts``.
        seed: Of the noise.

    Raises:
        TypeError: If ``texts`` is one string.
        ValueError: If there is no text, level or replicate, a text has no word, a level
            is impossible, or the scorer does not return one finite number a text.

    Example:
        >>> scored = score_copies(
        ...     ["to be or not"], lambda texts: [-1.0 * len(t) for t in texts],
        ...     levels=[0.0], replicates=2,
        ... )
        >>> scored.log_scores, scored.distorted
        ([-12.0], {0.0: [[-12.0], [-12.0]]})
    """
    if isinstance(texts, str):
        raise TypeError("expected a list of strings, not one string")
    if len(texts) == 0 or len(levels) == 0 or replicates < 1:
        raise ValueError(
            "there must be texts, levels and replicates; got "
            f"{len(texts)}, {len(levels)} and {replicates}"
        )
    for index, text in enumerate(texts):
        if not text.split():
            raise ValueError(
                f"texts[{index}] is {text!r}: no word to distort; leave it out"
            )
    words = distinct_words(texts) if vocabulary is None else vocabulary
    batch = list(texts)
    for level in levels:
        noise = TextNoise(NoiseChannel.preset(level, words), WhiteSpaceWords(), seed)
        for replicate in range(replicates):
            batch += [noise.distort(t, n, replicate) for n, t in enumerate(texts)]
    given = scorer(batch)
    scores, errors = _checked_scores(given, batch), [_stderr(score) for score in given]
    rows = [
        scores[first : first + len(texts)] for first in range(0, len(batch), len(texts))
    ]
    clean, copies = rows[0], iter(rows[1:])
    return ScoredCopies(
        log_scores=clean,
        stderrs=[
            error if all(map(math.isfinite, errors[index :: len(texts)])) else math.inf
            for index, error in enumerate(errors[: len(texts)])
        ],
        distorted={
            level: [next(copies) for _ in range(replicates)] for level in levels
        },
        num_words=[len(text.split()) for text in texts],
        vocabulary_size=len(words),
    )


def _stderr(score: float | Estimate) -> float:
    if not isinstance(score, Estimate):
        return 0.0
    return math.inf if score.stderr is None else score.stderr


def _checked_scores(
    scores: Sequence[float | Estimate | None], texts: Sequence[str]
) -> list[float]:
    if len(scores) != len(texts):
        raise ValueError(f"the scorer gave {len(scores)} scores of {len(texts)} texts")
    found = []
    for given, text in zip(scores, texts, strict=True):
        score = given.log_evidence if isinstance(given, Estimate) else given
        if score is None or not math.isfinite(score):
            raise ValueError(f"the scorer gave {score} for {text[:60]!r}")
        found.append(float(score))
    return found


def is_latent(path: str | Path) -> bool:
    """Whether one of our models is there, rather than one of transformers' own."""
    try:
        config, _ = PreTrainedConfig.get_config_dict(str(path))
    except OSError as err:
        raise ValueError(
            f"{path}: no such directory, and not a repository that the hub serves now"
        ) from err
    except RecursionError as err:
        raise ValueError(f"{path} holds no model: it is nested too deeply") from err
    if "model_type" not in config:
        raise ValueError(f"{path} holds no model: its config.json is missing")
    return name_of(config.get("model_type")) is not None
