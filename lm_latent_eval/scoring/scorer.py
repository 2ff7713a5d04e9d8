"""``Scorer``: batched scoring of queries under the latent interface.

A text is cut into words once. Contexts that several queries share are read once, and a
word across the border of a context belongs to the continuation. Nothing here depends on
how queries are batched or ordered: random numbers follow from each query's name.
"""

from __future__ import annotations

import json
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from typing import Any

import torch

from lm_latent_eval.estimators import Bound, Estimate
from lm_latent_eval.inference import consistency, estimator_class
from lm_latent_eval.inference.unfolding import SearchedProposal
from lm_latent_eval.latent import Normalization, offers
from lm_latent_eval.models.checkpoint import Checkpoint
from lm_latent_eval.models.pretrained import Pretrained
from lm_latent_eval.models.proposals import proposal_named
from lm_latent_eval.models.step_checks import check_steps
from lm_latent_eval.models.stepwise import StepLM
from lm_latent_eval.scoring.answer import Answer, Missed
from lm_latent_eval.scoring.budget import method_of
from lm_latent_eval.scoring.estimates import continuations, whole_texts
from lm_latent_eval.scoring.evaluation import Evaluation
from lm_latent_eval.scoring.generation import GenerationOptions, generate
from lm_latent_eval.scoring.inside.latents import BestLatents, best_latents
from lm_latent_eval.scoring.inside.prefixes import Prefixes, divided
from lm_latent_eval.scoring.inside.regions import Regions, RegionScore
from lm_latent_eval.scoring.interface import TextScorer
from lm_latent_eval.scoring.options import ScoringOptions, parse_batch_size
from lm_latent_eval.scoring.texts import Cutter, Query, Text
from lm_latent_eval.text.files import digest

logger = logging.getLogger(__name__)

MAX_BATCH_SIZE = 64
"""Limit of the texts scored together, unless a user asks for more."""
UNITS = {
    Normalization.UNNORMALISED: "nats, up to one unknown constant a text",
    Normalization.BY_LENGTH: "nats; sentence ends are not modelled and not counted",
}
"""Event of a log-likelihood that is not that of a whole text with its end."""


