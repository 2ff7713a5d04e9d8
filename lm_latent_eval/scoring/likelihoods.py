"""log p-hat of whole texts and of continuations, and whether these are greedy."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from tqdm import tqdm

from lm_latent_eval.estimators import Bound, Estimate, MissedSupportError
from lm_latent_eval.estimators.choices import first_of_best
from lm_latent_eval.inference import (
    Estimator,
    ImportanceSampling,
    Mixed,
    consistency,
)
from lm_latent_eval.inference.interface import Texts, Weighted
from lm_latent_eval.inference.particles import Particles
from lm_latent_eval.latent import offers
from lm_latent_eval.scoring.answer import Answer, Missed
from lm_latent_eval.scoring.budget import announce, is_much, recommend
from lm_latent_eval.scoring.evaluation import Evaluation
from lm_latent_eval.scoring.texts import Text, named
from lm_latent_eval.text.batch import TokenBatch

UNSEEN = tqdm(total=0, disable=True)
"""A progress bar that shows nothing."""
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
            missed: Collects those of which no latent was found.

        Raises:
            ValueError: If a text cannot be scored; the error names the query.
        """
        worded = [text for text in texts if text.words]
        self._recommend(worded)
        name = self.evaluation.options.estimator or ""
        for text in texts:
            if not text.words:  # a document without sentences
                known = Estimate.exact(text.log_spacing, num_tokens=0, estimator=name)
                if self._bounds_both:
                    known = known.bounded_above(known)
                yield text, Answer.of(text, known)
        groups = list(self.evaluation.budget.spend(worded, self._pilot))
        words = sum(_num_words(group) for _, group in groups)
        with self.evaluation.bar(words, "words") as bar:
            spent: dict[str, int] = {}
            for method, group in groups:
                for text, log_w in self.draw(method, group, "", bar):
                    spent.setdefault(text.name, self.evaluation.budget.pilot)
                    with missed.aside(text.query):
                        yield self._part(method, text, log_w, spent, bar)

    @property
    def _bounds_both(self) -> bool:
        return self.evaluation.options.bounds == "both"

    def _pilot(
        self, method: Estimator, texts: list[Text], purpose: str
    ) -> Iterator[tuple[Text, Tensor]]:
        """Weigh texts in a pilot, and show progress."""
        with self.evaluation.bar(_num_words(texts), "words of pilots") as bar:
            yield from self.draw(method, texts, purpose, bar)

    def _part(
        self,
        method: Estimator,
        text: Text,
        log_w: Tensor,
        spent: dict[str, int],
        bar: tqdm,
    ) -> tuple[Text, Answer]:
        estimate = _not_exact_by_draws(method, method.estimate(log_w, len(text.words)))
        if self._bounds_both and estimate.bound is Bound.EXACT:
            estimate = estimate.bounded_above(estimate)
        elif self._bounds_both and estimate.stderr is not None:
            _expect(bar, len(text.words))
            [(_, others)] = self.draw(method, [text], "psi", bar)
            with suppress(MissedSupportError):  # then there is no bound
                other = method.estimate(others, len(text.words))
                estimate = estimate.bounded_above(other)
            spent[text.name] += method.num_samples + method.beside
        spent[text.name] += method.beside
        return text, Answer.of(text, estimate, pilot=spent[text.name])

    def draw(
        self,
        method: Estimator,
        texts: list[Text],
        purpose: str = "",
        bar: tqdm = UNSEEN,
    ) -> Iterator[tuple[Text, Tensor]]:
        """Yield log-weights of whole texts (of a beam log p(x, z)), as they are found.

        Args:
            method: The estimator.
            texts: As ``cut.whole`` returns them, none without words.
            purpose: What the random numbers are for.
            bar: Shows how many words are read.

        Returns:
            Pairs of a text and nats of shape (K,), float64; all ``-inf`` where nothing
            that was drawn is possible.

        Raises:
            ValueError: If a text cannot be scored; the error names the query.
        """
        weigh = partial(self._log_weights, method, purpose)
        for batch in self.evaluation.batches(texts, method.num_samples):
            for some, log_w in self.evaluation.fitting(batch, weigh):
                bar.update(_num_words(some))
                for text, row in zip(some, log_w, strict=True):
                    yield text, row + text.log_spacing

    def _log_weights(
        self, method: Estimator, purpose: str, texts: Sequence[Text]
    ) -> Tensor:
        """Weigh the latents of whole texts, (B, K), on the CPU."""
        try:
            return method.log_weights(self.evaluation.whole(texts, purpose)).cpu()
        except ValueError as err:
            if len(texts) == 1:
                raise named(texts[0].query, err) from err
            for text in texts:  # whose fault is it?
                self._log_weights(method, purpose, [text])
            raise

    def _recommend(self, texts: list[Text]) -> None:
        """Before a long run, log the number of samples that some of its texts need."""
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


