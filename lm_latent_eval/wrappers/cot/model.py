r"""A causal language model that thinks before it answers; its thoughts are latents.

.. math:: p(a \mid x) = \sum_z p(z \mid x)\, p(a \mid x, z)

Symbols: x -> a question with ``think_start`` after it; z -> a thought, the tokens up
to and with ``think_end``; a -> the tokens of an answer, as the tokenizer cuts it. A
thought that is not closed after ``max_think_tokens`` tokens, or ends as a text does,
answers nothing, so that p(. | x) is a sub-probability (``close=natural``); with
``close=forced`` ``think_end`` is put after it, and p is another model.
Source: Wei et al. (2022) for thoughts; Phan et al. (2023), section 2, for answers as
marginals over them; Zelikman et al. (2022), section 3.2, for prompts that show an
answer; the mixture and its weights: Owen and Zhou (2000), defensive sampling.

A question is a context, and its answers are the texts that may follow. All of them are
scored after the same thoughts, so that they differ by what the thoughts say of them and
not by which thoughts were drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from transformers import AutoModelForCausalLM

from lm_latent_eval.devices import MemoryLimit
from lm_latent_eval.estimators import (
    Bound,
    Estimate,
    MissedSupportError,
    probability_interval,
)
from lm_latent_eval.latent import Normalization
from lm_latent_eval.networks.causal import check_causal
from lm_latent_eval.networks.network import Network
from lm_latent_eval.scoring.answer import Answer, Missed
from lm_latent_eval.scoring.generation import GenerationOptions
from lm_latent_eval.scoring.texts import Query, naming
from lm_latent_eval.wrappers.base import NetworkModel, NetworkScorer
from lm_latent_eval.wrappers.cot.drawing import FIRST, WEIGHTS_AT_MOST, looks
from lm_latent_eval.wrappers.cot.prompts import (
    Key,
    Marks,
    Question,
    ThoughtOptions,
)
from lm_latent_eval.wrappers.cot.served import ServedThinker
from lm_latent_eval.wrappers.cot.server import ServedNetwork
from lm_latent_eval.wrappers.cot.thinking import Thinker
from lm_latent_eval.wrappers.cot.thoughts import Thoughts

ROWS = 128
"""Sequences read at once where nobody says how many."""


@dataclass
class ThoughtScorer(NetworkScorer):
    """A ``TextScorer`` of continuations: latents are the thoughts before them."""

    network: Network | ServedNetwork
    options: ThoughtOptions
    marks: Marks
    most_questions: int
    """Questions whose thoughts are drawn at once; moves no number."""
    most_rows: int
    """Sequences that the network reads at once; moves no number."""
    quiet: bool = True
    memory: MemoryLimit = field(default_factory=MemoryLimit)
    """Batch sizes that fitted into memory so far."""
    keep: Callable[[Thoughts], None] = lambda thoughts: None
    """Told what was thought about a question, before its answers are."""
    known: Mapping[Key, Thoughts] = field(default_factory=dict)
    """Thoughts of an earlier run; their questions are not thought about again."""
    _said: dict[Any, float] = field(default_factory=dict)
    shown: Mapping[Key, Sequence[str]] = field(default_factory=dict)
    """All answers to a question, which hints show; where nothing is said, those that
    are asked together."""

    name = "cot"
    # Strings can be cut into tokens in more ways than one.
    normalization = Normalization.BELOW_ONE

    def __post_init__(self) -> None:
        """Say what numbers depend on."""
        self.settings = self.described = {
            "dtype": str(self.network.computed_in),
            "estimator": "is",
            **asdict(self.options),
            "think_start": self.marks.start,
            "think_end": self.marks.end,
            "stops": sorted(self.marks.stops),
            "vocabulary": f"{len(self.network.tokenizer)} tokens",
        }

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
            MissedTextsError: At the end, if none of the thoughts about a question has
                an answer after it.
            ValueError: If an answer is empty, a question too long, or a target is asked
                of a server; the error names the query.
        """
        missed = Missed(queries)
        fresh, questions = [], self._questions(queries)
        if isinstance(self.network, ServedNetwork):
            self._refuse_targets(questions)
        with self.progress(len(questions), "thoughts", "questions") as progress:
            for question in questions:
                if (known := self._known(question)) is None:
                    fresh.append(question)
                    continue
                yield from self._answers(question, known, missed)
                progress.update()
            for block in self._blocks(fresh):
                for question, found in self._thought(block):
                    self.keep(found)
                    yield from self._answers(question, found, missed)
                    progress.update()
        missed.tell()

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

    # -- thoughts ---------------------------------------------------------------------

    @property
    def _thinker(self) -> Thinker | ServedThinker:
        if isinstance(self.network, ServedNetwork):
            return ServedThinker(self.network, self.options, self.marks, self._said)
        return Thinker(
            self.network, self.options, self.marks, self.most_rows, self.memory
        )

    def _questions(self, queries: Sequence[Query]) -> list[Question]:
        """Put queries about one context together; refuse what cannot be answered."""
        groups: dict[Key, list[Query]] = {}
        for query in queries:
            groups.setdefault((query.name, query.context), []).append(query)
        found = []
        for (name, text), asked in groups.items():
            answers = {}
            for query in asked:
                with naming(query):
                    answers[query.text] = self.marks.answer(query.text)
            with naming(asked[0]):
                found.append(self._question(name, text, asked, answers))
        return found

    def _question(
        self,
        name: str,
        text: str,
        asked: Sequence[Query],
        answers: dict[str, tuple[int, ...]],
    ) -> Question:
        marks, shown = self.marks, self.shown.get((name, text), ())
        if self.options.until == "decided":
            new = [answer for answer in shown if answer not in answers]
            answers = answers | {answer: marks.answer(answer) for answer in new}
        hints: tuple[str, ...] = ()
        if self.options.proposal == "hinted":
            hints = tuple(sorted({*shown, *answers}))
        prompts = marks.prompt(text), *(marks.hinted(text, a) for a in hints)
        prompt = max(map(len, prompts))
        thought = self.options.max_think_tokens + len(marks.end_ids)
        answer = max(map(len, answers.values()))
        longest = self.network.max_length
        if (needed := prompt + thought + answer) > longest:
            raise ValueError(
                f"the network reads {longest} tokens, and this may take {needed}: "
                f"{prompt} of the prompt, {thought} of a thought, {answer} of an "
                "answer. Lower max_think_tokens"
            )
        return Question(name, text, tuple(asked), prompts, hints, answers)

    def _refuse_targets(self, questions: Sequence[Question]) -> None:
        """Refuse answers that are the only ones to their question."""
        for question in questions:
            if len({*question.answers, *self.shown.get(question.key, ())}) == 1:
                with naming(question.queries[0]):
                    raise ValueError(
                        "a server does not tell whether a target is greedy: leave "
                        "base_url out, or score it as one of several answers"
                    )

    def _blocks(self, questions: list[Question]) -> Iterator[list[Question]]:
        """Yield questions whose thoughts are drawn together, those of a length."""
        order = sorted(questions, key=lambda question: len(question.prompts[0]))
        for start in range(0, len(order), self.most_questions):
            yield order[start : start + self.most_questions]

    def _thought(
        self, questions: Sequence[Question]
    ) -> Iterator[tuple[Question, Thoughts]]:
        """Yield questions with their thoughts: K, or as many as decide it."""
        going: list[tuple[Question, Thoughts | None]] = [(q, None) for q in questions]
        thinker, start, number = self._thinker, 0, self.options.num_samples
        decides = self.options.until == "decided"
        most = WEIGHTS_AT_MOST[self.options.proposal]
        for stop in looks(number) if decides else (number,):
            drawn = thinker.draw([question for question, _ in going], start, stop)
            looked, going, start = going, [], stop
            for (question, before), thoughts in zip(looked, drawn, strict=True):
                found = thinker.answer(question, thoughts)
                found = before.continued(found) if before else found
                # One answer by itself needs K thoughts.
                several = len(found.answers) > 1
                if stop == number or (several and found.choice(most).decided):
                    yield question, found
                else:
                    going.append((question, found))

    def _known(self, question: Question) -> Thoughts | None:
        """Return what was thought before, of the same answers after the same hints."""
        known = self.known.get(question.key)
        if known is None or known.hints != question.hints:
            return None
        return known if question.answers.keys() <= {*known.answers} else None

    def _answers(
        self, question: Question, thoughts: Thoughts, missed: Missed
    ) -> Iterator[Answer]:
        index = {answer: n for n, answer in enumerate(thoughts.answers)}
        with naming(question.queries[0]):
            most = WEIGHTS_AT_MOST[self.options.proposal]
            ends = probability_interval(thoughts.log_weights, most)
        at_least, at_most = (end.tolist() for end in ends)
        for query in question.queries:
            row = index[query.text]
            with missed.aside(query):
                estimate = self._estimate(query, thoughts, row)
                yield Answer(
                    query.index,
                    replace(estimate, at_least=at_least[row], at_most=at_most[row]),
                    stream=question.name,
                    is_greedy=thoughts.greedy[row],
                )

    def _estimate(self, query: Query, thoughts: Thoughts, row: int) -> Estimate:
        number = len(self.marks.answer(query.text))
        stopped = self.options.until == "decided" and len(thoughts.answers) > 1
        try:
            return Estimate.from_log_weights(
                thoughts.log_weights[row],
                num_tokens=number,
                bound=Bound.NONE if stopped else Bound.STOCHASTIC_LOWER,
            )
        except MissedSupportError as err:
            raise MissedSupportError(
                f"none of {len(thoughts.drawn)} thoughts has an answer after it: "
                "they end at max_think_tokens, or the text ends in them. Raise "
                "max_think_tokens or num_samples, or choose close=forced, which is "
                "another model"
            ) from err


