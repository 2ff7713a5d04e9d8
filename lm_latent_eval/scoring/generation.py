"""Generation of continuations, greedy or sampled, word by word until a stop string."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from lm_latent_eval.estimators.choices import first_of_best
from lm_latent_eval.estimators.estimate import MissedSupportError
from lm_latent_eval.inference.streams import Streams, invert_cdf
from lm_latent_eval.options import at_least_0, whole
from lm_latent_eval.scoring.budget import announce
from lm_latent_eval.scoring.evaluation import Evaluation
from lm_latent_eval.scoring.texts import Text, naming
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.encoder import Encoder

logger = logging.getLogger(__name__)

MOST_TOKENS = 256


@dataclass(frozen=True)
class GenerationOptions:
    """The harness's ``generation_kwargs``."""

    until: tuple[str, ...]
    max_tokens: int
    temperature: float
    """0 is greedy decoding."""

    def __post_init__(self) -> None:
        if not all(self.until):
            raise ValueError(
                f"until={self.until!r}: expected strings to stop before, none empty"
            )

    @classmethod
    def parse(cls, kwargs: object) -> GenerationOptions:
        """Read them.

        Raises:
            ValueError: If they are no dictionary, or a value is out of its range.
        """
        if not isinstance(kwargs, dict):
            raise ValueError(
                f"generation arguments {kwargs!r}: expected a dictionary such as "
                '{"until": ["."], "max_gen_toks": 32}'
            )
        name = "max_gen_toks" if "max_gen_toks" in kwargs else "max_new_tokens"
        names = {"until", name, "do_sample", "temperature"}
        if ignored := sorted(kwargs.keys() - names):
            logger.warning(
                "generation arguments without effect: %s", ", ".join(ignored)
            )
        until = kwargs.get("until") or []
        until = [until] if isinstance(until, str) else until
        if not (
            isinstance(until, list | tuple) and all(isinstance(s, str) for s in until)
        ):
            raise ValueError(f"until={until!r}: expected a string or a list of strings")
        max_tokens = whole(name, kwargs.get(name, MOST_TOKENS), 1)
        sampling = kwargs.get("do_sample")
        temperature = at_least_0(
            "temperature", kwargs.get("temperature", 1.0 if sampling else 0.0)
        )
        if sampling is not None and not sampling:
            temperature = 0.0
        return cls(tuple(stop for stop in until if stop), max_tokens, temperature)

    def stopped(self, text: str) -> tuple[str, bool]:
        """Return a text up to its first stop string, and whether it has one."""
        cuts = [start for stop in self.until if (start := text.find(stop)) >= 0]
        return text[: min(cuts, default=len(text))], bool(cuts)


@dataclass
class Utterance:
    """A continuation during generation."""

    context: list[int]
    options: GenerationOptions
    encoder: Encoder
    after_gap: bool = False
    """Whether the context's string ends in white space."""
    words: list[int] = field(default_factory=list)
    ended: bool = False

    def __post_init__(self) -> None:
        written = self.encoder.decode(self.context)
        self._begin = len(written)
        # Encoders of words leave out the white space at the end, and write a gap there.
        self._gap = " " if self.after_gap and not written[-1:].isspace() else ""

    @property
    def ids(self) -> list[int]:
        """Context and continuation."""
        return self.context + self.words

    @property
    def finished(self) -> bool:
        return self.ended or len(self.words) >= self.options.max_tokens

    def extend(self, log_p: Tensor, u: float) -> None:
        """Add a word.

        Args:
            log_p: Log-probabilities of the words, (number of words,).
            u: A random number in (0, 1).

        Raises:
            MissedSupportError: If no latent of the text so far has a positive weight.
        """
        if self.finished:
            return
        log_p = log_p.cpu().double().clone()
        if self.encoder.unknown is not None:
            log_p[self.encoder.unknown] = -torch.inf  # it has no spelling to write
        if not bool((log_p > -torch.inf).any()):
            raise MissedSupportError(
                "the proposal misses the model's support: no latent found of the text "
                "so far has a positive weight, so no next word can be predicted. Draw "
                "more samples, or use a proposal that covers the model's latents"
            )
        if self.options.temperature == 0:
            word = int(first_of_best(log_p))
        else:
            worse = (log_p - log_p.max()) / self.options.temperature
            word = int(invert_cdf(worse.softmax(-1), log_p.new_tensor(u)))
        if word == self.encoder.end:
            self.ended = True
            return
        self.words.append(word)
        if self.options.until:  # without, it is written once, at its end
            _, self.ended = self.options.stopped(self._written())

    def text(self) -> str:
        """Return the continuation up to the first stop string."""
        text, _ = self.options.stopped(self._written())
        return text

    def _written(self) -> str:
        return self.encoder.decode(self.ids)[self._begin :].removeprefix(self._gap)


def generate(
    evaluation: Evaluation, texts: list[Text], options: Mapping[int, GenerationOptions]
) -> Iterator[tuple[int, str]]:
    """Continue contexts.

    Args:
        evaluation: Of the model.
        texts: Whose contexts are continued.
        options: Of each query, by its index.

    Yields:
        The query's index and what was written.

    Raises:
        ValueError: If the model is unnormalised, or predicts no word.
    """
    evaluation.refuse_parts("the next word")
    words = [len(t.context) + options[t.query.index].max_tokens for t in texts]
    announce(evaluation.method, words)
    with evaluation.bar(len(texts), "generations") as bar:
        write = partial(_written, evaluation, options)
        for batch, written in evaluation.in_batches(texts, write):
            yield from written
            bar.update(len(batch))


def _written(
    evaluation: Evaluation,
    options: Mapping[int, GenerationOptions],
    texts: Sequence[Text],
) -> list[tuple[int, str]]:
    """Continue a batch of contexts, dropping finished ones."""
    texts_written = []
    model, reader = evaluation.model, evaluation.reader
    particles, given = evaluation.read_contexts(texts)
    writing = [
        (
            text,
            Utterance(
                text.context,
                options[text.query.index],
                reader,
                after_gap=text.query.context[-1:].isspace(),
            ),
        )
        for text in texts
    ]
    read = 0
    while writing:
        now = [text for text, _ in writing]
        last = torch.tensor(
            [(u.ids or [reader.start])[-1] for _, u in writing], device=model.device
        )
        keys, starts = evaluation.keys(now), [len(text.context) + read for text in now]
        particles = particles.ahead(model, last, given)
        log_p = particles.next_token(model, keys, starts)
        chance = Streams(evaluation.keys(now, "utter"), 1)(read)
        for (text, utterance), row, u in zip(writing, log_p, chance, strict=True):
            with naming(text.query):
                utterance.extend(row, float(u[0, 0]))
        for text, utterance in writing:
            if utterance.finished:
                texts_written.append((text.query.index, utterance.text()))
        if all(utterance.finished for _, utterance in writing):
            break
        # The finished ones have no word to go on with, and leave the batch after it.
        added = [[] if u.finished else u.ids[-1:] for _, u in writing]
        batch = TokenBatch.collate(
            added,
            [reader.price(ids) for ids in added],
            first=last.tolist(),
            spelled=evaluation.spelled,
            given=evaluation.conditions(now),
            device=model.device,
        )
        going_on = evaluation.continued(now, batch, starts)
        particles = evaluation.method.extend(going_on, particles)
        rows = [row for row, (_, u) in enumerate(writing) if not u.finished]
        particles = particles.select(torch.tensor(rows))
        given = given and given.select(torch.tensor(rows))
        writing = [writing[row] for row in rows]
        read += 1
    return texts_written