logger = logging.getLogger(__name__)


def _not_exact_by_draws(method: Estimator, estimate: Estimate) -> Estimate:
    """Return an estimate; refuse one of draws that is called exact.

    Ours know from their search whether it left anything out.

    Raises:
        ValueError: If another package's estimator calls it so.
    """
    ours = method.estimate.__module__.startswith(consistency.OURS)
    if estimate.bound is Bound.EXACT and method.seeded and not ours:
        raise ValueError(
            f"estimator={method.name}: Estimate.exact of a text whose latents were "
            "drawn. Return Estimate.from_log_weights, or, where random numbers move "
            "nothing, set seeded = False in the class"
        )
    return estimate


def _num_words(texts: Sequence[Text]) -> int:
    return sum(len(text.words) for text in texts)


def _expect(bar: tqdm, words: int) -> None:
    """Add words to a progress bar's total."""
    bar.total += words
    bar.refresh()


def read_contexts(
    evaluation: Evaluation, method: Estimator, texts: Sequence[Text]
) -> tuple[Weighted, TokenBatch | None]:
    """Return the weighted latents of contexts, and what texts are conditional on."""
    batch = evaluation.collate(texts, contexts=True)
    begin = Particles.begin(len(texts), evaluation.model.device)
    read = method.extend(evaluation.going_on(texts, batch), begin)
    return read, batch.given


@dataclass(frozen=True)
class Read:
    """Contexts that were read."""

    place: dict[Hashable, int]
    """Which of the B each is."""
    particles: Weighted
    likely: Tensor
    """The most probable word after each, on the host, (B,): -1, which is none, of a
    model that predicts none."""

    def of(self, texts: Sequence[Text]) -> tuple[Weighted, Tensor]:
        """Return particles and most probable word of each text's context."""
        index = torch.tensor([self.place[text.given] for text in texts])
        return self.particles.select(index), self.likely[index]


@dataclass(frozen=True)
class Weighed:
    """A continuation with its weights."""

    text: Text
    whole: Tensor
    """Of context and continuation, a row as its estimator reads it."""
    prefix: Tensor
    """Of the context."""
    is_greedy: bool


