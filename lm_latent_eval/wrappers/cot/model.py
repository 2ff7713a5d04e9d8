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
scored after the same thoughts, so the draws do not favour one of them.
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
"""Default number of sequences read at once."""


@dataclass
class ThoughtScorer(NetworkScorer):
    """A ``TextScorer`` of continuations: latents are the thoughts before them."""

    network: Network | ServedNetwork
    options: ThoughtOptions
    marks: Marks
    most_questions: int
    """Largest number of questions whose thoughts are drawn together; it affects no
    result."""
    most_rows: int
    """Largest number of sequences that the network reads at once; it affects no
    result."""
    quiet: bool = True
    memory: MemoryLimit = field(default_factory=MemoryLimit)
    """Batch sizes that fitted into memory so far."""
    keep: Callable[[Thoughts], None] = lambda thoughts: None
    """Callback for the thoughts about each question, before its answers."""
    known: Mapping[Key, Thoughts] = field(default_factory=dict)
    """Thoughts of an earlier run, reused for their questions."""
    _said: dict[Any, float] = field(default_factory=dict)
    shown: Mapping[Key, Sequence[str]] = field(default_factory=dict)
    """All answers to a question, which hints show; default: those of one call."""

    name = "cot"
    # Strings can be cut into tokens in more ways than one.
    normalization = Normalization.BELOW_ONE

    def __post_init__(self) -> None:
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
            MissedTextsError: At the end, if no thought about a question is closed.
            ValueError: If an answer is empty, a question too long, or a server is given
                a single target; the error names the query.
        """
        missed = Missed(queries)
        fresh, questions = [], self._questions(queries)
        if isinstance(self.network, ServedNetwork):
            self._refuse_targets(questions)
        with self.progress(len(questions), "thoughts", "questions") as progress:
            for question in questions:
                if (earlier := self._known(question)) is None:
                    fresh.append(question)
                    continue
                yield from self._answers(question, earlier, missed)
                progress.update()
            for block in self._blocks(fresh):
                for question, thoughts in self._thought(block):
                    self.keep(thoughts)
                    yield from self._answers(question, thoughts, missed)
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
        """Group queries by context; refuse those that cannot be answered."""
        groups: dict[Key, list[Query]] = {}
        for query in queries:
            groups.setdefault((query.name, query.context), []).append(query)
        questions = []
        for (name, text), group in groups.items():
            answers = {}
            for query in group:
                with naming(query):
                    answers[query.text] = self.marks.answer(query.text)
            with naming(group[0]):
                questions.append(self._question(name, text, group, answers))
        return questions

    def _question(
        self,
        name: str,
        text: str,
        queries: Sequence[Query],
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
        return Question(name, text, tuple(queries), prompts, hints, answers)

    def _refuse_targets(self, questions: Sequence[Question]) -> None:
        for question in questions:
            if len({*question.answers, *self.shown.get(question.key, ())}) == 1:
                with naming(question.queries[0]):
                    raise ValueError(
                        "a server does not tell whether a target is greedy: leave "
                        "base_url out, or score it as one of several answers"
                    )

    def _blocks(self, questions: list[Question]) -> Iterator[list[Question]]:
        order = sorted(questions, key=lambda question: len(question.prompts[0]))
        for start in range(0, len(order), self.most_questions):
            yield order[start : start + self.most_questions]

    def _thought(
        self, questions: Sequence[Question]
    ) -> Iterator[tuple[Question, Thoughts]]:
        """Yield questions with their thoughts: K, or as many as decide them."""
        undecided: list[tuple[Question, Thoughts | None]]
        undecided = [(question, None) for question in questions]
        thinker, start, last = self._thinker, 0, self.options.num_samples
        decides = self.options.until == "decided"
        most = WEIGHTS_AT_MOST[self.options.proposal]
        for stop in looks(last) if decides else (last,):
            drawn = thinker.draw([question for question, _ in undecided], start, stop)
            looked, undecided, start = undecided, [], stop
            for (question, before), new in zip(looked, drawn, strict=True):
                thoughts = thinker.answer(question, new)
                thoughts = before.continued(thoughts) if before else thoughts
                # A single answer gets K thoughts.
                several = len(thoughts.answers) > 1
                if stop == last or (several and thoughts.choice(most).decided):
                    yield question, thoughts
                else:
                    undecided.append((question, thoughts))

    def _known(self, question: Question) -> Thoughts | None:
        earlier = self.known.get(question.key)
        if earlier is None or earlier.hints != question.hints:
            return None
        return earlier if question.answers.keys() <= {*earlier.answers} else None

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
        stopped = self.options.until == "decided" and len(thoughts.answers) > 1
        try:
            return Estimate.from_log_weights(
                thoughts.log_weights[row],
                num_tokens=len(self.marks.answer(query.text)),
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
        """Build the scorer.

        ``batch_size`` counts questions whose thoughts are drawn together, ``most``
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
