"""Thoughts that a server draws and scores."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

import torch

from lm_latent_eval.scoring.texts import naming
from lm_latent_eval.uniforms import stream_key
from lm_latent_eval.wrappers.cot.drawing import components, key_of, log_mixture
from lm_latent_eval.wrappers.cot.prompts import Ending, Marks, Question, ThoughtOptions
from lm_latent_eval.wrappers.cot.server import Completion, ServedNetwork, ServerError
from lm_latent_eval.wrappers.cot.thinking import Closed, DistinctThoughts
from lm_latent_eval.wrappers.cot.thoughts import Thought, Thoughts

A = TypeVar("A")
R = TypeVar("R")

AT_ONCE = 16
"""Number of concurrent requests; the server batches them."""
SEEDS = 2**31
ROUNDING_A_TOKEN, ROUNDING = 0.05, 1.0
"""Tolerance of log p of a thought at a second reading, in nats: per token, and in all.

16-bit types and other batches move it by a tenth of that."""
COINCIDENCE = math.log(1e-12)
"""Log-probability below which equal draws are no coincidence."""


@dataclass(frozen=True)
class ServedThinker:
    """Thinker over a served network."""

    network: ServedNetwork
    options: ThoughtOptions
    marks: Marks
    reported: dict[tuple[tuple[int, ...], tuple[int, ...]], float] = field(
        default_factory=dict
    )
    """Log p of drawn thoughts as reported by the server, by prompt and thought."""

    def draw(
        self, questions: Sequence[Question], start: int, stop: int
    ) -> list[tuple[Thought, ...]]:
        """Draw thoughts ``start`` to ``stop`` about each question.

        Raises:
            ServerError: If the server fails, lacks a feature, or draws from another
                distribution.
        """
        jobs: list[tuple[int, int, list[int]]] = []
        for index, question in enumerate(questions):
            key = key_of(self.options.seed, question.name)
            chosen = components(key, stop, len(question.hints))
            samples = defaultdict[int, list[int]](list)
            for sample in range(start, stop):
                samples[chosen[sample]].append(sample)
            jobs += [(index, prompt, drawn) for prompt, drawn in samples.items()]

        # An end of several tokens is searched for in the draws.
        ends = self.marks.end_ids if len(self.marks.end_ids) == 1 else ()
        stops = sorted({*self.marks.stops, *ends})

        def work(job: tuple[int, int, list[int]]) -> list[Completion]:
            index, prompt, drawn = job
            question = questions[index]
            name = f"{question.name}/{prompt}/{drawn[0]}"
            with naming(question.queries[0]):
                return self.network.server.draw(
                    question.prompts[prompt],
                    len(drawn),
                    seed=stream_key(self.options.seed, name) % SEEDS,
                    most_tokens=self.options.max_think_tokens,
                    stops=stops,
                )

        thoughts: list[dict[int, Thought]] = [{} for _ in questions]
        completions = _at_once(work, jobs)
        for (index, n, drawn), completed in zip(jobs, completions, strict=True):
            question = questions[index]
            with naming(question.queries[0]):
                _check_independent(completed)
                for sample, completion in zip(drawn, completed, strict=True):
                    prompt = question.prompts[n]
                    self.network.honesty.add(completion, prompt)
                    thoughts[index][sample] = self._thought(completion, prompt)
        return [tuple(each[k] for k in sorted(each)) for each in thoughts]

    def answer(self, question: Question, drawn: Sequence[Thought]) -> Thoughts:
        """Score the thoughts about a question: see ``Thinker.answer``.

        ``greedy`` is False: a server returns no marginals of tokens.

        Raises:
            ServerError: If the server fails, lacks a feature, or contradicts the log p
                that it reported with a draw.
        """
        read = DistinctThoughts(self.marks, self.options, question, drawn)
        answers = [*question.answers.values()]

        def work(thought: Closed) -> tuple[list[float], list[float]]:
            with naming(question.queries[0]):
                return self._read(question, thought, answers)

        scored = _at_once(work, read.closed)
        prompts = torch.tensor([log_p for log_p, _ in scored], dtype=torch.float64)
        read.log_p = prompts[:, 0]
        read.log_q = log_mixture(read.log_p, prompts[:, 1:].T)
        for n, (_, log_p_answers) in enumerate(scored):
            for a, log_p in enumerate(log_p_answers):
                read.log_p_answers[a, n] = log_p
        return read.thoughts((False,) * len(answers))

    def _thought(self, completion: Completion, prompt: tuple[int, ...]) -> Thought:
        for size in range(1, len(completion.tokens) + 1):
            tokens = completion.tokens[:size]
            ending = self.marks.ending(tokens)
            if ending is None and size == self.options.max_think_tokens:
                ending = Ending.TRUNCATED
            if ending is not None:
                self.reported[prompt, tokens] = math.fsum(completion.log_p[:size])
                return Thought(tokens, ending)
        raise ServerError(
            f"{self.network.server.url} ended a thought after {len(completion.tokens)} "
            f"tokens ({completion.reason}), without a token that ends a text and short "
            f"of max_think_tokens={self.options.max_think_tokens}: it stops by a rule "
            "of its own, which would be another model"
        )

    def _read(
        self, question: Question, thought: Closed, answers: Sequence[tuple[int, ...]]
    ) -> tuple[list[float], list[float]]:
        own = question.prompts[0]
        sequences = [prompt + thought.drawn for prompt in question.prompts]
        if thought.answered:
            sequences += [own + thought.read + ids for ids in answers]
        scored = self.network.server.score(sequences, self.network.spelled)
        log_p = []
        for prompt, each in zip(question.prompts, scored, strict=False):
            total = math.fsum(each[len(prompt) - 1 :])
            self._check(
                thought.drawn, total, self.reported.get((prompt, thought.drawn))
            )
            log_p.append(total)
        after = len(own) + len(thought.read) - 1
        return log_p, [math.fsum(each[after:]) for each in scored[len(log_p) :]]

    def _check(self, tokens: tuple[int, ...], read: float, drawn: float | None) -> None:
        if drawn is None:
            return
        if not abs(read - drawn) <= ROUNDING_A_TOKEN * len(tokens) + ROUNDING:
            raise ServerError(
                f"{self.network.server.url} gives a thought of {len(tokens)} tokens "
                f"log p = {drawn:.3f} as it draws it and {read:.3f} as it reads it: it "
                "draws from another distribution than it scores by (a temperature or a "
                "penalty that is its own, or --logprobs-mode processed_logprobs)"
            )


def _check_independent(drawn: Sequence[Completion]) -> None:
    """Refuse one draw that is returned several times.

    Raises:
        ServerError: If all are equal, beyond coincidence.
    """
    if len({each.tokens for each in drawn}) > 1:
        return
    if (len(drawn) - 1) * math.fsum(drawn[0].log_p) < COINCIDENCE:
        raise ServerError(
            f"the server returned one thought {len(drawn)} times (n={len(drawn)}): its "
            "draws are not independent"
        )


def _at_once(work: Callable[[A], R], jobs: Iterable[A]) -> list[R]:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(work, jobs))
