"""A network that thinks about questions, and says what thoughts make of answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lm_latent_eval.devices import sent
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
from lm_latent_eval.wrappers.cot.questions import Question
from lm_latent_eval.wrappers.cot.reading import Reading
from lm_latent_eval.wrappers.cot.thoughts import Thought, Thoughts
from lm_latent_eval.wrappers.network import Network


@dataclass(frozen=True)
class Thinker:
    """A network under one choice of options."""

    network: Network
    options: ThoughtOptions
    marks: Marks
    most_rows: int
    """Sequences that the network reads at once; moves no number."""

    @torch.inference_mode()
    def draw(self, questions: Sequence[Question]) -> list[tuple[Thought, ...]]:
        """Draw K thoughts about each question."""
        draws = []
        for place, question in enumerate(questions):
            key = key_of(self.options.seed, question.name)
            chosen = components(key, self.options.num_samples, len(question.hints))
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

    @torch.inference_mode()
    def answer(
        self,
        question: Question,
        drawn: Sequence[Thought],
        known: Thoughts | None = None,
    ) -> Thoughts:
        """Read the thoughts about a question, each distinct one once, and its answers.

        Args:
            question: With A distinct answers.
            drawn: K thoughts.
            known: The same thoughts with what an earlier reading said of them.
        """
        counts = Counter(drawn)
        row = {thought: n for n, thought in enumerate(counts)}
        each = torch.tensor([row[thought] for thought in drawn])
        distinct = [self._closed(thought) for thought in counts]
        log_counts = torch.tensor([*counts.values()], dtype=torch.float64).log()
        log_p, log_q = torch.zeros(2, len(distinct), dtype=torch.float64)
        if known is not None:
            log_p[each], log_q[each] = known.log_p, known.log_q
            hinted = log_p.new_empty(0, len(distinct))
        else:
            hinted = self._hinted(question, distinct)
        answers = list(question.answers.values())
        log_p_answers = log_p.new_full((len(answers), len(distinct)), -torch.inf)
        greedy = Greedy(answers)
        rows = max(self.most_rows // len(answers), 1)
        own = self._begin(torch.tensor(question.prompts[:1]))
        for places, found, reading in readings(own, distinct, rows):
            if known is None:
                log_p[places] = found.cpu().double()
                log_q[places] = _mixed(log_p[places], hinted[:, places])
            if distinct[places[0]].answered:
                shares = (log_p - log_q + log_counts)[places]
                log_p_answers[:, places] = (
                    answers_after(reading, answers, sent(shares, found.device), greedy)
                    .cpu()
                    .double()
                )
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
        hints = [self._begin(torch.tensor([hint])) for hint in question.prompts[1:]]
        log_p = torch.zeros(len(hints), len(distinct), dtype=torch.float64)
        for m, hint in enumerate(hints):
            for places, found, _ in readings(hint, distinct, self.most_rows):
                log_p[m, places] = found.cpu().double()
        return log_p

    def _begin(self, prompts: Tensor) -> Reading:
        return Reading.of(
            self.network,
            prompts.to(self.network.device),
            self.options.model_temperature,
        )

    def _closed(self, thought: Thought) -> Closed:
        closed = thought.ending is Ending.CLOSED or self.options.close == "forced"
        read = self.marks.closed(thought.tokens, thought.ending)
        return Closed(thought.tokens, read, closed)


def _mixed(log_p: Tensor, hinted: Tensor) -> Tensor:
    """Return log q of thoughts, nats, (R,).

    Args:
        log_p: Given the question, (R,).
        hinted: Given each hint, (M, R).
    """
    if not len(hinted):
        return log_p
    every = torch.cat([log_p[None], hinted])
    return (log_shares(len(hinted))[:, None] + every).logsumexp(0)
