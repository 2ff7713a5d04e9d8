"""Distributional distortion as an lm-eval task.

A document is a sequence of a corpus with its true log-probability, written as a text:

    error(x) = log p_M(text of x) - log p_L(x)

Bins of equal count are known before anything is scored, as they follow from the true
log-probabilities of the documents that will be. So every metric is a mean over
documents, all of them or those in a bin.

The task file (``tasks/distributional_distortion``) names the class.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.metrics import mean, mean_stderr

from lm_latent_eval.distortion.corpus import Corpus, End, as_texts
from lm_latent_eval.distortion.statistics.bins import equal_count
from lm_latent_eval.harness.answers import ScoredFloat, score_of
from lm_latent_eval.harness.contrastive import Refusal
from lm_latent_eval.harness.tasks import WholeTextTask, request, whole_text
from lm_latent_eval.options import one_of

logger = logging.getLogger(__name__)

NUM_BINS = 10


class DistributionalDistortionTask(WholeTextTask):
    """How far a model's log-probabilities are from the true ones, and where."""

    end: End
    left_out: int
    """Sequences whose texts stand for others."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Read the corpus, and describe the comparison in the results."""
        self.bin_of: dict[int, int] = {}
        super().__init__(config)
        _ = self.dataset  # lm-eval 0.5 would read, and refuse, it when all is loaded

    def download(self, *_: Any, **__: Any) -> None:
        """Read the corpus that the metadata name.

        Raises:
            ValueError: If there is no corpus, or an end of another kind.
        """
        metadata = self.config.metadata or {}
        if not isinstance(folder := metadata.get("corpus"), str) or not folder:
            raise ValueError(
                "distributional_distortion needs the folder of a corpus, which "
                "lm-latent-eval distort sample writes: --metadata "
                '\'{"corpus": "DIRECTORY"}\''
            )
        self.end = End(one_of("end", metadata.get("end", End.WRITTEN), [*End]))
        corpus = Corpus.open(Path(folder))
        documents = as_texts(corpus, self.end)
        self.left_out = corpus.num_sequences - len(documents)
        if self.left_out:
            logger.warning(
                "%s: %d of %d sequences of %s are left out: their texts read as other "
                "tokens, have none, or lack an end that end=implied would count. Means "
                "are over the others, and no divergences",
                self.config.task,
                self.left_out,
                corpus.num_sequences,
                corpus.directory,
            )
        self.dataset = {"test": documents}
        self.config.metadata["distortion"] = {
            "corpus": corpus.settings,
            "end": str(self.end),
            "left_out": self.left_out,
            "error": "log p_M - log p_L, nats; below 0 the model underestimates",
        }

    def build_all_requests(
        self,
        *,
        limit: int | None = None,
        samples: list[int] | None = None,
        cache_requests: bool = False,
        rewrite_requests_cache: bool = False,
        **options: Any,
    ) -> None:
        """Divide the sequences into bins, and build the requests anew.

        Every process does so for all documents. lm-eval's cache of requests does not
        know the corpus.
        """
        if cache_requests:
            logger.warning("%s: requests are not cached", self.config.task)
        documents = [doc for _, doc in self.doc_iterator(limit=limit, samples=samples)]
        self._divide(documents)
        super().build_all_requests(limit=limit, samples=samples, **options)

    def _divide(self, documents: Sequence[Mapping[str, Any]]) -> None:
        self.bin_of = {}
        if len(documents) < NUM_BINS:
            logger.warning(
                "%s: %d sequences cannot fill %d bins, so there is no curve",
                self.config.task,
                len(documents),
                NUM_BINS,
            )
            return
        true_log_p = torch.tensor(
            [doc["true_log_p"] for doc in documents], dtype=torch.float64
        )
        bins = equal_count(true_log_p, NUM_BINS)
        for each in bins:
            for member in each.members.tolist():
                self.bin_of[documents[member]["index"]] = each.index
        self.config.metadata["distortion"]["bins"] = [
            {
                "metric": _bin_name(each.index),
                "count": len(each.members),
                "lowest_true_log_p": each.lowest,
                "highest_true_log_p": each.highest,
                "mean_true_log_p": true_log_p[each.members].mean().item(),
            }
            for each in bins
        ]

    def construct_requests(
        self,
        doc: dict[str, Any],
        ctx: Any,
        *,
        doc_id: int | None = None,
        metadata: Any = None,
        **_: Any,
    ) -> Instance:
        """Ask for a sequence.

        Raises:
            ValueError: If something would stand before it.
        """
        if ctx:
            raise ValueError(
                f"{self.config.task}: nothing stands before a sequence of a language: "
                "no examples, no system instruction and no chat template"
            )
        whole, text = self.end is End.IMPLIED, doc["text"]
        index = metadata[1] if doc_id is None else doc_id  # 0.4 says it there
        return request(
            "loglikelihood_rolling" if whole else "loglikelihood",
            whole_text(text) if whole else (doc["begin"], text),
            doc,
            0,
            (self.config.task, index, self.config.repeats),
        )

    def process_results(
        self, doc: Mapping[str, Any], results: Sequence[Any]
    ) -> dict[str, float | None]:
        """Compare a model's log-probability of a sequence with the true one.

        Raises:
            ValueError: If it is no log-probability, or one of something else.
        """
        [answer] = results
        score = score_of(answer)
        model_log_p = self._checked(doc, score)
        stderr = score.estimate.draws_stderr if isinstance(score, ScoredFloat) else 0.0
        error = model_log_p - float(doc["true_log_p"])
        values: dict[str, float | None] = {
            "share_underestimated": float(error < 0),
            "share_ruled_out": float(error == -math.inf),
            "mean_error": error,
            "estimator_bias": 0.0 - stderr**2 / 2,
        }
        for bin_index in range(NUM_BINS if self.bin_of else 0):
            inside = self.bin_of[doc["index"]] == bin_index
            values[_bin_name(bin_index)] = error if inside else None
        return {
            "left_out": 0.0,
            **values,
            **{f"{name}_stderr": value for name, value in values.items()},
        }

    def _checked(self, doc: Mapping[str, Any], score: Any) -> float:
        """Return a log-probability of this sequence, or raise."""
        about = f"{self.config.task}: sequence {doc['index']} ({doc['text'][:80]!r})"
        if isinstance(score, ScoredFloat):
            if self.end is End.WRITTEN:
                raise ValueError(
                    f"{about} was scored by a model of whole texts, which took the end "
                    'token for a word: add "end": "implied" to --metadata'
                )
            if unknown := score.answer.unspelled + score.answer.left_out:
                raise ValueError(
                    f"{about} has {unknown} words that the model does "
                    "not know: it must have learned this language"
                )
            if score.answer.sentences > 1:
                raise ValueError(
                    f"{about} was scored as {score.answer.sentences} sentences, but is "
                    "one to the language"
                )
        log_p = float(score)
        # An estimate of a text that is nearly sure may be above 1.
        drawn = isinstance(score, ScoredFloat) and score.estimate.draws_stderr > 0
        if not log_p <= (math.inf if drawn else 0):
            raise ValueError(
                f"{about} has a log-likelihood of {log_p} nats; expected at most 0"
            )
        return log_p

    def aggregation(self) -> dict[str, Callable[[Sequence[Any]], Any]]:
        """Return what turns the values of all documents into numbers."""
        means = {
            "share_underestimated": mean,
            "share_ruled_out": mean,
            "mean_error": _mean,
            "estimator_bias": _mean,
            **{_bin_name(bin_index): _mean for bin_index in range(NUM_BINS)},
        }
        return {
            "left_out": lambda _: self.left_out,
            **means,
            **{f"{name}_stderr": _stderr_of_mean for name in means},
        }

    def higher_is_better(self) -> dict[str, bool]:
        """Return nothing: an error is best where it is 0."""
        return {}


def _bin_name(index: int) -> str:
    return f"error_bin_{index + 1:02}"


def _mean(values: Sequence[float | None]) -> float | str:
    """Return the mean of those that count, in words where it is minus infinity.

    lm-eval's table would show it without its sign.
    """
    average = float(mean([value for value in values if value is not None]))
    return average if math.isfinite(average) else Refusal("minus infinity")


def _stderr_of_mean(values: Sequence[float | None]) -> float | str:
    counted = [value for value in values if value is not None]
    if len(counted) < 2 or -math.inf in counted:
        return "N/A"
    return float(mean_stderr(counted))
