"""Thoughts of a local network, and its answers after them.

Thoughts of one length are read together without padding. Each is read once; its keys
and values serve every answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import TypeAlias, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from lm_latent_eval.devices import MemoryLimit, sent, sent_uniforms, wide_zeros
from lm_latent_eval.inference.streams import invert_cdf
from lm_latent_eval.networks.causal import Reading
from lm_latent_eval.networks.network import Network
from lm_latent_eval.scoring.texts import named
from lm_latent_eval.uniforms import uniforms
from lm_latent_eval.wrappers.cot.drawing import components, key_of, log_mixture
from lm_latent_eval.wrappers.cot.prompts import (
    Ending,
    Key,
    Marks,
    Question,
    ThoughtOptions,
)
from lm_latent_eval.wrappers.cot.thoughts import Thought, Thoughts

Marginals: TypeAlias = list[tuple[int, Tensor]]
"""Position, and log-sums over thoughts of the next-token distributions from it, nats,
``(A, positions, V)``, up to a constant."""
R = TypeVar("R")


@dataclass(frozen=True)
class Draw:
    question_index: int
    """Index of its question."""
    key: int
    sample: int
    prompt: tuple[int, ...]


@dataclass(frozen=True)
class Closed:
    """A distinct thought before an answer."""

    drawn: tuple[int, ...]
    """Tokens as drawn, whose log p counts."""
    read: tuple[int, ...]
    """Tokens before the answer: as drawn, or closed by force."""
    answered: bool


def read_after(prompt: Reading, thoughts: Sequence[Closed]) -> tuple[Tensor, Reading]:
    """Read R distinct thoughts of one length after a prompt of one row.

    Returns:
        Their log p given the prompt, nats, (R,), and the reading after them.
    """
    device = prompt.log_p.device
    reading = prompt.rows(torch.zeros(len(thoughts), dtype=torch.long, device=device))
    drawn = torch.tensor([thought.drawn for thought in thoughts], device=device)
    read = torch.tensor([thought.read for thought in thoughts], device=device)
    total = wide_zeros((len(thoughts),), device)
    for start, log_p in reading.along(read):
        targets = drawn[:, start : start + log_p.shape[1]]
        total += _gathered(log_p[:, : targets.shape[1]], targets).sum(-1)
    return total, reading


def answers_after(
    reading: Reading, answers: Sequence[Sequence[int]], log_shares: Tensor
) -> tuple[Tensor, Marginals]:
    """Log p of A answers after each of R thoughts, (A, R) nats, and marginals.

    ``log_shares`` are the weights of the thoughts among all, nats, (R,).
    """
    device = reading.log_p.device
    num_answers, rows = len(answers), len(reading.log_p)
    padded = pad_sequence([torch.tensor(ids) for ids in answers], batch_first=True)
    tokens = padded.to(device).repeat_interleave(rows, 0)  # (A * R, n)
    sizes = torch.tensor([len(ids) for ids in answers], device=device)
    within = torch.arange(padded.shape[1], device=device) < sizes[:, None]
    each = torch.arange(rows, device=device).repeat(num_answers)
    total = wide_zeros((num_answers, rows), device)
    marginals = []
    for start, log_p in reading.rows(each).along(tokens[:, :-1]):
        span = slice(start, start + log_p.shape[1])
        before = log_p.unflatten(0, (num_answers, rows))
        targets = tokens[:, span].unflatten(0, (num_answers, rows))
        steps = _gathered(before, targets).masked_fill(~within[:, None, span], 0)
        # Weight of every thought times the prefix of the answer.
        prefix = total[..., None] + pad(steps.cumsum(-1), (1, -1)) + log_shares[:, None]
        marginals.append((start, (before + prefix[..., None]).logsumexp(1)))
        total += steps.sum(-1)
    return total, marginals


class Greedy:
    """Argmaxes of the estimated next-token marginals.

    log p-hat(token | question, answer so far) over thoughts, up to a constant.
    """

    def __init__(self, answers: Sequence[Sequence[int]]) -> None:
        self._answers = answers
        self._marginals: dict[int, Tensor] = {}

    def add(self, marginals: Marginals) -> None:
        for position, log_p in marginals:
            for n in range(log_p.shape[1]):
                new, old = log_p[:, n], self._marginals.get(position + n)
                self._marginals[position + n] = (
                    new if old is None else old.logaddexp(new)
                )

    def __call__(self) -> list[bool]:
        """Whether each answer is greedy; False for all before any marginals."""
        best = {
            position: m.argmax(-1).tolist() for position, m in self._marginals.items()
        }
        return [
            bool(best)
            and all(best[position][a] == token for position, token in enumerate(ids))
            for a, ids in enumerate(self._answers)
        ]


def _uniforms(rows: Sequence[Draw], step: int) -> Tensor:
    counts = {row.key: 0 for row in rows}
    for row in rows:
        counts[row.key] = max(counts[row.key], row.sample + 1)
    drawn = {key: uniforms(key, (0, step), count) for key, count in counts.items()}
    return torch.tensor([drawn[row.key][row.sample, 0] for row in rows])


def _gathered(log_p: Tensor, tokens: Tensor) -> Tensor:
    return log_p.gather(-1, tokens[..., None])[..., 0]


class DistinctThoughts:
    """Distinct ones among K thoughts about a question, with their log-probabilities.

    Of D thoughts and A answers: ``log_p`` and ``log_q`` given the question, (D,), and
    ``log_p_answers``, (A, D), ``-inf`` until filled in; nats.
    """

    def __init__(
        self,
        marks: Marks,
        options: ThoughtOptions,
        question: Question,
        drawn: Sequence[Thought],
    ) -> None:
        counts = Counter(drawn)
        row = {thought: n for n, thought in enumerate(counts)}
        self._each = torch.tensor([row[thought] for thought in drawn])
        self._log_counts = torch.tensor([*counts.values()]).double().log()
        self._question, self._drawn = question, tuple(drawn)
        forced = options.close == "forced"
        self.closed = [
            Closed(
                thought.tokens,
                marks.closed(thought.tokens, thought.ending),
                forced or thought.ending is Ending.CLOSED,
            )
            for thought in counts
        ]
        self.log_p = torch.zeros(len(counts), dtype=torch.float64)
        self.log_q = torch.zeros_like(self.log_p)
        shape = len(question.answers), len(counts)
        self.log_p_answers = self.log_p.new_full(shape, -torch.inf)

    @property
    def log_shares(self) -> Tensor:
        """Log weights times counts, nats, (D,)."""
        return self.log_p - self.log_q + self._log_counts

    def thoughts(self, greedy: tuple[bool, ...]) -> Thoughts:
        question, each = self._question, self._each
        return Thoughts(
            question.name,
            question.text,
            question.hints,
            tuple(question.answers),
            self._drawn,
            self.log_p[each],
            self.log_q[each],
            self.log_p_answers[:, each],
            greedy,
        )


@dataclass(frozen=True)
class Thinker:
    """Thinker over a local network."""

    network: Network
    options: ThoughtOptions
    marks: Marks
    most_rows: int
    """Largest number of sequences that the network reads at once; it affects no
    result."""
    memory: MemoryLimit
    """Batch sizes that fitted into memory so far."""
    greedy: dict[Key, Greedy] = field(default_factory=dict)
    """Next-token marginals of each question's answers, over the thoughts so far."""

    @torch.inference_mode()
    def draw(
        self, questions: Sequence[Question], start: int, stop: int
    ) -> list[tuple[Thought, ...]]:
        """Draw thoughts ``start`` to ``stop`` about each question.

        Each depends on question, number and prompt, but not on the batch.

        Raises:
            ValueError: If one does not fit into memory; the error names the query.
        """
        draws = list[Draw]()
        for index, question in enumerate(questions):
            key = key_of(self.options.seed, question.name)
            chosen = components(key, stop, len(question.hints))
            draws += [
                Draw(index, key, sample, question.prompts[chosen[sample]])
                for sample in range(start, stop)
            ]
        draws.sort(key=lambda draw: (len(draw.prompt), draw.prompt))
        thoughts: list[dict[int, Thought]] = [{} for _ in questions]

        def size(draw: Draw) -> int:
            return len(draw.prompt) + self.options.max_think_tokens

        for _, group in groupby(draws, key=size):
            for batch, written in self.memory.in_batches(
                [*group],
                self.most_rows,
                self._written,
                size,
                lambda draw: self._refusal(questions[draw.question_index]),
            ):
                for draw, thought in zip(batch, written, strict=True):
                    thoughts[draw.question_index][draw.sample] = thought
        return [tuple(each[k] for k in sorted(each)) for each in thoughts]

    def _written(self, batch: Sequence[Draw]) -> list[Thought]:
        """Draw the thoughts of a batch token by token; finished ones leave it."""
        prompts = list(dict.fromkeys(draw.prompt for draw in batch))
        reading = self._begin(torch.tensor(prompts))
        device = reading.log_p.device
        rows = [prompts.index(draw.prompt) for draw in batch]
        reading.keep(torch.tensor(rows, device=device))
        written: list[list[int]] = [[] for _ in batch]
        endings = [Ending.TRUNCATED] * len(batch)
        alive = list(range(len(batch)))
        for step in range(self.options.max_think_tokens):
            u = sent_uniforms(_uniforms([batch[i] for i in alive], step), device)
            chosen = invert_cdf(reading.log_p.exp(), u)
            going: list[int] = []
            for row, (i, token) in enumerate(zip(alive, chosen.tolist(), strict=True)):
                written[i].append(token)
                ending = self.marks.ending(written[i])
                if ending is None:
                    going.append(row)
                else:
                    endings[i] = ending
            if not going or step == self.options.max_think_tokens - 1:
                break
            kept = None
            if len(going) < len(alive):
                kept = torch.tensor(going, device=device)
                chosen, alive = chosen[kept], [alive[row] for row in going]
            reading.read(chosen[:, None], kept)
        return [Thought(tuple(t), e) for t, e in zip(written, endings, strict=True)]

    @torch.inference_mode()
    def answer(self, question: Question, drawn: Sequence[Thought]) -> Thoughts:
        """Read each distinct thought about a question once, and its answers.

        Raises:
            ValueError: If one does not fit into memory; the error names the query.
        """
        read = DistinctThoughts(self.marks, self.options, question, drawn)
        hinted = self._hinted(question, read.closed)
        answers = list(question.answers.values())
        greedy = self.greedy.setdefault(question.key, Greedy(answers))
        own = self._read(question, question.prompts[0])

        def work(index: Sequence[int]) -> Marginals:
            total, reading = read_after(own, [read.closed[i] for i in index])
            log_p = read.log_p[index] = total.cpu().double()
            read.log_q[index] = log_mixture(log_p, hinted[:, index])
            if not read.closed[index[0]].answered:
                return []
            shares = sent(read.log_shares[index], total.device)
            after, marginals = answers_after(reading, answers, shares)
            read.log_p_answers[:, index] = after.cpu().double()
            return marginals

        for _, marginals in self._in_batches(question, read.closed, len(answers), work):
            greedy.add(marginals)
        return read.thoughts(tuple(greedy()))

    def _hinted(self, question: Question, distinct: Sequence[Closed]) -> Tensor:
        """Log p of thoughts given each hint, nats, (M, D)."""
        hints = [self._read(question, hint) for hint in question.prompts[1:]]
        log_p = torch.zeros(len(hints), len(distinct), dtype=torch.float64)

        def work(m: int, index: Sequence[int]) -> Tensor:
            total, _ = read_after(hints[m], [distinct[i] for i in index])
            return total.cpu().double()

        for m in range(len(hints)):
            batches = self._in_batches(question, distinct, 1, partial(work, m))
            for index, total in batches:
                log_p[m, index] = total
        return log_p

    def _in_batches(
        self,
        question: Question,
        thoughts: Sequence[Closed],
        copies: int,
        work: Callable[[Sequence[int]], R],
    ) -> Iterator[tuple[Sequence[int], R]]:
        """Do work on indices of thoughts of one length, each read ``copies`` times."""
        fixed = len(question.prompts[0]) + max(map(len, question.answers.values()))

        def lengths(index: int) -> tuple[int, int, bool]:
            thought = thoughts[index]
            return len(thought.read), len(thought.drawn), thought.answered

        order = sorted(range(len(thoughts)), key=lengths)
        for _, group in groupby(order, key=lengths):
            yield from self.memory.in_batches(
                [*group],
                max(self.most_rows // copies, 1),
                work,
                lambda index: copies * (fixed + len(thoughts[index].read)),
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
