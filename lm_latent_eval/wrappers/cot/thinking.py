"""A network that thinks about questions, and says what thoughts make of answers.

Thoughts of one length are read together and none is padded; each is read once, its keys
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
"""A place, and log-sums over thoughts of what stands there and at some places after it,
nats, ``(A, places, V)``; a constant is left out."""
R = TypeVar("R")


@dataclass(frozen=True)
class Draw:
    """A thought that is to be drawn."""

    place: int
    """Index of its question among those asked."""
    key: int
    """Key of the question's random numbers."""
    sample: int
    prompt: tuple[int, ...]


@dataclass(frozen=True)
class Closed:
    """A distinct thought, as it stands before an answer."""

    drawn: tuple[int, ...]
    """Tokens as drawn, which have a probability."""
    read: tuple[int, ...]
    """Tokens before the answer: as drawn, or closed by force."""
    answered: bool
    """Whether an answer follows it."""


def read_after(prompt: Reading, thoughts: Sequence[Closed]) -> tuple[Tensor, Reading]:
    """Read thoughts of one length after a prompt.

    Args:
        prompt: The prompt, read, one row.
        thoughts: R distinct ones.

    Returns:
        Their log p given the prompt, nats, shape ``(R,)``, and where their reading has
        got to.
    """
    device = prompt.log_p.device
    reading = prompt.rows(torch.zeros(len(thoughts), dtype=torch.long, device=device))
    drawn = torch.tensor([thought.drawn for thought in thoughts], device=device)
    read = torch.tensor([thought.read for thought in thoughts], device=device)
    total = wide_zeros((len(thoughts),), device)
    for place, log_p in reading.along(read):
        targets = drawn[:, place : place + log_p.shape[1]]
        total += _gathered(log_p[:, : targets.shape[1]], targets).sum(-1)
    return total, reading


def answers_after(
    reading: Reading, answers: Sequence[Sequence[int]], log_shares: Tensor
) -> tuple[Tensor, Marginals]:
    """Return log p of answers after each of R thoughts.

    Args:
        reading: The thoughts, read.
        answers: Token ids of A answers.
        log_shares: What each thought counts among all, nats, shape ``(R,)``.

    Returns:
        Nats, shape ``(A, R)``, and next-token marginals.
    """
    device = reading.log_p.device
    number, rows = len(answers), len(reading.log_p)
    padded = pad_sequence([torch.tensor(ids) for ids in answers], batch_first=True)
    tokens = padded.to(device).repeat_interleave(rows, 0)  # (A * R, n)
    sizes = torch.tensor([len(ids) for ids in answers], device=device)
    within = torch.arange(padded.shape[1], device=device) < sizes[:, None]
    each = torch.arange(rows, device=device).repeat(number)
    total = wide_zeros((number, rows), device)
    marginals = []
    for place, log_p in reading.rows(each).along(tokens[:, :-1]):
        places = slice(place, place + log_p.shape[1])
        before = log_p.unflatten(0, (number, rows))
        targets = tokens[:, places].unflatten(0, (number, rows))
        steps = _gathered(before, targets).masked_fill(~within[:, None, places], 0)
        # log share of every thought, with as much of the answer as stands before
        prefix = total[..., None] + pad(steps.cumsum(-1), (1, -1)) + log_shares[:, None]
        marginals.append((place, (before + prefix[..., None]).logsumexp(1)))
        total += steps.sum(-1)
    return total, marginals


class Greedy:
    """Which answers are the argmax of the estimated next-token marginals.

    log p-hat(token | question, answer so far) over thoughts, a constant left out.
    """

    def __init__(self, answers: Sequence[Sequence[int]]) -> None:
        """Begin with no thought.

        Args:
            answers: Token ids of A answers.
        """
        self._answers = answers
        self._marginals: dict[int, Tensor] = {}

    def add(self, marginals: Marginals) -> None:
        """Take in some thoughts."""
        for place, log_p in marginals:
            for n in range(log_p.shape[1]):
                new, old = log_p[:, n], self._marginals.get(place + n)
                self._marginals[place + n] = new if old is None else old.logaddexp(new)

    def __call__(self) -> list[bool]:
        """Return whether each answer is greedy; none is where nothing was taken in."""
        best = {place: m.argmax(-1).tolist() for place, m in self._marginals.items()}
        return [
            bool(best)
            and all(best[place][a] == token for place, token in enumerate(ids))
            for a, ids in enumerate(self._answers)
        ]