class ThinkingLM(NetworkModel[ThoughtOptions, ThoughtScorer]):
    """A ``TextModel`` whose latents are thoughts."""

    auto_class = AutoModelForCausalLM
    table = ThoughtOptions

    def __init__(self, network: Network | ServedNetwork) -> None:
        """Take a network.

        Raises:
            ValueError: If it is no causal language model.
        """
        self.network = network
        if isinstance(network, Network):
            check_causal(network.model)

    def _scorer(
        self,
        options: ThoughtOptions,
        batch_size: int | None,
        most: int | None,
        quiet: bool,
    ) -> ThoughtScorer:
        """Return the scorer.

        ``batch_size`` is of questions whose thoughts are drawn at once, and ``most`` of
        sequences that the network reads at once.
        """
        if isinstance(self.network, ServedNetwork) and options.model_temperature != 1:
            raise ValueError(
                f"model_temperature={options.model_temperature:g}: a server returns "
                "log-probabilities of temperature 1 alone. Leave base_url out, or the "
                "temperature"
            )
        rows = most or ROWS
        first = FIRST if options.until == "decided" else options.num_samples
        questions = batch_size or max(rows // first, 1)
        marks = Marks.of(self.network, options)
        return ThoughtScorer(self.network, options, marks, questions, rows, quiet)
