"""Thoughts that a server draws and scores."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

import torch

from lm_latent_eval.networks.served import Completion, Place, ServedNetwork, ServerError
from lm_latent_eval.scoring.texts import naming
from lm_latent_eval.uniforms import stream_key
from lm_latent_eval.wrappers.cot.drawing import components, key_of
from lm_latent_eval.wrappers.cot.prompts import Ending, Marks, Question, ThoughtOptions
from lm_latent_eval.wrappers.cot.thinking import Closed, DistinctThoughts, mixed
from lm_latent_eval.wrappers.cot.thoughts import Thought, Thoughts

A = TypeVar("A")
R = TypeVar("R")

AT_ONCE = 16
"""Requests that a server has at a time; it batches them."""
SEEDS = 2**31
ROUNDING_A_TOKEN, ROUNDING = 0.05, 1.0
"""Nats by which log p of a thought may differ from a second reading, a token and in
all: 16 bits and other batches move it by a tenth of that."""
COINCIDENCE = math.log(1e-12)
"""Log-probability of a coincidence that is none."""


class ServedGreedy:
    """Which answers are surely the argmax of the estimated next-token marginals.

    A server tells the most probable token of each place and not all of them.
    """

    def __init__(self, answers: Sequence[Sequence[int]]) -> None:
        """Begin with no thought.

        Args:
            answers: Token ids of A answers.
        """
        self._own = [[0.0] * len(ids) for ids in answers]
        self._all = [[0.0] * len(ids) for ids in answers]
        self._others = [
            [defaultdict[int, float](float) for _ in ids] for ids in answers
        ]
        self._answers = answers

    def add(self, answer: int, share: float, places: Sequence[Place]) -> None:
        """Take in what a thought makes of an answer.

        Args:
            answer: Its place.
            share: What the thought counts among all.
            places: Of the answer's tokens.
        """
        for n, (token, place) in enumerate(
            zip(self._answers[answer], places, strict=True)
        ):
            self._all[answer][n] += share
            self._own[answer][n] += share * math.exp(place.log_p)
            if place.best != token:
                chance = share * math.exp(place.log_best)
                self._others[answer][n][place.best] += chance
            share *= math.exp(place.log_p)

    def __call__(self) -> list[bool]:
        """Return whether each answer is greedy, where that can be told.

        Raises:
            ServerError: If there is one answer alone, and it cannot.
        """
        return [self._is_greedy(answer) for answer in range(len(self._answers))]

    def _is_greedy(self, answer: int) -> bool:
        sure = True
        for own, total, others in zip(
            self._own[answer], self._all[answer], self._others[answer], strict=True
        ):
            if others and max(others.values()) > own:
                return False  # whatever else is not told
            # Where others lead somewhere, a half is certain to be more than theirs.
            sure &= own > total / 2 or not others
        if not sure and len(self._answers) == 1:
            raise ServerError(
                "whether the target is greedy is not told by the most probable token "
                "of each place alone, which is all that is asked of a server: score "
                "targets without base_url, or as options of a choice"
            )
        return sure


@dataclass(frozen=True)
class ServedThinker:
    """A served network under one choice of options."""

    network: ServedNetwork
    options: ThoughtOptions
    marks: Marks
    said: dict[tuple[tuple[int, ...], tuple[int, ...]], float] = field(
        default_factory=dict
    )
    """Of a prompt and a thought: log p of the thought, as it was drawn."""

    def greedy(self, question: Question) -> ServedGreedy:
        """Return what finds greedy answers, before any thought."""
        return ServedGreedy([*question.answers.values()])

    def draw(
        self, questions: Sequence[Question], start: int, stop: int
    ) -> list[tuple[Thought, ...]]:
        """Draw the thoughts about each question from one number to another.

        Raises:
            ServerError: If the server fails, lacks something, or draws what is not of
                the model's own distribution.
        """
        asked: list[tuple[int, int, list[int]]] = []
        for place, question in enumerate(questions):
            key = key_of(self.options.seed, question.name)
            chosen = components(key, stop, len(question.hints))
            samples = defaultdict[int, list[int]](list)
            for sample in range(start, stop):
                samples[chosen[sample]].append(sample)
            asked += [(place, which, some) for which, some in samples.items()]

        def work(job: tuple[int, int, list[int]]) -> list[Completion]:
            place, which, some = job
            question = questions[place]
            name = f"{question.name}/{which}/{some[0]}"
            with naming(question.queries[0]):
                return self.network.server.draw(
                    question.prompts[which],
                    len(some),
                    seed=stream_key(self.options.seed, name) % SEEDS,
                    most_tokens=self.options.max_think_tokens,
                    stops=self._stops,
                )

        found: list[dict[int, Thought]] = [{} for _ in questions]
        for (place, which, some), drawn in zip(
            asked, _at_once(work, asked), strict=True
        ):
            question = questions[place]
            with naming(question.queries[0]):
                _check_independent(drawn)
                for sample, completion in zip(some, drawn, strict=True):
                    self.network.honesty.add(completion)
                    found[place][sample] = self._thought(
                        completion, question.prompts[which]
                    )
        return [tuple(each[k] for k in sorted(each)) for each in found]

    def answer(
        self,
        question: Question,
        drawn: Sequence[Thought],
        known: Thoughts | None = None,
        greedy: ServedGreedy | None = None,
    ) -> Thoughts:
        """Have the thoughts about a question read, each distinct one once.

        Args:
            question: With A distinct answers.
            drawn: K thoughts.
            known: The same thoughts with what an earlier reading said of them.
            greedy: What thoughts before these said of the next tokens.

        Raises:
            ServerError: If the server fails, lacks something, or says otherwise of a
                thought than when it drew it.
        """
        read = DistinctThoughts(self.marks, self.options, question, drawn, known)
        answers = [*question.answers.values()]
        greedy = greedy or self.greedy(question)

        def work(thought: Closed) -> tuple[list[float], list[list[Place]]]:
            with naming(question.queries[0]):
                return self._read(question, thought, answers)

        said = _at_once(work, read.closed)
        if known is None:
            prompts = torch.tensor([log_p for log_p, _ in said], dtype=torch.float64)
            read.log_p, read.log_q = (
                prompts[:, 0],
                mixed(prompts[:, 0], prompts[:, 1:].T),
            )
        shares = read.log_shares.exp().tolist()
        for n, (share, (_, places)) in enumerate(zip(shares, said, strict=True)):
            for a, some in enumerate(places):
                read.log_p_answers[a, n] = math.fsum(place.log_p for place in some)
                greedy.add(a, share, some)
        return read.thoughts(tuple(greedy()))

    @property
    def _stops(self) -> list[int]:
        """Tokens after which nothing more of a thought can come.

        One end of several tokens is looked for in what was drawn.
        """
        ends = self.marks.end_ids if len(self.marks.end_ids) == 1 else ()
        return sorted({*self.marks.stops, *ends})

    def _thought(self, completion: Completion, prompt: tuple[int, ...]) -> Thought:
        """Cut what was drawn where the thought ends."""
        for size in range(1, len(completion.tokens) + 1):
            tokens = completion.tokens[:size]
            ending = self.marks.ending(tokens)
            if ending is None and size == self.options.max_think_tokens:
                ending = Ending.TRUNCATED
            if ending is not None:
                self.said[prompt, tokens] = math.fsum(completion.log_p[:size])
                return Thought(tokens, ending)
        raise ServerError(
            f"{self.network.server.url} ended a thought after {len(completion.tokens)} "
            f"tokens ({completion.reason}), without a token that ends a text and short "
            f"of max_think_tokens={self.options.max_think_tokens}: it stops by a rule "
            "of its own, which would be another model"
        )

    def _read(
        self, question: Question, thought: Closed, answers: Sequence[tuple[int, ...]]
    ) -> tuple[list[float], list[list[Place]]]:
        """Return log p of a thought after every prompt, and what is said of answers."""
        own = question.prompts[0]
        sequences = [prompt + thought.drawn for prompt in question.prompts]
        if thought.answered:
            sequences += [own + thought.read + ids for ids in answers]
        found = self.network.server.score(sequences)
        log_p = []
        for prompt, places in zip(question.prompts, found, strict=False):
            total = math.fsum(place.log_p for place in places[len(prompt) - 1 :])
            self._check(thought.drawn, total, self.said.get((prompt, thought.drawn)))
            log_p.append(total)
        after = len(own) + len(thought.read) - 1
        return log_p, [places[after:] for places in found[len(log_p) :]]

    def _check(self, tokens: tuple[int, ...], read: float, said: float | None) -> None:
        """Refuse a server whose draws and readings are of two models."""
        if said is None:
            return
        if not abs(read - said) <= ROUNDING_A_TOKEN * len(tokens) + ROUNDING:
            raise ServerError(
                f"{self.network.server.url} gives a thought of {len(tokens)} tokens "
                f"log p = {said:.3f} as it draws it and {read:.3f} as it reads it: it "
                "draws from another distribution than it scores by (a temperature or a "
                "penalty that is its own, or --logprobs-mode processed_logprobs)"
            )


def _check_independent(drawn: Sequence[Completion]) -> None:
    """Refuse one draw that is returned several times.

    Raises:
        ServerError: If all are equal, and nobody would expect that.
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
