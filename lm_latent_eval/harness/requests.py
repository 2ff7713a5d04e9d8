"""Scores requests in batches: strings in, estimates out.

A text is cut into words once. Contexts that several requests share are read once, and a
word across the border of a context belongs to the continuation. Nothing here depends on
how requests are batched or ordered: random numbers follow from each request's name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from lm_latent_eval.estimators import Estimate, required_num_samples
from lm_latent_eval.harness.answers import ScoredFloat, digest
from lm_latent_eval.harness.decoding import GenerationOptions, Utterance
from lm_latent_eval.harness.options import EvaluationOptions
from lm_latent_eval.inference import ESTIMATORS
from lm_latent_eval.inference.importance import DECISIONS
from lm_latent_eval.inference.particles import PIECE, Particles, next_token
from lm_latent_eval.inference.streams import Streams, stream_key
from lm_latent_eval.models.checkpoint import Checkpoint
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.words import END, START, UNKNOWN

MOST_TEXTS = 64
TABLE = 1 << 25
"""Scores (texts x tokens x words or entities) held at a time."""


@dataclass(frozen=True)
class Request:
    """One question of the harness."""

    index: int
    name: str
    """Task and document: what its random numbers follow from."""
    args: tuple[Any, ...]


@dataclass(frozen=True)
class Text:
    """A request cut into words."""

    request: Request
    context: list[int]
    """Words that are given."""
    words: list[int]
    """Words to be predicted after them."""


class RequestScorer:
    """Scores requests with one model, proposal and estimator."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        proposal: Any,
        options: EvaluationOptions,
        unknown_log_prob: float,
        *,
        batch_size: int | None,
        max_batch_size: int | None,
        quiet: bool,
    ) -> None:
        """Keep what every request needs; ``batch_size`` None: as memory allows."""
        self.model, self.tokenizer = checkpoint.model, checkpoint.tokenizer
        self.proposal, self.options = proposal, options
        self.unknown_log_prob = unknown_log_prob
        self.batch_size, self.quiet = batch_size, quiet
        self.max_batch_size = max_batch_size or MOST_TEXTS
        self.estimator = ESTIMATORS[options.estimator]

    # -- whole texts ------------------------------------------------------------------

    def score_texts(
        self, requests: Sequence[Request]
    ) -> Iterator[tuple[int, ScoredFloat]]:
        """Yield the index and log p-hat of whole texts, their ends included."""
        texts = [
            Text(request, [], [*self.tokenizer(request.args[0]).ids, END])
            for request in requests
        ]
        with self._bar(len(texts), "texts") as bar:
            for num_samples, group in self._by_samples(texts):
                method = self.estimator(num_samples)
                for batch in self._batches(group, num_samples):
                    log_w = method.log_weights(
                        self.model,
                        self.proposal,
                        self._collate(batch),
                        self._keys(batch),
                    )
                    for text, row in zip(batch, log_w.cpu(), strict=True):
                        with naming(text.request):
                            estimate = method.estimate(row, len(text.words))
                        yield text.request.index, self._answer(text, estimate)
                    bar.update(len(batch))

    def _by_samples(self, texts: list[Text]) -> Iterator[tuple[int, list[Text]]]:
        """Group texts by how many samples they need."""
        target, first = self.options.target_stderr, self.options.num_samples
        if target is None:
            yield first, texts
            return
        groups: dict[int, list[Text]] = {}
        for batch in self._batches(texts, first):
            pilot = self.estimator(first).log_weights(
                self.model,
                self.proposal,
                self._collate(batch),
                self._keys(batch, "pilot"),
            )
            most = self.options.max_samples
            for text, row in zip(batch, pilot, strict=True):
                with naming(text.request):
                    number = int(required_num_samples(row, target, maximum=most))
                # Powers of two, so that texts still share batches.
                rounded = min(1 << (number - 1).bit_length(), most)
                groups.setdefault(rounded, []).append(text)
        yield from sorted(groups.items())

    # -- continuations ----------------------------------------------------------------

    def score_continuations(
        self, requests: Sequence[Request]
    ) -> Iterator[tuple[int, ScoredFloat, bool]]:
        """Yield index, log p-hat of the continuation, and whether it is greedy."""
        shared: dict[tuple[str, tuple[int, ...]], list[Text]] = {}
        for request in requests:
            text = self._split(request)
            shared.setdefault((request.name, tuple(text.context)), []).append(text)
        contexts = [texts[0] for texts in shared.values()]
        num_samples = self.options.num_samples
        with self._bar(len(requests), "continuations") as bar:
            for batch in self._batches(contexts, num_samples):
                particles = self._read_contexts(batch)
                # Continuations in batches of their own, each with its context's state.
                of = [
                    (b, text)
                    for b, context in enumerate(batch)
                    for text in shared[context.request.name, tuple(context.context)]
                ]
                for start in range(0, len(of), len(batch)):
                    part = of[start : start + len(batch)]
                    index = torch.tensor([b for b, _ in part], device=self.model.device)
                    yield from self._continue(
                        [t for _, t in part], particles.select(index)
                    )
                    bar.update(len(part))

    def _split(self, request: Request) -> Text:
        context, continuation = request.args
        words = self.tokenizer(context + continuation)
        border = sum(end <= len(context) for end in words.ends)
        return Text(request, words.ids[:border], words.ids[border:])

    def _read_contexts(self, texts: list[Text]) -> Particles:
        """Read the contexts of a batch of requests."""
        particles: Particles = self._method.extend(
            self.model,
            self.proposal,
            self._collate(texts, contexts=True),
            self._keys(texts),
            [0] * len(texts),
            Particles.begin(len(texts), self.model.device),
        )
        return particles

    def _continue(
        self, texts: list[Text], before: Particles
    ) -> Iterator[tuple[int, ScoredFloat, bool]]:
        """Weigh continuations under their contexts' latents."""
        batch = self._collate(texts)
        after = self._method.extend(
            self.model,
            self.proposal,
            batch,
            self._keys(texts),
            [len(text.context) for text in texts],
            before,
        )
        greedy = self._are_greedy(texts, batch, before)
        rows = zip(texts, after.log_w.cpu(), before.log_w.cpu(), strict=True)
        for (text, log_w, prefix), is_greedy in zip(rows, greedy.tolist(), strict=True):
            with naming(text.request):
                estimate = self._method.difference(log_w, prefix, len(text.words))
            yield text.request.index, self._answer(text, estimate), is_greedy

    def _are_greedy(
        self, texts: list[Text], batch: TokenBatch, particles: Particles
    ) -> Tensor:
        """Compare continuations with the estimated marginals, token by token."""
        keys = self._keys(texts)
        greedy = torch.ones(len(texts), dtype=torch.bool, device=self.model.device)
        for t in range(int(batch.length.max())):
            token = batch.piece(t, t + 1)
            greedy &= self._is_next(token, particles, greedy)
            if not bool(greedy.any()):
                break
            starts = [len(text.context) + t for text in texts]
            particles = self._method.extend(
                self.model, self.proposal, token, keys, starts, particles
            )
        return greedy

    def _is_next(
        self, token: TokenBatch, particles: Particles, asked: Tensor
    ) -> Tensor:
        """Whether each text's next token, if it has one, is the most probable one."""
        (rows,) = (asked & (token.length > 0)).nonzero(as_tuple=True)
        result = asked.clone()
        if len(rows):
            log_p = next_token(
                self.model, token.inputs[rows, 0], particles.select(rows)
            )
            target = token.targets[rows, 0]
            # The unknown word is many words: its probability is no argument for one.
            result[rows] = (log_p.argmax(-1) == target) & (target != UNKNOWN)
        return result

    # -- generation -------------------------------------------------------------------

    def generate(self, requests: Sequence[Request]) -> Iterator[tuple[int, str]]:
        """Yield index and continuation of every context."""
        texts = [
            Text(request, self.tokenizer(request.args[0]).ids, [])
            for request in requests
        ]
        with self._bar(len(texts), "generations") as bar:
            for batch in self._batches(texts, self.options.num_samples):
                for text, utterance in zip(batch, self._utter(batch), strict=True):
                    yield text.request.index, utterance
                bar.update(len(batch))

    def _utter(self, texts: list[Text]) -> list[str]:
        keys = self._keys(texts)
        particles = self._read_contexts(texts)
        utterances = [
            Utterance(text.context, GenerationOptions.parse(text.request.args[1]))
            for text in texts
        ]
        chance = Streams(self._keys(texts, "utter"), 1, device=self.model.device)
        read = 0
        while not all(u.finished for u in utterances):
            last = torch.tensor(
                [(u.ids or [START])[-1] for u in utterances], device=self.model.device
            )
            log_p = next_token(self.model, last, particles)
            rows = zip(texts, log_p, utterances, chance(read), strict=True)
            for text, row, utterance, u in rows:
                with naming(text.request):
                    utterance.extend(row, float(u[0, 0]), self.tokenizer)
            batch = TokenBatch.collate(
                [u.ids[-1:] for u in utterances],
                [[self._cost(i) for i in u.ids[-1:]] for u in utterances],
                first=last.tolist(),
                device=self.model.device,
            )
            particles = self._method.extend(
                self.model,
                self.proposal,
                batch,
                keys,
                [len(text.context) + read for text in texts],
                particles,
            )
            read += 1
        return [u.text(self.tokenizer) for u in utterances]

    # -- shared -----------------------------------------------------------------------

    @property
    def _method(self) -> Any:
        return self.estimator(self.options.num_samples)

    def _batches(self, texts: list[Text], num_samples: int) -> Iterator[list[Text]]:
        """Cut into batches of similar length, the longest first."""
        order = sorted(
            texts, key=lambda t: (-len(t.context) - len(t.words), t.request.index)
        )
        while order:
            longest = max(1, min(len(order[0].context) + len(order[0].words), PIECE))
            config = self.model.config
            columns = max(config.vocab_size, getattr(config, "num_entities", 0))
            size = self.batch_size or min(
                self.max_batch_size,
                max(1, DECISIONS // (longest * num_samples)),
                max(1, TABLE // (longest * columns)),
            )
            yield order[:size]
            order = order[size:]

    def _collate(self, texts: Sequence[Text], *, contexts: bool = False) -> TokenBatch:
        ids = [text.context if contexts else text.words for text in texts]
        firsts = [
            START if contexts or not text.context else text.context[-1]
            for text in texts
        ]
        return TokenBatch.collate(
            ids,
            [[self._cost(i) for i in row] for row in ids],
            first=firsts,
            device=self.model.device,
        )

    def _cost(self, word: int) -> float:
        unknown = word == UNKNOWN or word >= self.tokenizer.vocab_size
        return self.unknown_log_prob if unknown else 0.0

    def _keys(self, texts: Iterable[Text], purpose: str = "") -> list[int]:
        return [
            stream_key(self.options.seed, f"{purpose}\0{text.request.name}")
            for text in texts
        ]

    def _answer(self, text: Text, estimate: Estimate) -> ScoredFloat:
        args, stream = text.request.args, f"{self.options.seed}/{text.request.name}"
        return ScoredFloat(estimate, stream, digest("".join(map(str, args))))

    def _bar(self, total: int, unit: str) -> Any:
        title = f"latent likelihoods ({self.options.estimator})"
        return tqdm(total=total, desc=title, unit=f" {unit}", disable=self.quiet)


@contextmanager
def naming(request: Request) -> Iterator[None]:
    """Add to a ``ValueError`` the name and text of the request that it is about."""
    try:
        yield
    except ValueError as err:
        text = " | ".join(str(arg) for arg in request.args)
        shown = text if len(text) <= 80 else f"{text[:80]}..."
        raise type(err)(f"{request.name} ({shown!r}): {err}") from err
