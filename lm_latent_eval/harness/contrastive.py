"""Contrastive entropy as an lm-eval task.

A document is a sentence. It asks at once for the log-likelihoods of itself and of its
distorted copies at every level, so it is scored once, and one call of the model sees
all. Metrics say their level: ``contrastive_entropy@30%`` and, over the first level,
``contrastive_entropy_ratio@30%/10%``.

A task file names the class (``class: !function functions.ContrastiveEntropyTask``),
where its data come from and what it reports; see ``tasks/contrastive_entropy``.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

from lm_eval.api.instance import Instance
from transformers import AutoTokenizer

from lm_latent_eval.contrastive import Rate
from lm_latent_eval.contrastive.levels import (
    Contrast,
    bits_per_sentence,
    bits_per_word,
    ratio,
)
from lm_latent_eval.contrastive.noise import (
    TextNoise,
    Tokens,
    WhiteSpaceWords,
    distinct_words,
    read_vocabulary,
)
from lm_latent_eval.harness.answers import ScoredFloat, score_of
from lm_latent_eval.harness.tasks import (
    Aggregation,
    WholeTextTask,
    register_metrics,
    request,
    whole_text,
)
from lm_latent_eval.options import OptionTable, one_of, option, whole
from lm_latent_eval.text.noise import NoiseChannel

logger = logging.getLogger(__name__)

DISTORTION = "distortion"
"""The key in a request's document that tells what was done to its text. Models whose
scores are no probabilities answer requests that have it, and no others."""

# -- metrics --------------------------------------------------------------------------

RATES: Mapping[str, Callable[[Sequence[Contrast]], Rate]] = {
    "contrastive_entropy": bits_per_word,
    "contrastive_entropy_per_sentence": bits_per_sentence,
    "contrastive_entropy_ratio": ratio,
}
"""Metric of a level -> rate of its sentences."""


class Refusal(str):
    """A refused number, which averages of lm-eval keep."""

    def _stand(self, _: object) -> Refusal:
        return self

    __mul__ = __radd__ = __truediv__ = _stand


@dataclass(frozen=True)
class OfContrasts:
    """Aggregation of sentences to a rate, or to its error over sentences."""

    name: str

    def __call__(self, contrasts: Sequence[Contrast]) -> float | str:
        """Compute it, or say why there is none."""
        is_error = self.name.endswith("_stderr")
        try:
            rate = RATES[self.name.removesuffix("_stderr")](contrasts)
        except ValueError as err:
            if is_error:
                return "N/A"
            logger.warning("no %s: %s", self.name, err)
            return Refusal(f"refused: {str(err).partition(':')[0]}")
        if not is_error:
            return rate.value
        # One sentence tells nothing.
        return rate.stderr if math.isfinite(rate.stderr) else "N/A"


register_metrics([*RATES, *(f"{name}_stderr" for name in RATES)])

GROUPED = ("contrastive_entropy_ratio@30%/10%", "contrastive_entropy_ratio@50%/10%")
"""Metrics of the task group, whose names are fixed in its file."""

# -- options -------------------------------------------------------------------------


def _levels(name: str, value: Any) -> tuple[float, ...]:
    levels = tuple(value) if isinstance(value, list | tuple) else (value,)
    shares = [x for x in levels if isinstance(x, int | float) and 0 < x <= 0.5]
    if not levels or shares != list(dict.fromkeys(levels)):
        raise ValueError(
            f"{name}={value!r}: expected different shares above 0, at most 0.5, the "
            "baseline first: [0.1, 0.3, 0.5]"
        )
    return tuple(map(float, levels))


def _path(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name}={value!r}: expected a path")
    return value


@dataclass(frozen=True)
class NoiseOptions(OptionTable):
    """Settings of a contrastive entropy, besides text and model.

    Attributes:
        noise_levels: Shares of words that are substituted, and as many transposed; the
            first is what ratios are over.
        noise_replicates: Independent distorted copies of a sentence at every level.
        noise_seed: Of the noise.
        noise_tokenizer: A Hugging Face tokenizer, to distort its tokens and draw from
            all of them; None distorts words at white space.
        vocabulary_file: A training text, or a checkpoint of ours, whose words are the
            substitutes; None is the task's training split, or else the scored text.
        count_ends: Whether a sentence's end is one more word in rates per word.
    """

    noise_levels: tuple[float, ...] = option((0.1, 0.3, 0.5), _levels)
    noise_replicates: int = option(1, partial(whole, least=1))
    noise_seed: int = option(0, partial(whole, least=0))
    noise_tokenizer: str | None = option(None, _path)
    vocabulary_file: str | None = option(None, _path)
    count_ends: bool = False

    @classmethod
    def parse(cls, options: Mapping[str, Any]) -> Self:
        """Read them from a task's metadata.

        Raises:
            ValueError: If there is no such option, or a value is not one it can have.
        """
        # Other entries are ignored: lm-eval adds the model's arguments.
        names = cls.names()
        own = [n for n in options if n in names or n.startswith("noise_")]
        for name in own:
            one_of("--metadata", name, names)
        parsed = super().parse({name: options[name] for name in own})
        if parsed.noise_tokenizer and parsed.vocabulary_file:
            raise ValueError(
                "noise_tokenizer and vocabulary_file: substitutes are tokens or words; "
                "give one of them"
            )
        return parsed


# -- the task ------------------------------------------------------------------------


def _percent(level: float) -> str:
    return f"{100 * level:g}%"


class ContrastiveEntropyTask(WholeTextTask):
    """Sentences against their distorted copies, at several levels in one pass."""

    table: ClassVar = {
        name: OfContrasts(name) for rate in RATES for name in (rate, f"{rate}_stderr")
    }

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Read the data as any task of lm-eval, and prepare the noise."""
        super().__init__(config)
        self.options = NoiseOptions.parse(self.config.metadata)
        self.metrics = self._at_every_level(super().aggregation())
        if "contrastive_entropy_ratio" in super().aggregation():
            self._warn_of_groups()
        units, vocabulary, source = self._vocabulary()
        self.noise = {
            level: TextNoise(
                NoiseChannel.preset(level, vocabulary), units, self.options.noise_seed
            )
            for level in self.options.noise_levels
        }
        # Into the results' ``configs``, beside the numbers.
        self.config.metadata["noise"] = {
            "levels": list(self.options.noise_levels),
            "channel": "of every unit exactly one: substituted (probability = level), "
            "transposed with a random one of its sentence (= level), left alone",
            "units": units.name,
            "substitutes": f"{len(vocabulary)} of {source}",
            "seed": self.options.noise_seed,
            "replicates": self.options.noise_replicates,
            "stderr": "over noise replicates"
            if self.options.noise_replicates > 1
            else "over sentences, by pairs",
            "entropy": "bits; words at white space"
            + (", sentence ends counted" if self.options.count_ends else ""),
        }

    def _vocabulary(self) -> tuple[Tokens | WhiteSpaceWords, list[Any], str]:
        """Return the units that are distorted, their substitutes, and whence these."""
        if self.options.noise_tokenizer is not None:
            tokens = Tokens(
                AutoTokenizer.from_pretrained(
                    self.options.noise_tokenizer, trust_remote_code=False
                )
            )
            return tokens, tokens.vocabulary, tokens.name
        words = WhiteSpaceWords()
        if self.options.vocabulary_file is not None:
            path = self.options.vocabulary_file
            return words, read_vocabulary(Path(path)), f"the words of {path}"
        if self.has_training_docs():
            vocabulary = distinct_words(self._text(doc) for doc in self.training_docs())
            return words, vocabulary, "the words of the training split"
        logger.warning(
            "%s: no vocabulary_file, so substitutes are words of the scored text "
            "itself, not of the training text as in the paper",
            self.config.task,
        )
        vocabulary = distinct_words(self._text(doc) for doc in self.eval_docs)
        return words, vocabulary, "the words of the scored text itself"

    def _at_every_level(
        self, aggregations: Mapping[str, Aggregation]
    ) -> dict[str, tuple[float, Aggregation]]:
        """Return metrics with their level in their names, each before its error."""
        baseline = self.options.noise_levels[0]
        metrics: dict[str, tuple[float, Aggregation]] = {}
        for name in filter(RATES.__contains__, aggregations):
            for level in self.options.noise_levels:
                at = f"{name}@{_percent(level)}"
                if name == "contrastive_entropy_ratio":
                    if level == baseline:
                        continue
                    at += f"/{_percent(baseline)}"
                metrics[at] = level, aggregations[name]
                metrics[f"{at}_stderr"] = level, aggregations[f"{name}_stderr"]
        return metrics

    def _warn_of_groups(self) -> None:
        """Warn of groups whose row lm-eval would leave empty."""
        absent = [name for name in GROUPED if name not in self.metrics]
        if absent:
            logger.warning(
                "%s: no %s with noise_levels %s, and none in the row of the group "
                "contrastive_entropy; the task's own rows have the numbers",
                self.config.task,
                " and no ".join(absent),
                list(self.options.noise_levels),
            )

    def _text(self, doc: Mapping[str, Any]) -> str:
        text = self.doc_to_target(doc)
        if not isinstance(text, str):
            raise ValueError(
                f"{self.config.task}: doc_to_target gives {text!r}; expected a text"
            )
        return text

    def build_all_requests(self, **options: Any) -> None:
        """Build them anew: lm-eval's cache of requests knows neither file nor noise."""
        if options.pop("cache_requests", False):
            logger.warning("%s: requests are not cached", self.config.task)
        options.pop("rewrite_requests_cache", None)
        super().build_all_requests(**options)

    def construct_requests(
        self,
        doc: dict[str, Any],
        ctx: Any,
        *,
        doc_id: int | None = None,
        metadata: Any = None,
        **_: Any,
    ) -> list[Instance]:
        """Ask for a sentence, then for its copies: level by level, by replicate.

        Its noise follows from its number among the documents, whatever the model: all
        models are given the same copies.
        """
        text = self._text(doc)
        index = metadata[1] if doc_id is None else doc_id  # 0.4 says it there
        strings = [(text, 0.0, 0)] + [
            (noise.distort(text, index, replicate), level, replicate)
            for level, noise in self.noise.items()
            for replicate in range(self.options.noise_replicates)
        ]
        return [
            request(
                "loglikelihood_rolling",
                whole_text(string),
                {**doc, DISTORTION: {"level": level, "replicate": replicate}},
                i,
                (self.config.task, index, self.config.repeats),
            )
            for i, (string, level, replicate) in enumerate(strings)
        ]

    def process_results(
        self, doc: dict[str, Any], results: Sequence[Any]
    ) -> dict[str, Contrast | int]:
        """Pair a sentence's log-likelihood with those of its copies at each level.

        Raises:
            ValueError: If one of them is not finite: no entropy of the text without it.
        """
        text = self._text(doc)
        answers = [score_of(result) for result in results]
        scores = [float(answer) for answer in answers]
        for i, score in enumerate(scores):
            if not math.isfinite(score):
                which = f"distorted copy {i}" if i else "log-likelihood"
                raise ValueError(
                    f"{self.config.task}: {text[:80]!r} has a {which} of {score} nats; "
                    "a contrastive entropy needs finite ones"
                )
        clean, copies = scores[0], scores[1:]
        replicates = self.options.noise_replicates
        at = {
            level: copies[n * replicates : (n + 1) * replicates]
            for n, level in enumerate(self.options.noise_levels)
        }
        words = len(text.split()) + self.options.count_ends
        contrasts: dict[str, Contrast | int] = {
            name: Contrast(
                words=words,
                clean=clean,
                stderr=_stderr(answers),
                distorted=at[level],
                baseline=at[self.options.noise_levels[0]],
            )
            for name, (level, _) in self.metrics.items()
        }
        return {**contrasts, "words": words}

    def aggregation(self) -> dict[str, Callable[..., Any]]:
        """Return what turns the pairs of all sentences into numbers."""
        return {name: f for name, (_, f) in self.metrics.items()} | {"words": sum}

    def higher_is_better(self) -> dict[str, bool]:
        """Return which metrics a better model has more of; it has as many words."""
        return dict.fromkeys(self.metrics, True)


def _stderr(scores: Sequence[float]) -> float:
    """Return the Monte Carlo error of the first; ``inf`` if one of all is not known."""
    estimates = [s.estimate for s in scores if isinstance(s, ScoredFloat)]
    if any(estimate.stderr is None for estimate in estimates):
        return math.inf
    return (estimates[0].stderr or 0.0) if estimates else 0.0
