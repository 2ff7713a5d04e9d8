"""Log p-hat of whole texts and of continuations, and whether these are greedy."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from lm_latent_eval.estimators import Bound, Estimate, MissedSupportError
from lm_latent_eval.estimators.choices import first_of_best
from lm_latent_eval.inference import Estimator, consistency
from lm_latent_eval.inference.interface import Texts, Weighted
from lm_latent_eval.latent import offers
from lm_latent_eval.scoring.answer import Answer, Missed
from lm_latent_eval.scoring.budget import announce
from lm_latent_eval.scoring.evaluation import Evaluation, num_words
from lm_latent_eval.scoring.texts import Text
from lm_latent_eval.text.batch import TokenBatch

logger = logging.getLogger(__name__)


def whole_texts(
    evaluation: Evaluation, texts: Sequence[Text], missed: Missed
) -> Iterator[tuple[Text, Answer]]:
    """Estimate whole texts, their ends included, and show progress.

    Args:
        evaluation: The model and its settings.
        texts: Texts as ``Cutter.whole`` returns them.
        missed: Collects texts of which no latent was found.

    Raises:
        ValueError: If a text cannot be scored; the error names the query.
    """
    options, method = evaluation.options, evaluation.method
    worded, both = [text for text in texts if text.words], options.bounds == "both"
    for text in texts:
        if not text.words:  # a document without sentences
            estimate = Estimate.exact(
                text.log_spacing, num_tokens=0, estimator=options.estimator or ""
            )
            yield (
                text,
                Answer.of(text, estimate.bounded_above(estimate) if both else estimate),
            )
    announce(method, [len(text.words) for text in worded], kept=True)
    with evaluation.bar(num_words(worded) * (1 + both), "words") as bar:
        for text, log_w in evaluation.weigh(worded, bar=bar):
            with missed.aside(text.query):
                estimate = _estimate(method, text, log_w)
                if both:
                    estimate = _bounded_above(evaluation, text, estimate)
                    bar.update(len(text.words))
                yield text, Answer.of(text, estimate)


def _estimate(method: Estimator, text: Text, log_w: Tensor) -> Estimate:
    return _not_exact_by_draws(method, method.estimate(log_w, len(text.words)))


def _bounded_above(evaluation: Evaluation, text: Text, estimate: Estimate) -> Estimate:
    """Return an estimate with an upper bound from draws of its own, if there is one."""
    if estimate.bound is Bound.EXACT:
        return estimate.bounded_above(estimate)
    if estimate.stderr is not None:
        [(_, log_w)] = evaluation.weigh([text], "psi")
        with suppress(MissedSupportError):  # then there is no bound
            psi = evaluation.method.estimate(log_w, len(text.words))
            return estimate.bounded_above(psi)
    return estimate


def _not_exact_by_draws(method: Estimator, estimate: Estimate) -> Estimate:
    """Return an estimate; refuse one of draws that is called exact.

    Ours know from their search whether it left anything out.

    Raises:
        ValueError: If another package's estimator calls it so.
    """
    is_ours = method.estimate.__module__.startswith(consistency.OURS)
    if estimate.bound is Bound.EXACT and method.seeded and not is_ours:
        raise ValueError(
            f"estimator={method.name}: Estimate.exact of a text whose latents were "
            "drawn. Return Estimate.from_log_weights, or, where random numbers move "
            "nothing, set seeded = False in the class"
        )
    return estimate


@dataclass(frozen=True)
class ReadContexts:
    """B contexts that were read."""

    row: dict[Hashable, int]
    """Row of each context by ``Text.given``."""
    particles: Weighted
    likely: Tensor
    """The most probable word after each, on the host, (B,): -1, which is none, of a
    model that predicts none."""

    def of(self, texts: Sequence[Text]) -> tuple[Weighted, Tensor]:
        """Return particles and most probable word of each text's context."""
        index = torch.tensor([self.row[text.given] for text in texts])
        return self.particles.select(index), self.likely[index]


class WeightedContinuation(NamedTuple):
    """Rows of weights of a continuation, as its estimator reads them."""

    whole: Tensor
    """Row of context and continuation."""
    context: Tensor
    is_greedy: bool