def _uniforms(rows: Sequence[Draw], step: int) -> Tensor:
    """Return one uniform number a row, shape ``(R,)``."""
    most = {row.key: 0 for row in rows}
    for row in rows:
        most[row.key] = max(most[row.key], row.sample + 1)
    drawn = {key: uniforms(key, (0, step), count) for key, count in most.items()}
    return torch.tensor([drawn[row.key][row.sample, 0] for row in rows])


def _gathered(log_p: Tensor, tokens: Tensor) -> Tensor:
    return log_p.gather(-1, tokens[..., None])[..., 0]


class DistinctThoughts:
    """Distinct thoughts about a question, with their log-probabilities.

    Of D thoughts and A answers: ``log_p`` and ``log_q`` given the question, (D,), and
    ``log_p_answers``, (A, D), which is ``-inf`` until it is filled in; nats.
    """

    def __init__(
        self,
        marks: Marks,
        options: ThoughtOptions,
        question: Question,
        drawn: Sequence[Thought],
    ) -> None:
        """Begin.

        Args:
            marks: Where thoughts end.
            options: Whether those without an end are closed by force.
            question: With A distinct answers.
            drawn: K thoughts.
        """
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
        """What each counts among all, nats, (D,)."""
        return self.log_p - self.log_q + self._log_counts

    def thoughts(self, greedy: tuple[bool, ...]) -> Thoughts:
        """Return the K thoughts, with whether each answer is greedy."""
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
    """A network under one choice of options."""

    network: Network
    options: ThoughtOptions
    marks: Marks
    most_rows: int
    """Sequences that the network reads at once; moves no number."""
    memory: MemoryLimit
    """Batch sizes that fitted into memory so far."""
    greedy: dict[Key, Greedy] = field(default_factory=dict)
    """Next-token marginals of each question's answers, over the thoughts so far."""

    @torch.inference_mode()
    def draw(
        self, questions: Sequence[Question], start: int, stop: int
    ) -> list[tuple[Thought, ...]]:
        """Draw the thoughts about each question from one number to another.

        Each is a function of question, number and prompt, not of the batch.

        Raises:
            ValueError: If one does not fit into memory; the error names the query.
        """
        draws = list[Draw]()
        for place, question in enumerate(questions):
            key = key_of(self.options.seed, question.name)
            chosen = components(key, stop, len(question.hints))
            draws += [
                Draw(place, key, sample, question.prompts[chosen[sample]])
                for sample in range(start, stop)
            ]
        draws.sort(key=lambda draw: (len(draw.prompt), draw.prompt))
        found: list[dict[int, Thought]] = [{} for _ in questions]

        def size(draw: Draw) -> int:
            return len(draw.prompt) + self.options.max_think_tokens

        for _, group in groupby(draws, key=size):
            for batch, written in self.memory.in_batches(
                [*group],
                self.most_rows,
                self._written,
                size,
                lambda draw: self._refusal(questions[draw.place]),
            ):
                for one, thought in zip(batch, written, strict=True):
                    found[one.place][one.sample] = thought
        return [tuple(each[k] for k in sorted(each)) for each in found]

    def _written(self, batch: Sequence[Draw]) -> list[Thought]:
        """Write the thoughts of a batch token by token; those that end leave it."""
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
        """Read the thoughts about a question, each distinct one once, and its answers.

        Args:
            question: With A distinct answers.
            drawn: K thoughts.

        Raises:
            ValueError: If one does not fit into memory; the error names the query.
        """
        read = DistinctThoughts(self.marks, self.options, question, drawn)
        hinted = self._hinted(question, read.closed)
        answers = list(question.answers.values())
        # These may go on with others.
        greedy = self.greedy.setdefault(question.key, Greedy(answers))
        own = self._read(question, question.prompts[0])

        def work(places: Sequence[int]) -> Marginals:
            found, reading = read_after(own, [read.closed[place] for place in places])
            log_p = read.log_p[places] = found.cpu().double()
            read.log_q[places] = log_mixture(log_p, hinted[:, places])
            if not read.closed[places[0]].answered:
                return []
            shares = sent(read.log_shares[places], found.device)
            after, marginals = answers_after(reading, answers, shares)
            read.log_p_answers[:, places] = after.cpu().double()
            return marginals

        for _, marginals in self._in_batches(question, read.closed, len(answers), work):
            greedy.add(marginals)
        return read.thoughts(tuple(greedy()))

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

        def lengths(place: int) -> tuple[int, int, bool]:
            thought = thoughts[place]
            return len(thought.read), len(thought.drawn), thought.answered

        order = sorted(range(len(thoughts)), key=lengths)
        for _, places in groupby(order, key=lengths):
            yield from self.memory.in_batches(
                [*places],
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
