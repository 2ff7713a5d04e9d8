"""A network that thinks about questions, and says what thoughts make of answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from lm_latent_eval.devices import sent
from lm_latent_eval.memory import MemoryLimit
from lm_latent_eval.networks.causal import Reading
from lm_latent_eval.networks.network import Network
from lm_latent_eval.scoring.texts import named
from lm_latent_eval.wrappers.cot.answering import (
    Closed,
    Greedy,
    Marginals,
    alike,
    answers_after,
    read_after,
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
from lm_latent_eval.wrappers.cot.questions import Question
from lm_latent_eval.wrappers.cot.thoughts import Thought, Thoughts

R = TypeVar("R")


@dataclass(frozen=True)
class Thinker:
    """A network under one choice of options."""

    network: Network
    options: ThoughtOptions
    marks: Marks
    most_rows: int
    """Sequences that the network reads at once; moves no number."""
    memory: MemoryLimit
    """What memory was found to hold."""

    def greedy(self, question: Question) -> Greedy:
        """Return what finds greedy answers, before any thought."""
        return Greedy([*question.answers.values()])

    @torch.inference_mode()
    def draw(
        self, questions: Sequence[Question], start: int, stop: int
    ) -> list[tuple[Thought, ...]]:
        """Draw the thoughts about each question from one number to another.

        Raises:
            ValueError: If one does not fit into memory; the error names the query.
        """
        draws = []
        for place, question in enumerate(questions):
            key = key_of(self.options.seed, question.name)
            chosen = components(key, stop, len(question.hints))
            draws += [
                Draw(place, key, sample, question.prompts[chosen[sample]])
                for sample in range(start, stop)
            ]
        found: list[dict[int, Thought]] = [{} for _ in questions]
        for place, sample, thought in draw(
            draws,
            self._begin,
            self.marks,
            most_tokens=self.options.max_think_tokens,
            most_rows=self.most_rows,
            memory=self.memory,
            refusal=lambda draw: self._refusal(questions[draw.place]),
        ):
            found[place][sample] = thought
        return [tuple(each[k] for k in sorted(each)) for each in found]

    @torch.inference_mode()
    def answer(
        self,
        question: Question,
        drawn: Sequence[Thought],
        known: Thoughts | None = None,
        greedy: Greedy | None = None,
    ) -> Thoughts:
        """Read the thoughts about a question, each distinct one once, and its answers.

        Args:
            question: With A distinct answers.
            drawn: K thoughts.
            known: The same thoughts with what an earlier reading said of them.
            greedy: What thoughts before these said of the next tokens.

        Raises:
            ValueError: If one does not fit into memory; the error names the query.
        """
        counts = Counter(drawn)
        row = {thought: n for n, thought in enumerate(counts)}
        each = torch.tensor([row[thought] for thought in drawn])
        distinct = [closed(self.marks, self.options, thought) for thought in counts]
        log_counts = torch.tensor([*counts.values()], dtype=torch.float64).log()
        log_p, log_q = torch.zeros(2, len(distinct), dtype=torch.float64)
        if known is not None:
            log_p[each], log_q[each] = known.log_p, known.log_q
            hinted = log_p.new_empty(0, len(distinct))
        else:
            hinted = self._hinted(question, distinct)
        answers = list(question.answers.values())
        log_p_answers = log_p.new_full((len(answers), len(distinct)), -torch.inf)
        greedy = greedy or self.greedy(question)
        own = self._read(question, question.prompts[0])

        def work(places: Sequence[int]) -> Marginals:
            found, reading = read_after(own, [distinct[place] for place in places])
            if known is None:
                log_p[places] = found.cpu().double()
                log_q[places] = mixed(log_p[places], hinted[:, places])
            if not distinct[places[0]].answered:
                return []
            shares = (log_p - log_q + log_counts)[places]
            after, marginals = answers_after(
                reading, answers, sent(shares, found.device)
            )
            log_p_answers[:, places] = after.cpu().double()
            return marginals

        for _, marginals in self._in_batches(question, distinct, len(answers), work):
            greedy.add(marginals)
        return Thoughts(
            question.name,
            question.text,
            question.hints if known is None else known.hints,
            tuple(question.answers),
            tuple(drawn),
            log_p[each],
            log_q[each],
            log_p_answers[:, each],
            tuple(greedy()),
        )

    def _hinted(self, question: Question, distinct: Sequence[Closed]) -> Tensor:
        """Return log p of thoughts given each hint, nats, (M, D)."""
        hints = [self._read(question, hint) for hint in question.prompts[1:]]
        log_p = torch.zeros(len(hints), len(distinct), dtype=torch.float64)

        def work(m: int, places: Sequence[int]) -> Tensor:
            found, _ = read_after(hints[m], [distinct[place] for place in places])
            return found.cpu().double()

        for m in range(len(hints)):
            batches = self._in_batches(question, distinct, 1, partial(work, m))
            for places, found in batches:
                log_p[m, places] = found
        return log_p

    def _in_batches(
        self,
        question: Question,
        thoughts: Sequence[Closed],
        number: int,
        work: Callable[[Sequence[int]], R],
    ) -> Iterator[tuple[Sequence[int], R]]:
        """Do work on places of thoughts of one length, each read so many times.

        Yields:
            Places, and what came of them.
        """
        fixed = len(question.prompts[0]) + max(map(len, question.answers.values()))
        for places in alike(thoughts):
            yield from self.memory.in_batches(
                places,
                max(self.most_rows // number, 1),
                work,
                lambda place: number * (fixed + len(thoughts[place].read)),
                lambda _: self._refusal(question),
            )

    def _refusal(self, question: Question) -> ValueError:
        return named(
            question.queries[0],
            ValueError(
                "the question with a thought of up to max_think_tokens="
                f"{self.options.max_think_tokens} tokens does not fit into the memory "
                f"of {self.network.device}: lower max_think_tokens, or give another "
                "device"
            ),
        )

    def _read(self, question: Question, prompt: Sequence[int]) -> Reading:
        try:
            return self._begin(torch.tensor([prompt]))
        except torch.OutOfMemoryError as err:
            raise self._refusal(question) from err

    def _begin(self, prompts: Tensor) -> Reading:
        reader = self.network.reader(temperature=self.options.model_temperature)
        return reader.begin(prompts.to(self.network.device))


def closed(marks: Marks, options: ThoughtOptions, thought: Thought) -> Closed:
    """Return a thought as it stands before an answer."""
    answered = thought.ending is Ending.CLOSED or options.close == "forced"
    read = marks.closed(thought.tokens, thought.ending)
    return Closed(thought.tokens, read, answered)


def mixed(log_p: Tensor, hinted: Tensor) -> Tensor:
    """Return log q of thoughts, nats, (R,).

    Args:
        log_p: Given the question, (R,).
        hinted: Given each hint, (M, R).
    """
    if not len(hinted):
        return log_p
    every = torch.cat([log_p[None], hinted])
    return (log_shares(len(hinted))[:, None] + every).logsumexp(0)
