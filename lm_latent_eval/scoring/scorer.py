"""Scores queries in batches: strings in, estimates out.

A text is cut into words once. Contexts that several queries share are read once, and a
word across the border of a context belongs to the continuation. Nothing here depends on
how queries are batched or ordered: random numbers follow from each query's name.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from lm_latent_eval.estimators import Bound, Estimate
from lm_latent_eval.inference import ImportanceSampling, Mixed
from lm_latent_eval.inference.importance import DECISIONS
from lm_latent_eval.inference.particles import PIECE, Particles
from lm_latent_eval.inference.streams import Streams, stream_key
from lm_latent_eval.latent import Mass, SentenceModel, WholeText
from lm_latent_eval.models.checkpoint import Checkpoint
from lm_latent_eval.models.proposals import proposal_named
from lm_latent_eval.models.tuning import Tuned
from lm_latent_eval.scoring.answer import Answer, Part
from lm_latent_eval.scoring.budget import budget_of
from lm_latent_eval.scoring.cost import announce, is_much, recommend
from lm_latent_eval.scoring.decoding import GenerationOptions, Utterance
from lm_latent_eval.scoring.options import ScoringOptions, parse_batch_size
from lm_latent_eval.scoring.texts import Cutter, Query, Text, naming
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.digests import digest
from lm_latent_eval.text.unknown_words import UnknownWords

logger = logging.getLogger(__name__)

MOST_TEXTS = 64
FEW, FEW_SAMPLES = 10, 100
"""Texts, and samples of each, that say how many samples a long run is worth."""
TABLE = 1 << 25
"""Scores (texts x tokens x words) held at a time."""
UNITS = {
    Mass.UNNORMALISED: "nats, up to one unknown constant a text",
    Mass.BY_LENGTH: "nats; sentence ends are not modelled and not counted",
}
"""What a log-likelihood is where it is not that of a whole text, its end included."""


class Scorer:
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
        """Choose what the options leave open.

        Args:
            checkpoint: Model and vocabulary.
            options: How to estimate.
            batch_size: Texts scored together; None and ``auto`` are as many as memory
                allows.
            max_batch_size: The most that they take.
            quiet: Show no progress.

        Raises:
            ValueError: If the model has no such estimator, proposal or policy, or a
                batch size is none.
        """
        self.checkpoint, self.model = checkpoint, checkpoint.model
        self.proposal = proposal_named(
            self.model, options.proposal, options.temperature
        )
        self.reader = checkpoint.encoder(options.unk)
        self.cut = Cutter(
            self.reader,
            self.model.sentence_starts
            if isinstance(self.model, SentenceModel)
            else None,
            ends=self.model.mass in (Mass.ONE, Mass.LESS),
        )
        estimators = self.model.estimators
        self.options = replace(
            options,
            estimator=options.estimator or estimators[0],
            proposal=options.proposal or self.proposal.name,
            unk=str(self.reader.policy),
        )
        filters = "smc" in estimators and not isinstance(self.proposal, WholeText)
        # Whatever latents are drawn from, they are searched for by what knows p best.
        best = proposal_named(self.model, None, 1.0)
        same = self.proposal.name == best.name and options.temperature == 1.0
        searcher = None if same else best
        self.budget = budget_of(
            self.options, estimators, filters=filters, searcher=searcher
        )
        # Whole texts may be read to their ends; contexts stop where they stop.
        self.stepwise = (
            self.proposal.left_to_right
            if isinstance(self.proposal, WholeText)
            else self.proposal
        )
        self.batch_size, self.quiet = parse_batch_size(batch_size), quiet
        self.max_batch_size = parse_batch_size(max_batch_size) or MOST_TEXTS

    @property
    def mass(self) -> Mass:
        """What the probabilities of all texts total."""
        mass: Mass = self.model.mass
        return mass

    @property
    def fingerprint(self) -> dict[str, Any]:
        """All that a number depends on but the query, and what it is of, as JSON."""
        return {
            "model": self.checkpoint.name,
            "checkpoint": self.checkpoint.digest,
            "dtype": str(self.model.dtype),
            "tuned_on": self._tuned.data if self._tuned else None,
            **asdict(self.options),
            "vocabulary": self._vocabulary,
            "tokens_are": self.reader.units
            if self.mass is Mass.BY_LENGTH
            else f"{self.reader.units}, and the end of a text",
            "mass": str(self.mass),
            "scored_as": self._scored_as,
        }

    @property
    def _vocabulary(self) -> str:
        """What tells units apart: those of two checkpoints with it are the same."""
        words = self.checkpoint.words
        return digest(json.dumps(words.vocabulary)) if words else self.checkpoint.digest

    @property
    def _scored_as(self) -> str:
        return "sentences" if self.cut.sentence_starts else "documents"

    @property
    def about(self) -> dict[str, Any]:
        """What results say of model and numbers, as JSON."""
        config = self.model.config
        return {
            "checkpoint_digest": self.checkpoint.digest,
            "model_num_parameters": sum(p.numel() for p in self.model.parameters()),
            "model_dtype": str(self.model.dtype),
            "model_device": str(self.model.device),
            "latent_eval": {
                **asdict(self.options),
                "default_proposal": proposal_named(self.model, None, 1.0).name,
                "tuned_on": f"{len(self._tuned.texts)} texts, digest {self._tuned.data}"
                if self._tuned
                else None,
                "mass": str(self.mass),
                "scored_as": self._scored_as,
                "vocabulary": f"{config.vocab_size} {self.reader.units} to utter, "
                f"{config.num_words - config.vocab_size} more to copy",
                "units": UNITS.get(
                    self.mass, "nats; sentence ends counted in rolling log-likelihoods"
                ),
            },
        }

    # -- whole texts ------------------------------------------------------------------

    def score_texts(self, queries: Sequence[Query]) -> Iterator[Answer]:
        """Yield log p-hat of whole texts, their ends included, as they are found.

        Raises:
            ValueError: If a text cannot be scored; the error names the query.
        """
        self._warn_of_tuning(queries)
        texts = [text for query in queries for text in self.cut.whole(query)]
        self._recommend([text for text in texts if text.words])
        yield from self._whole_queries(self._score_whole(texts), texts)

    def _recommend(self, texts: list[Text]) -> None:
        """Before a long run, say how many samples a few of its texts ask for."""
        method, apart = self._method, len(texts) // FEW
        drawn = isinstance(method, ImportanceSampling | Mixed)
        if not (drawn and apart and is_much(method, [len(t.words) for t in texts])):
            return
        small = replace(method, num_samples=min(method.num_samples, FEW_SAMPLES))
        few = self._weigh(small, texts[::apart][:FEW], "recommend")
        recommend([small.estimate(w, len(t.words)) for t, w in few], len(texts))

    def _score_whole(self, texts: list[Text]) -> Iterator[Part]:
        name = self.options.estimator or ""
        for text in texts:
            if not text.words:  # a document without sentences
                known = Estimate.exact(text.log_spacing, num_tokens=0, estimator=name)
                yield Part(text, known)
        texts = [text for text in texts if text.words]
        parts = self.estimate(texts)
        with self._bar(len(texts), "texts") as bar:
            for part in parts:
                yield part
                bar.update()

    def estimate(self, texts: list[Text]) -> Iterator[Part]:
        """Estimate whole texts, their white space included.

        Args:
            texts: As ``cut.whole`` returns them, none without words.

        Returns:
            Texts with their estimates, as they are found.

        Raises:
            ValueError: If a text cannot be scored; the error names the query.
        """
        return self._estimates(list(self.budget.spend(texts, self._weigh)))

    def _estimates(self, groups: list[tuple[Any, list[Text]]]) -> Iterator[Part]:
        again: dict[Any, list[Text]] = {}
        spent: dict[str, int] = {}
        for method, group in groups:
            for text, log_w in self._weigh(method, group) if group else ():
                spent[text.name] = self.budget.pilot(text)
                if (instead := self.budget.instead(method, log_w)) is None:
                    yield self._part(method, text, log_w, spent)
                else:
                    spent[text.name] += method.num_samples
                    again.setdefault(instead, []).append(text)
        announce([(m, [len(t.words) for t in group]) for m, group in again.items()])
        for method, group in again.items():
            for text, log_w in self._weigh(method, group, "again"):
                yield self._part(method, text, log_w, spent)

    def _part(
        self, method: Any, text: Text, log_w: Tensor, spent: dict[str, int]
    ) -> Part:
        with naming(text.query):
            estimate = method.estimate(log_w, len(text.words))
        if self.options.bounds == "both" and estimate.stderr is not None:
            [(_, others)] = self._weigh(method, [text], "psi")
            psi = method.estimate(others, len(text.words)).log_evidence
            estimate = estimate.bounded_above(psi)
            spent[text.name] += method.num_samples
        return Part(text, estimate, pilot=spent[text.name])

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
        return self._weigh(self._method, texts)

    def _weigh(
        self, method: Any, texts: list[Text], purpose: str = ""
    ) -> Iterator[tuple[Text, Tensor]]:
        for batch in self._batches(texts, method.num_samples):
            log_w = self._log_weights(method, batch, purpose).cpu()
            for text, row in zip(batch, log_w, strict=True):
                yield text, row + text.log_spacing

    def _log_weights(self, method: Any, texts: list[Text], purpose: str) -> Tensor:
        """Weigh the latents of whole texts, (B, K)."""

        def weigh(some: list[Text]) -> Tensor:
            log_w: Tensor = method.log_weights(
                self.model,
                self.proposal,
                self._collate(some),
                self._keys(some, purpose),
            )
            return log_w

        try:
            return weigh(texts)
        except ValueError:
            for text in texts:  # whose fault is it?
                with naming(text.query):
                    weigh([text])
            raise

    # -- continuations ----------------------------------------------------------------

    def score_continuations(self, queries: Sequence[Query]) -> Iterator[Answer]:
        """Yield log p-hat of texts after their contexts, as they are found.

        Raises:
            ValueError: If the model is unnormalised, or a text cannot be scored.
        """
        self._refuse_unnormalised("a continuation after its context")
        if self.options.target_stderr is not None:
            logger.warning(
                "target_stderr is for whole texts: continuations take num_samples=%d",
                self.options.num_samples,
            )
        texts = [text for query in queries for text in self.cut.continuation(query)]
        yield from self._whole_queries(self._score_after_contexts(texts), texts)

    def _score_after_contexts(self, texts: list[Text]) -> Iterator[Part]:
        shared: dict[Hashable, list[Text]] = {}
        for text in texts:
            shared.setdefault(text.given, []).append(text)
        contexts = [texts[0] for texts in shared.values()]
        announce([(self._method, [t.num_words for t in texts])], stepwise=True)
        num_samples = self._method.num_samples
        with self._bar(len(texts), "continuations") as bar:
            for batch in self._batches(contexts, num_samples):
                particles = self._read_contexts(batch)
                last = [self._last(context) for context in batch]
                likely = self._most_probable(last, particles)
                # Continuations in batches of their own, each with its context's state.
                place = {context.given: b for b, context in enumerate(batch)}
                after = [text for context in batch for text in shared[context.given]]
                for part in self._batches(after, num_samples):
                    index = torch.tensor(
                        [place[text.given] for text in part], device=self.model.device
                    )
                    yield from self._continue(
                        part, particles.select(index), likely[index]
                    )
                    bar.update(len(part))

    def _read_contexts(self, texts: list[Text]) -> Particles:
        """Read the contexts of a batch of queries."""
        particles: Particles = self._method.extend(
            self.model,
            self.stepwise,
            self._collate(texts, contexts=True),
            self._keys(texts),
            [0] * len(texts),
            Particles.begin(len(texts), self.model.device),
        )
        return particles

    def _continue(
        self, texts: list[Text], before: Particles, likely: Tensor
    ) -> Iterator[Part]:
        """Weigh continuations under their contexts' latents.

        Args:
            texts: B queries.
            before: Their contexts.
            likely: The most probable word after each context, (B,).
        """
        batch = self._collate(texts)
        after = self._method.extend(
            self.model,
            self.stepwise,
            batch,
            self._keys(texts),
            [len(text.context) for text in texts],
            before,
        )
        greedy = self._are_greedy(texts, batch, before, likely)
        rows = zip(texts, after.log_w.cpu(), before.log_w.cpu(), strict=True)
        for (text, log_w, prefix), is_greedy in zip(rows, greedy.tolist(), strict=True):
            with naming(text.query):
                estimate = self._method.difference(
                    log_w + text.log_spacing, prefix, len(text.words)
                )
            yield Part(text, estimate, is_greedy)

    def _are_greedy(
        self, texts: list[Text], batch: TokenBatch, particles: Particles, likely: Tensor
    ) -> Tensor:
        """Compare continuations with the estimated marginals, token by token.

        Only those are read on that have been greedy so far: most end at once.
        """
        keys, starts = self._keys(texts), [len(text.context) for text in texts]
        greedy = torch.ones_like(batch.length, dtype=torch.bool)
        (rows,) = (batch.length > 0).nonzero(as_tuple=True)
        particles, likely = particles.select(rows), likely[rows]
        for t in range(int(batch.length.max())):
            target = batch.targets[rows, t]
            # The unknown word is many words: its probability is no argument for one.
            greedy[rows] = target == likely
            if self.reader.unknown is not None:
                greedy[rows] &= target != self.reader.unknown
            (on,) = (greedy[rows] & (batch.length[rows] > t + 1)).nonzero(as_tuple=True)
            if not len(on):
                break
            rows = rows[on]
            particles = self._method.extend(
                self.model,
                self.stepwise,
                batch.select(rows).piece(t, t + 1),
                [keys[b] for b in rows.tolist()],
                [starts[b] + t for b in rows.tolist()],
                particles.select(on),
            )
            likely = self._most_probable(batch.targets[rows, t], particles)
        return greedy

    def _most_probable(
        self, last: Tensor | Sequence[int], particles: Particles
    ) -> Tensor:
        """Return the most probable word after each text, whose last word is given."""
        inputs = torch.as_tensor(last, device=self.model.device)
        return particles.next_token(self.model, inputs).argmax(-1)

    # -- generation -------------------------------------------------------------------

    def generate(
        self, queries: Sequence[tuple[Query, GenerationOptions]]
    ) -> Iterator[tuple[int, str]]:
        """Yield index and continuation of every query's context.

        Raises:
            ValueError: If the model is unnormalised.
        """
        self._refuse_unnormalised("the next word")
        options = {query.index: how for query, how in queries}
        texts = [self.cut.continuation(query)[-1] for query, _ in queries]
        words = [len(t.context) + options[t.query.index].max_tokens for t in texts]
        announce([(self._method, words)])
        with self._bar(len(texts), "generations") as bar:
            for batch in self._batches(texts, self._method.num_samples):
                written = self._utter(batch, options)
                for text, utterance in zip(batch, written, strict=True):
                    yield text.query.index, utterance
                bar.update(len(batch))

    def _utter(
        self, texts: list[Text], options: dict[int, GenerationOptions]
    ) -> list[str]:
        keys = self._keys(texts)
        particles = self._read_contexts(texts)
        utterances = [
            Utterance(text.context, options[text.query.index]) for text in texts
        ]
        chance = Streams(self._keys(texts, "utter"), 1, device=self.model.device)
        read = 0
        while not all(u.finished for u in utterances):
            last = torch.tensor(
                [(u.ids or [self.reader.start])[-1] for u in utterances],
                device=self.model.device,
            )
            log_p = particles.next_token(self.model, last)
            rows = zip(texts, log_p, utterances, chance(read), strict=True)
            for text, row, utterance, u in rows:
                with naming(text.query):
                    utterance.extend(row, float(u[0, 0]), self.reader)
            batch = TokenBatch.collate(
                [u.ids[-1:] for u in utterances],
                [self.reader.price(u.ids[-1:]) for u in utterances],
                first=last.tolist(),
                spelled=self._spelled,
                device=self.model.device,
            )
            particles = self._method.extend(
                self.model,
                self.stepwise,
                batch,
                keys,
                [len(text.context) + read for text in texts],
                particles,
            )
            read += 1
        return [u.text(self.reader) for u in utterances]

    # -- shared -----------------------------------------------------------------------

    @property
    def _tuned(self) -> Tuned | None:
        """What the proposal was tuned on, if it was."""
        tuned: Tuned | None = self.model.tuned.get(self.proposal.name)
        return tuned

    def _warn_of_tuning(self, queries: Sequence[Query]) -> None:
        found = sum(self._was_tuned_on(query) for query in queries)
        if found:
            logger.warning(
                "the %s proposal was tuned on %d of these texts: no certificate holds "
                "for them",
                self.proposal.name,
                found,
            )

    def _was_tuned_on(self, query: Query) -> bool:
        """Whether the proposal knows a text, whose certificate is void then."""
        return self._tuned is not None and digest(query.text) in self._tuned.texts

    @property
    def _method(self) -> Any:
        return self.budget.method

    def _batches(self, texts: list[Text], num_samples: int) -> Iterator[list[Text]]:
        """Cut into batches of similar length, the longest first."""
        order = sorted(texts, key=lambda t: (-t.num_words, t.query.index))
        while order:
            longest = max(1, min(order[0].num_words, PIECE))
            size = self.batch_size or min(
                self.max_batch_size,
                max(1, DECISIONS // (longest * num_samples)),
                max(1, TABLE // (longest * self.model.config.vocab_size)),
            )
            # Padding at most doubles the pieces: a long text goes with long ones.
            # One of several pieces is read otherwise than one of a single piece.
            pieces = -(-order[0].num_words // PIECE)
            enough = max(pieces / 2, min(pieces, 2))
            similar = (t for t in order[:size] if -(-t.num_words // PIECE) >= enough)
            yield (batch := list(similar))
            order = order[len(batch) :]

    def _collate(self, texts: Sequence[Text], *, contexts: bool = False) -> TokenBatch:
        return TokenBatch.collate(
            [text.context if contexts else text.words for text in texts],
            [text.context_costs if contexts else text.word_costs for text in texts],
            first=[
                self.reader.start if contexts else self._last(text) for text in texts
            ],
            spelled=self._spelled,
            device=self.model.device,
        )

    def _last(self, text: Text) -> int:
        """Return the word before a continuation."""
        return text.context[-1] if text.context else self.reader.start

    @property
    def _spelled(self) -> bool:
        return self.reader.policy is UnknownWords.SPELLED

    def _keys(self, texts: Iterable[Text], purpose: str = "") -> list[int]:
        return [
            stream_key(self.options.seed, f"{purpose}\0{text.name}") for text in texts
        ]

    def _whole_queries(
        self, parts: Iterable[Part], texts: Iterable[Text]
    ) -> Iterator[Answer]:
        """Put the sentences of each query together, as soon as all are there."""
        missing = Counter(text.query.index for text in texts)
        found: dict[int, list[Part]] = {}
        for part in parts:
            query = part.text.query
            together = found.setdefault(query.index, [])
            together.append(part)
            if len(together) == missing[query.index]:
                stream = f"{self.options.seed}/{query.name}"
                answer = Answer.of(found.pop(query.index), stream)
                bound = answer.estimate.bound
                if self.model.mass is Mass.UNNORMALISED:
                    bound = Bound.UNNORMALISED
                elif bound is Bound.STOCHASTIC_LOWER and self._was_tuned_on(query):
                    bound = Bound.NONE
                estimate = replace(
                    answer.estimate,
                    bound=bound,
                    upper=None if bound is Bound.NONE else answer.estimate.upper,
                )
                yield replace(answer, estimate=estimate)

    def _refuse_unnormalised(self, what: str) -> None:
        if self.model.mass is Mass.UNNORMALISED:
            raise ValueError(
                f"an unnormalised model gives {what} no probability: it scores whole "
                "sentences, and only differences between sentences of one length mean "
                "something (contrastive entropy)"
            )

    def _bar(self, total: int, unit: str) -> Any:
        title = f"latent likelihoods ({self.options.estimator})"
        return tqdm(total=total, desc=title, unit=f" {unit}", disable=self.quiet)