class Scorer(TextScorer):
    """Scores queries with one model, proposal and estimator."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        options: ScoringOptions,
        *,
        batch_size: int | str | None = None,
        max_batch_size: int | str | None = None,
        quiet: bool = False,
    ) -> None:
        """Resolve the options that were left open.

        Args:
            checkpoint: Model and vocabulary.
            options: Options of scoring.
            batch_size: Texts scored together; None and ``auto`` are as many as memory
                allows.
            max_batch_size: The most texts that ``auto`` takes.
            quiet: Show no progress.

        Raises:
            ValueError: If the model has no such estimator, proposal or policy, or a
                batch size is none.
        """
        self.checkpoint = checkpoint
        self.model: Pretrained = checkpoint.model
        self.normalization = self.model.normalization
        estimator = options.estimator or self.model.estimators[0]
        self.proposal = proposal_named(
            self.model, options.proposal, options.temperature
        )
        best = proposal_named(self.model)
        if estimator_class(estimator).own_proposal and isinstance(
            best, SearchedProposal
        ):
            self.proposal = best  # nothing is drawn, and it knows p best
            options = replace(options, proposal=best.name, temperature=1.0)
        self.reader = checkpoint.encoder(options.unk)
        self.cut = Cutter(
            self.reader,
            self.model.sentence_starts
            if offers(self.model, "sentence_starts")
            else None,
            ends=self.model.normalization
            in (Normalization.ONE, Normalization.BELOW_ONE),
            conditional_on=self.model.conditional_on,
        )
        self.options = replace(
            options,
            estimator=estimator,
            proposal=options.proposal or self.proposal.name,
            unk=str(self.reader.policy),
        )
        most = parse_batch_size(max_batch_size, "max_batch_size")
        self.evaluation = Evaluation(
            self.model,
            self.proposal,
            # Whole texts may be read to their ends; contexts stop where they stop.
            stepwise=self.proposal.left_to_right,
            reader=self.reader,
            options=self.options,
            method=method_of(self.options, self.model.estimators, self.proposal),
            batch_size=parse_batch_size(batch_size),
            max_batch_size=most or MAX_BATCH_SIZE,
            quiet=quiet,
        )
        classes = (type(self.model), type(self.proposal))
        self._trusted = all(c.__module__.startswith(consistency.OURS) for c in classes)

    @property
    def _numbers(self) -> dict[str, Any]:
        """Options and kinds of the numbers, as JSON."""
        units = self.reader.units
        ended = self.normalization is not Normalization.BY_LENGTH
        return {
            **asdict(self.options),
            "mass": str(self.normalization),
            "tokens_are": f"{units}, and the end of a text" if ended else units,
            "scored_as": "sentences" if self.cut.sentence_starts else "documents",
        }

    @property
    def fingerprint(self) -> dict[str, Any]:
        """Everything that numbers depend on besides the query, as JSON."""
        words, checkpoint = self.checkpoint.words, self.checkpoint.digest
        return {
            "model": self.checkpoint.name,
            "checkpoint": checkpoint,
            "dtype": str(self.model.dtype),
            # Equal ones mean the same units.
            "vocabulary": digest(json.dumps(words.vocabulary)) if words else checkpoint,
            **self._numbers,
        }

    @property
    def about(self) -> dict[str, Any]:
        """Description of model and numbers for results, as JSON."""
        config, method = self.model.config, type(self.evaluation.method)
        given = self.model.conditional_on
        # Reserved words are not uttered where unknown ones are left out.
        reserved = getattr(config, "never_uttered", ())
        uttered = config.vocab_size - len(reserved) * (self.reader.unknown is None)
        return {
            "checkpoint_digest": self.checkpoint.digest,
            "model_num_parameters": sum(p.numel() for p in self.model.parameters()),
            "model_dtype": str(self.model.dtype),
            "model_device": str(self.model.device),
            "latent_eval": {
                **self._numbers,
                "how": method.how.format_map(asdict(self.options)),
                "checks": method.checks,
                "default_proposal": proposal_named(self.model).name,
                **({} if given is None else {"conditional_on": given}),
                "vocabulary": f"{uttered} {self.reader.units} to utter, "
                f"{config.num_words - config.vocab_size} more to copy",
                "units": UNITS.get(
                    self.normalization,
                    "nats; sentence ends counted in rolling log-likelihoods",
                ),
            },
        }

    @property
    def unknown_words(self) -> str:
        """Charge of an unknown word, a policy of ``unk``."""
        return str(self.reader.policy)

    # -- queries ----------------------------------------------------------------------

    def score_texts(self, queries: Sequence[Query]) -> Iterator[Answer]:
        """Yield log p-hat of whole texts, their ends included, in any order.

        Raises:
            MissedTextsError: At the end, if an estimator found no latent of a text.
            ValueError: If a text cannot be scored; the error names the query.
        """
        return self._answers(queries, self.cut.whole, whole_texts)

    def score_continuations(self, queries: Sequence[Query]) -> Iterator[Answer]:
        """Yield log p-hat of texts after their contexts, in any order.

        Raises:
            MissedTextsError: At the end, if an estimator found no latent of a text.
            ValueError: If the model is unnormalised, or a text cannot be scored.
        """
        if self.options.bounds == "both" and queries:
            logger.warning("bounds: no effect on continuations, which nothing bounds")
        return self._answers(queries, self.cut.continuation, continuations)

    def score_regions(
        self, texts: Sequence[Regions]
    ) -> Iterator[tuple[int, list[RegionScore]]]:
        """Yield log p-hat of each region of texts: see ``TextScorer``.

        Raises:
            MissedTextsError: At the end, if an estimator found no latent of a text.
            ValueError: If the model gives prefixes no probability, or a text cannot be
                scored.
        """
        divided_texts = [divided(self.cut, regions) for regions in texts]
        self._check([s.text for sentences in divided_texts for s in sentences])
        missed = Missed([regions.query for regions in texts])
        yield from Prefixes(self.evaluation).scores(divided_texts, missed)
        missed.tell()

    def best_latents(self, queries: Sequence[Query], top: int) -> Iterator[BestLatents]:
        """Yield the most probable latents of each text: see ``TextScorer``.

        Raises:
            ValueError: If the model has no latents, or a text cannot be scored.
        """
        for query in queries:
            first, reading = 0, self.reader(query.text)
            borders = [*pairwise((0, *reading.ends))]
            for text in self.cut.whole(query):
                last = min(first + len(text.words), len(reading.ids))
                words = [query.text[a:b].strip() for a, b in borders[first:last]]
                if text.words:
                    yield best_latents(self.evaluation, text, words, top)
                first = last

    def generate(
        self, queries: Sequence[tuple[Query, GenerationOptions]]
    ) -> Iterator[tuple[int, str]]:
        """Yield index and continuation of every query's context.

        Raises:
            ValueError: If the model is unnormalised.
        """
        texts = [self.cut.continuation(query)[-1] for query, _ in queries]
        options = {query.index: how for query, how in queries}
        yield from generate(self.evaluation, texts, options)

    @torch.inference_mode()
    def _check(self, texts: Sequence[Text]) -> None:
        """Check a model of another package on the first texts that it is to score."""
        first = [text for text in texts if text.words][:2]
        if self._trusted or not first:
            return
        batch = self.evaluation.collate(first)
        model: object = self.model
        if isinstance(model, StepLM):
            check_steps(model, batch)
        consistency.check(
            self.model,
            self.proposal,
            batch,
            dtype=self.model.dtype,
            searches=any(estimator_class(n).searches for n in self.model.estimators),
        )
        self._trusted = True

    def _answers(
        self,
        queries: Sequence[Query],
        cut: Callable[[Query], list[Text]],
        estimate: Callable[
            [Evaluation, list[Text], Missed], Iterator[tuple[Text, Answer]]
        ],
    ) -> Iterator[Answer]:
        """Cut queries into sentences, and put the answers of each together."""
        texts = [text for query in queries for text in cut(query)]
        self._check(texts)
        missed = Missed(queries)
        sentences = Counter(text.query.index for text in texts)
        parts: defaultdict[int, dict[int, Answer]] = defaultdict(dict)
        for text, part in estimate(self.evaluation, texts, missed):
            query = text.query
            parts[query.index][text.sentence] = part
            if len(parts[query.index]) == sentences[query.index]:
                ordered = [part for _, part in sorted(parts.pop(query.index).items())]
                answer = Answer.product(ordered)
                stream = f"{self.options.seed}/{query.name}"
                yield replace(answer, estimate=self._told(answer), stream=stream)
        missed.tell()

    def _told(self, answer: Answer) -> Estimate:
        """Return an estimate whose bound is one of the model's and of a product."""
        bound, upper = answer.estimate.bound, answer.estimate.upper
        if self.normalization is Normalization.UNNORMALISED:
            bound = Bound.UNNORMALISED
        if bound is Bound.NONE:
            upper = None
        return replace(answer.estimate, bound=bound, upper=upper)