def continuations(
    evaluation: Evaluation, texts: Sequence[Text], missed: Missed
) -> Iterator[tuple[Text, Answer]]:
    """Estimate texts after their contexts, each of which is read once.

    Args:
        evaluation: The model and its settings.
        texts: Texts as ``Cutter.continuation`` returns them.
        missed: Collects texts of which no latent was found.

    Raises:
        ValueError: If the model is unnormalised, or a text cannot be scored.
    """
    evaluation.refuse_parts("a continuation after its context")
    method = evaluation.method
    announce(method, [text.num_words for text in texts], stepwise=True)
    shared: dict[Hashable, list[Text]] = {}
    for text in texts:
        shared.setdefault(text.given, []).append(text)
    contexts = [group[0] for group in shared.values()]
    total = num_words(texts) + sum(len(text.context) for text in contexts)
    read = partial(_read, evaluation)
    with evaluation.bar(total, "words") as bar:
        for batch, before in evaluation.in_batches(contexts, read):
            bar.update(sum(len(text.context) for text in batch))
            # Continuations in batches of their own, with their contexts' state.
            after = [text for context in batch for text in shared[context.given]]
            weigh = partial(_continue, evaluation, before)
            for group, rows in evaluation.in_batches(after, weigh):
                bar.update(num_words(group))
                for text, row in zip(group, rows, strict=True):
                    with missed.aside(text.query):
                        estimate = _after_context(method, text, row)
                        yield (
                            text,
                            Answer.of(text, estimate, is_greedy=row.is_greedy),
                        )


def _after_context(
    method: Estimator, text: Text, row: WeightedContinuation
) -> Estimate:
    log_w = row.whole + text.log_spacing
    if text.condition is not None:  # it has no probability, so this is a bound
        return _estimate(method, text, log_w)
    estimate = method.difference(log_w, row.context, len(text.words))
    return _not_exact_by_draws(method, estimate)


def _read(evaluation: Evaluation, contexts: Sequence[Text]) -> ReadContexts:
    """Read contexts, and predict the word after each."""
    particles, given = evaluation.read_contexts(contexts)
    likely = _most_probable(
        evaluation,
        [evaluation.last(context) for context in contexts],
        particles,
        given,
        evaluation.keys(contexts),
        [len(context.context) for context in contexts],
    )
    row = {context.given: b for b, context in enumerate(contexts)}
    return ReadContexts(row, particles, likely)


def _continue(
    evaluation: Evaluation, read: ReadContexts, texts: Sequence[Text]
) -> list[WeightedContinuation]:
    """Weigh continuations under their contexts' latents."""
    before, likely = read.of(texts)
    starts = [len(text.context) for text in texts]
    batch = evaluation.continued(texts, evaluation.collate(texts), starts)
    after = evaluation.method.extend(batch, before)
    greedy = _are_greedy(evaluation, batch, before, likely)
    rows = zip(after.log_w.cpu(), before.log_w.cpu(), greedy.tolist(), strict=True)
    return [WeightedContinuation(*row) for row in rows]


def _are_greedy(
    evaluation: Evaluation, texts: Texts, particles: Weighted, likely: Tensor
) -> Tensor:
    """Compare continuations with the estimated marginals, token by token.

    Only continuations that have been greedy so far are read on: most end at once.
    """
    targets, length = texts.batch.on_host
    greedy = torch.ones_like(length, dtype=torch.bool)
    (rows,) = (length > 0).nonzero(as_tuple=True)
    particles, likely = particles.select(rows), likely[rows]
    for t in range(int(length.max())):
        target = targets[rows, t]
        # The unknown word is many words: its probability is no argument for one.
        greedy[rows] = target == likely
        if evaluation.reader.unknown is not None:
            greedy[rows] &= target != evaluation.reader.unknown
        (on,) = (greedy[rows] & (length[rows] > t + 1)).nonzero(as_tuple=True)
        if not len(on):
            break
        rows = rows[on]
        piece = texts.select(rows).piece(t, t + 1)
        particles = evaluation.method.extend(piece, particles.select(on))
        likely = _most_probable(
            evaluation,
            targets[rows, t],
            particles,
            piece.batch.given,
            piece.keys,
            [start + 1 for start in piece.starts],
        )
    return greedy


def _most_probable(
    evaluation: Evaluation,
    last: Tensor | Sequence[int],
    particles: Weighted,
    given: TokenBatch | None,
    keys: Sequence[int],
    starts: Sequence[int],
) -> Tensor:
    """Return the most probable word after each text, whose last word is ``last``.

    Both are on the host; see ``ReadContexts`` for a model that predicts none.
    """
    model = evaluation.model
    if not offers(model, "next_token"):
        return torch.full((len(last),), -1)
    inputs = torch.as_tensor(last, device=model.device)
    ahead = particles.ahead(model, inputs, given)
    return first_of_best(ahead.next_token(model, keys, starts)).cpu()
