"""log p-hat of whole texts, by their budgets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from torch import Tensor

from lm_latent_eval.estimators import Estimate, MissedSupportError
from lm_latent_eval.inference import Estimator, ImportanceSampling, Mixed
from lm_latent_eval.latent import SentenceModel
from lm_latent_eval.scoring.answer import Answer
from lm_latent_eval.scoring.cost import announce, is_much, recommend
from lm_latent_eval.scoring.evaluation import Evaluation
from lm_latent_eval.scoring.missed import Missed
from lm_latent_eval.scoring.texts import Text, naming

PartT = TypeVar("PartT")


FEW, FEW_SAMPLES = 10, 100
"""Texts, and samples of each, that say how many samples a long run is worth."""


@dataclass(frozen=True)
class WholeTexts:
    """Estimates whole texts, their ends included."""

    evaluation: Evaluation

    def parts(self, texts: list[Text], missed: Missed) -> Iterator[tuple[Text, Answer]]:
        """Estimate texts, those without words among them, and show progress.

        Args:
            texts: As ``cut.whole`` returns them.
            missed: Takes in those that nothing was found of.

        Raises:
            ValueError: If a text cannot be scored; the error names the query.
        """
        worded = [text for text in texts if text.words]
        self._recommend(worded)
        name = self.evaluation.options.estimator or ""
        for text in texts:
            if not text.words:  # a document without sentences
                known = Estimate.exact(text.log_spacing, num_tokens=0, estimator=name)
                yield text, Answer.of(text, known)
        yield from self._shown(self.estimate(worded, missed), len(worded))

    def _shown(
        self, parts: Iterator[PartT], total: int, which: str = ""
    ) -> Iterator[PartT]:
        unit = (
            "sentences" if isinstance(self.evaluation.model, SentenceModel) else "texts"
        )
        with self.evaluation.bar(total, which + unit) as bar:
            for part in parts:
                yield part
                bar.update()

    def estimate(
        self, texts: list[Text], missed: Missed
    ) -> Iterator[tuple[Text, Answer]]:
        """Estimate whole texts, their white space included.

        Args:
            texts: As ``cut.whole`` returns them, none without words.
            missed: Takes in those that nothing was found of.

        Returns:
            Texts with their estimates, as they are found.

        Raises:
            ValueError: If a text cannot be scored; the error names the query.
        """
        groups = list(self.evaluation.budget.spend(texts, self._pilot))
        return self._estimates(groups, missed)

    def _pilot(
        self, method: Estimator, texts: list[Text], purpose: str
    ) -> Iterator[tuple[Text, Tensor]]:
        """Weigh texts to find out how, and show progress."""
        return self._shown(self.draw(method, texts, purpose), len(texts), "pilots of ")

    def _estimates(
        self, groups: list[tuple[Estimator, list[Text]]], missed: Missed
    ) -> Iterator[tuple[Text, Answer]]:
        spent: dict[str, int] = {}
        purpose = ""
        while groups:
            retried: dict[Estimator, list[Text]] = {}
            for method, group in groups:
                for text, log_w in self.draw(method, group, purpose) if group else ():
                    spent.setdefault(text.name, self.evaluation.budget.pilot)
                    replacement = self.evaluation.budget.replacement(method, log_w)
                    if replacement is None:
                        with missed.aside(text.query):
                            yield self._part(method, text, log_w, spent)
                    else:
                        spent[text.name] += method.num_samples + method.beside
                        retried.setdefault(replacement, []).append(text)
            groups, purpose = list(retried.items()), "again"
            announce([(m, [len(text.words) for text in some]) for m, some in groups])

    def _part(
        self, method: Estimator, text: Text, log_w: Tensor, spent: dict[str, int]
    ) -> tuple[Text, Answer]:
        estimate = method.estimate(log_w, len(text.words))
        if self.evaluation.options.bounds == "both" and estimate.stderr is not None:
            [(_, others)] = self.draw(method, [text], "psi")
            with suppress(MissedSupportError):  # then there is no bound
                psi = method.estimate(others, len(text.words)).log_evidence
                estimate = estimate.bounded_above(psi)
            spent[text.name] += method.num_samples + method.beside
        spent[text.name] += method.beside
        return text, Answer.of(text, estimate, pilot=spent[text.name])

    def weigh(self, texts: list[Text]) -> Iterator[tuple[Text, Tensor]]:
        """Yield log-weights of whole texts (of a beam log p(x, z)), as they are found.

        Args:
            texts: As ``cut.whole`` returns them, none without words.

        Returns:
            Pairs of a text and nats of shape (K,), float64; all ``-inf`` where nothing
            that was drawn is possible.

        Raises:
            ValueError: If a text cannot be scored; the error names the query.
        """
        return self.draw(self.evaluation.method, texts)

    def draw(
        self, method: Estimator, texts: list[Text], purpose: str = ""
    ) -> Iterator[tuple[Text, Tensor]]:
        """Weigh texts by an estimator, with random numbers for a purpose."""
        for batch in self.evaluation.batches(texts, method.num_samples):
            weigh = partial(self._log_weights, method, purpose)
            for some, log_w in self.evaluation.fitting(batch, weigh):
                for text, row in zip(some, log_w, strict=True):
                    yield text, row + text.log_spacing

    def _log_weights(
        self, method: Estimator, purpose: str, texts: Sequence[Text]
    ) -> Tensor:
        """Weigh the latents of whole texts, (B, K), on the CPU."""

        def weigh(some: Sequence[Text]) -> Tensor:
            return method.log_weights(
                self.evaluation.model,
                self.evaluation.proposal,
                self.evaluation.collate(some),
                self.evaluation.keys(some, purpose),
            ).cpu()

        try:
            return weigh(texts)
        except ValueError:
            for text in texts:  # whose fault is it?
                with naming(text.query):
                    weigh([text])
            raise

    def _recommend(self, texts: list[Text]) -> None:
        """Before a long run, say how many samples a few of its texts ask for."""
        method, apart = self.evaluation.method, len(texts) // FEW
        if not isinstance(method, ImportanceSampling | Mixed):
            return
        if not (apart and is_much(method, [len(t.words) for t in texts])):
            return
        small = replace(method, num_samples=min(method.num_samples, FEW_SAMPLES))
        few = self.draw(small, texts[::apart][:FEW], "recommend")
        estimates = []
        for text, log_w in few:
            with suppress(MissedSupportError):  # said where the text is scored
                estimates.append(small.estimate(log_w, len(text.words)))
        if estimates:
            recommend(estimates, len(texts))
