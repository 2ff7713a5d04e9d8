"""Answers questions by thoughts: log p(answer | question), a sum over what is thought.

A question is a context, and its answers are the texts that may follow. All of them are
scored after the same thoughts, so that they differ by what the thoughts say of them and
not by which thoughts were drawn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from lm_latent_eval.estimators import Estimate, MissedSupportError
from lm_latent_eval.latent import Mass
from lm_latent_eval.scoring.answer import Answer
from lm_latent_eval.scoring.decoding import GenerationOptions
from lm_latent_eval.scoring.texts import Query, naming
from lm_latent_eval.wrappers.cot.answering import (
    Closed,
    Greedy,
    answers_after,
    readings,
)
from lm_latent_eval.wrappers.cot.drawing import (
    Draw,
    components,
    draw,
    key_of,
    log_shares,
)
from lm_latent_eval.wrappers.cot.marks import Ending, Marks
from lm_latent_eval.wrappers.cot.options import ThoughtOptions
from lm_latent_eval.wrappers.cot.reading import Reading
from lm_latent_eval.wrappers.cot.thoughts import Thought, Thoughts
from lm_latent_eval.wrappers.network import Network


@dataclass(frozen=True)
class Question:
    """A context with all the answers that are asked about it."""

    name: str
    text: str
    queries: tuple[Query, ...]
    prompts: tuple[tuple[int, ...], ...]
    """Token ids: of the question itself, then of each hint."""
    answers: dict[str, tuple[int, ...]]
    """Distinct answers and their token ids."""


@dataclass
class ThoughtScorer:
    """A ``TextScorer`` of continuations: latents are the thoughts before them."""

    network: Network
    options: ThoughtOptions
    marks: Marks
    most_questions: int
    """Questions whose thoughts are drawn at once; moves no number."""
    most_rows: int
    """Sequences that the network reads at once; moves no number."""
    quiet: bool = True
    kept: list[Thoughts] = field(default_factory=list)
    """The thoughts of every question that was answered."""

    mass = Mass.LESS  # strings can be cut into tokens in more ways than one

    @property
    def fingerprint(self) -> dict[str, Any]:
        """All that a number depends on but the query."""
        return {
            "model": "cot",
            "checkpoint": self.network.digest,
            "dtype": str(self.network.model.dtype),
            "estimator": "is",
            **asdict(self.options),
            "think_start": self.marks.start,
            "think_end": self.marks.end,
            "vocabulary": f"{len(self.network.tokenizer)} tokens",
            "mass": str(self.mass),
        }

    @property
    def about(self) -> dict[str, Any]:
        """What results say."""
        said = self.fingerprint
        ours = {k: v for k, v in said.items() if k not in ("model", "checkpoint")}
        return {**self.network.about, "latent_eval": ours}

    def score_texts(self, queries: Sequence[Query]) -> Iterator[Answer]:
        """Refuse whole texts.

        Raises:
            ValueError: Always.
        """
        raise ValueError(
            "a whole text has no question that thoughts could be about: latent_cot "
            "scores answers after their questions (multiple choice, targets). Use "
            "--model hf for perplexities"
        )

    def score_continuations(self, queries: Sequence[Query]) -> Iterator[Answer]:
        """Yield log p-hat of answers given their questions, a question at a time.

        Raises:
            ValueError: If an answer is empty, a question too long, or none of its
                thoughts closed; the error names the query.
        """
        questions = self._questions(queries)
        with tqdm(
            total=len(questions), desc="Questions", disable=self.quiet
        ) as progress:
            for block in self._blocks(questions):
                for question, drawn in zip(block, self._draw(block), strict=True):
                    thoughts, greedy = self._answered(question, drawn)
                    self.kept.append(thoughts)
                    yield from self._answers(question, thoughts, greedy)
                    progress.update()

    def answer(self, thoughts: Thoughts, answers: Sequence[str]) -> Thoughts:
        """Score other answers after thoughts that were drawn before.

        Args:
            thoughts: From a run with the same network and settings.
            answers: A strings.

        Returns:
            The same thoughts, with what they say of these answers.

        Raises:
            ValueError: If an answer is empty or too long.
        """
        asked = [
            Query(n, thoughts.name, answer, thoughts.question)
            for n, answer in enumerate(answers)
        ]
        [question] = self._questions(asked)
        alone = replace(question, prompts=question.prompts[:1])
        again, _ = self._answered(alone, thoughts.drawn)
        return replace(again, log_p=thoughts.log_p, log_q=thoughts.log_q)

    def generate(
        self, queries: Sequence[tuple[Query, GenerationOptions]]
    ) -> Iterator[tuple[int, str]]:
        """Refuse generation: an answer written after a thought needs no sum.

        Raises:
            ValueError: Always.
        """
        raise ValueError(
            "latent_cot scores answers; to have them written, use --model hf with "
            "enable_thinking=True and think_end_token. A task's targets are scored "
            "with output_type: loglikelihood (docs/thoughts.md)"
        )

    # -- questions --------------------------------------------------------------------

    def _questions(self, queries: Sequence[Query]) -> list[Question]:
        """Put queries about one context together; refuse what cannot be answered."""
        groups: dict[tuple[str, str], list[Query]] = {}
        for query in queries:
            groups.setdefault((query.name, query.context), []).append(query)
        return [
            self._question(name, text, asked) for (name, text), asked in groups.items()
        ]

    def _question(self, name: str, text: str, queries: list[Query]) -> Question:
        answers = {}
        for query in queries:
            with naming(query):
                answers[query.text] = self.marks.answer(query.text)
        with naming(queries[0]):
            prompts = [self.marks.prompt(text)]
            if self.options.proposal == "hinted":
                # In an order of their own, so that that of the queries moves no number.
                prompts += [self.marks.hinted(text, a) for a in sorted(answers)]
            self._check_length(max(map(len, prompts)), max(map(len, answers.values())))
        return Question(name, text, tuple(queries), tuple(prompts), answers)

    def _check_length(self, prompt: int, answer: int) -> None:
        thought = self.options.max_think_tokens + len(self.marks.end_ids)
        if (needed := prompt + thought + answer) > self.network.max_length:
            raise ValueError(
                f"the network reads {self.network.max_length} tokens, and this may "
                f"take {needed}: {prompt} of the prompt, {thought} of a thought, "
                f"{answer} of an answer. Lower max_think_tokens"
            )

    def _blocks(self, questions: list[Question]) -> Iterator[list[Question]]:
        """Yield questions whose thoughts are drawn together, those of a length."""
        order = sorted(questions, key=lambda question: len(question.prompts[0]))
        for start in range(0, len(order), self.most_questions):
            yield order[start : start + self.most_questions]

    # -- thoughts ---------------------------------------------------------------------

    @torch.inference_mode()
    def _draw(self, questions: list[Question]) -> list[tuple[Thought, ...]]:
        """Draw K thoughts about each question."""
        draws = []
        for place, question in enumerate(questions):
            key = key_of(self.options.seed, question.name)
            chosen = components(
                key, self.options.num_samples, len(question.prompts) - 1
            )
            draws += [
                Draw(place, key, sample, question.prompts[component])
                for sample, component in enumerate(chosen)
            ]
        found: list[dict[int, Thought]] = [{} for _ in questions]
        for place, sample, thought in draw(
            draws,
            self._begin,
            self.marks,
            most_tokens=self.options.max_think_tokens,
            most_rows=self.most_rows,
        ):
            found[place][sample] = thought
        return [tuple(each[k] for k in sorted(each)) for each in found]

    def _begin(self, prompts: Tensor) -> Reading:
        return Reading.of(
            self.network.model,
            prompts.to(self.network.device),
            self.options.model_temperature,
        )

    @torch.inference_mode()
    def _answered(
        self, question: Question, drawn: Sequence[Thought]
    ) -> tuple[Thoughts, list[bool]]:
        """Read the thoughts about a question, each distinct one once, and its answers.

        Returns:
            The thoughts, and whether each of the A distinct answers is greedy.
        """
        counts = Counter(drawn)
        distinct = [self._closed(thought) for thought in counts]
        log_counts = torch.tensor([*counts.values()], dtype=torch.float64).log()
        own, *hints = [
            self._begin(torch.tensor([prompt])) for prompt in question.prompts
        ]
        log_p = torch.full((1 + len(hints), len(distinct)), -torch.inf).double()
        for m, hint in enumerate(hints, start=1):
            for places, found, _ in readings(hint, distinct, self.most_rows):
                log_p[m, places] = found.cpu()
        answers = list(question.answers.values())
        log_p_answers = torch.full((len(answers), len(distinct)), -torch.inf).double()
        greedy = Greedy(answers)
        rows = max(self.most_rows // len(answers), 1)
        for places, found, reading in readings(own, distinct, rows):
            log_p[0, places] = found.cpu()
            if distinct[places[0]].answered:
                log_q = self._mixed(log_p[:, places])
                shares = log_p[0, places] - log_q + log_counts[places]
                log_p_answers[:, places] = answers_after(
                    reading, answers, shares.to(found.device), greedy
                ).cpu()
        row = {thought: n for n, thought in enumerate(counts)}
        each = torch.tensor([row[thought] for thought in drawn])
        thoughts = Thoughts(
            question.name,
            question.text,
            tuple(question.answers),
            tuple(drawn),
            log_p[0, each],
            self._mixed(log_p)[each],
            log_p_answers[:, each],
        )
        return thoughts, greedy()

    def _closed(self, thought: Thought) -> Closed:
        closed = thought.ending is Ending.CLOSED or self.options.close == "forced"
        read = self.marks.closed(thought.tokens, thought.ending)
        return Closed(thought.tokens, read, closed)

    @staticmethod
    def _mixed(log_p: Tensor) -> Tensor:
        """Return log q of thoughts from log p under each prompt, (1 + M, D) -> (D,)."""
        if len(log_p) == 1:
            return log_p[0]
        return (log_shares(len(log_p) - 1)[:, None] + log_p).logsumexp(0)

    def _answers(
        self, question: Question, thoughts: Thoughts, greedy: list[bool]
    ) -> Iterator[Answer]:
        index = {answer: n for n, answer in enumerate(thoughts.answers)}
        for query in question.queries:
            row = index[query.text]
            yield Answer(
                query.index,
                self._estimate(query, thoughts, row),
                stream=question.name,
                is_greedy=greedy[row],
                evaluations=len(thoughts.drawn),
            )

    def _estimate(self, query: Query, thoughts: Thoughts, row: int) -> Estimate:
        number = len(self.marks.answer(query.text))
        try:
            return Estimate.from_log_weights(
                thoughts.log_weights[row], num_tokens=number
            )
        except MissedSupportError as err:
            with naming(query):
                raise MissedSupportError(
                    f"none of {len(thoughts.drawn)} thoughts has an answer after it: "
                    "they end at max_think_tokens, or the text ends in them. Raise "
                    "max_think_tokens or num_samples, or choose close=forced, which is "
                    "another model"
                ) from err