@dataclass(frozen=True)
class Continuations:
    """Estimates texts after their contexts, each of which is read once."""

    evaluation: Evaluation

    def parts(self, texts: list[Text], missed: Missed) -> Iterator[tuple[Text, Answer]]:
        """Estimate continuations.

        Args:
            texts: As ``cut.continuation`` returns them.
            missed: Collects those of which no latent was found.

        Raises:
            ValueError: If the model is unnormalised, or a text cannot be scored.
        """
        self.evaluation.refuse_parts("a continuation after its context")
        if self.evaluation.options.target_stderr is not None:
            logger.warning(
                "target_stderr is for whole texts: continuations take num_samples=%d",
                self.evaluation.options.num_samples,
            )
        method = self.evaluation.method
        with self.evaluation.bar(0, "words") as bar:
            _expect(bar, _num_words(texts))
            contexts = {text.given: text for text in texts}
            _expect(bar, sum(len(text.context) for text in contexts.values()))
            for rows in self._weighed(method, texts, bar):
                yield from self._answers(method, rows, missed)

    @staticmethod
    def _answers(
        method: Estimator, rows: list[Weighed], missed: Missed
    ) -> Iterator[tuple[Text, Answer]]:
        """Estimate the continuations of a context."""
        for row in rows:
            text, log_w = row.text, row.whole + row.text.log_spacing
            with missed.aside(text.query):
                if text.condition is None:
                    estimate = method.difference(log_w, row.prefix, len(text.words))
                else:  # what is given has no probability, so this is a bound
                    estimate = method.estimate(log_w, len(text.words))
                estimate = _not_exact_by_draws(method, estimate)
                beside = method.beside
                yield (
                    text,
                    Answer.of(text, estimate, is_greedy=row.is_greedy, pilot=beside),
                )

    def _weighed(
        self, method: Estimator, texts: list[Text], bar: tqdm
    ) -> Iterator[list[Weighed]]:
        """Weigh continuations, those of each context together."""
        announce([(method, [text.num_words for text in texts])], stepwise=True)
        shared: dict[Hashable, list[Text]] = {}
        for text in texts:
            shared.setdefault(text.given, []).append(text)
        contexts = [group[0] for group in shared.values()]
        for batch in self.evaluation.batches(contexts, method.num_samples):
            reading = partial(self._read, method)
            for some, read in self.evaluation.fitting(batch, reading):
                bar.update(sum(len(text.context) for text in some))
                # Continuations in batches of their own, with their contexts' state.
                after = [text for each in some for text in shared[each.given]]
                found: dict[Hashable, list[Weighed]] = {}
                go_on = partial(self._continue, method, read)
                for part in self.evaluation.batches(after, method.num_samples):
                    for ended, rows in self.evaluation.fitting(part, go_on):
                        bar.update(_num_words(ended))
                        for row in rows:
                            found.setdefault(row.text.given, []).append(row)
                yield from found.values()

    def _read(self, method: Estimator, contexts: Sequence[Text]) -> Read:
        """Read contexts, and predict the word after each."""
        words = [len(context.context) for context in contexts]
        particles, given = read_contexts(self.evaluation, method, contexts)
        last = [self.evaluation.last(context) for context in contexts]
        place = {context.given: b for b, context in enumerate(contexts)}
        keys = self.evaluation.keys(contexts)
        likely = self._most_probable(last, particles, given, keys, words)
        return Read(place, particles, likely)

    def _continue(
        self, method: Estimator, read: Read, texts: Sequence[Text]
    ) -> list[Weighed]:
        """Weigh continuations under their contexts' latents."""
        before, likely = read.of(texts)
        batch = self.evaluation.collate(texts)
        starts = [len(text.context) for text in texts]
        going_on = self.evaluation.going_on(texts, batch, starts)
        after = method.extend(going_on, before)
        greedy = self._are_greedy(method, going_on, before, likely)
        rows = zip(
            texts, after.log_w.cpu(), before.log_w.cpu(), greedy.tolist(), strict=True
        )
        return [Weighed(*row) for row in rows]

    def _are_greedy(
        self,
        method: Estimator,
        texts: Texts,
        particles: Weighted,
        likely: Tensor,
    ) -> Tensor:
        """Compare continuations with the estimated marginals, token by token.

        Only those are read on that have been greedy so far: most end at once.
        """
        targets, length = texts.batch.on_host
        greedy = torch.ones_like(length, dtype=torch.bool)
        (rows,) = (length > 0).nonzero(as_tuple=True)
        particles, likely = particles.select(rows), likely[rows]
        for t in range(int(length.max())):
            target = targets[rows, t]
            # The unknown word is many words: its probability is no argument for one.
            greedy[rows] = target == likely
            if self.evaluation.reader.unknown is not None:
                greedy[rows] &= target != self.evaluation.reader.unknown
            (on,) = (greedy[rows] & (length[rows] > t + 1)).nonzero(as_tuple=True)
            if not len(on):
                break
            rows = rows[on]
            piece = texts.select(rows).piece(t, t + 1)
            particles = method.extend(piece, particles.select(on))
            after = [start + 1 for start in piece.starts]
            likely = self._most_probable(
                targets[rows, t], particles, piece.batch.given, piece.keys, after
            )
        return greedy

    def _most_probable(
        self,
        last: Tensor | Sequence[int],
        particles: Weighted,
        given: TokenBatch | None,
        keys: Sequence[int],
        starts: Sequence[int],
    ) -> Tensor:
        """Return the most probable word after each text, whose last word is ``last``.

        Both are on the host; see ``Read`` for a model that predicts none.
        """
        model = self.evaluation.model
        if not offers(model, "next_token"):
            return torch.full((len(last),), -1)
        inputs = torch.as_tensor(last, device=model.device)
        read = particles.ahead(model, inputs, given)
        predicted = read.next_token(model, keys, starts)
        return first_of_best(predicted).cpu()
