"""Questions: contexts with the answers that are asked about them, as tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lm_latent_eval.scoring.texts import Query, naming
from lm_latent_eval.wrappers.cot.marks import Marks
from lm_latent_eval.wrappers.cot.options import ThoughtOptions

Key = tuple[str, str]
"""A question's name, and the string that it is asked with."""


@dataclass(frozen=True)
class Question:
    """A context with all the answers that are asked about it."""

    name: str
    text: str
    queries: tuple[Query, ...]
    prompts: tuple[tuple[int, ...], ...]
    """Token ids: of the question itself, then of each hint."""
    hints: tuple[str, ...]
    """The answers that prompts show, in an order of their own."""
    answers: dict[str, tuple[int, ...]]
    """Distinct answers and their token ids."""

    @property
    def key(self) -> Key:
        """What tells it from others."""
        return self.name, self.text


def questions_of(
    queries: Sequence[Query],
    options: ThoughtOptions,
    marks: Marks,
    *,
    longest: int,
    shown: Mapping[Key, Sequence[str]],
) -> list[Question]:
    """Put queries about one context together; refuse what cannot be answered.

    Args:
        queries: Answers and their contexts.
        options: How thoughts are written.
        marks: What stands around them.
        longest: Tokens that the network reads.
        shown: All answers to a question, which hints show and decisions are among;
            where nothing is said, those that are asked.

    Raises:
        ValueError: If an answer is empty, or a question too long; the error names the
            query.
    """
    groups: dict[Key, list[Query]] = {}
    for query in queries:
        groups.setdefault((query.name, query.context), []).append(query)
    found = []
    for (name, text), asked in groups.items():
        answers = {}
        for query in asked:
            with naming(query):
                answers[query.text] = marks.answer(query.text)
        every = shown.get((name, text), ())
        if options.until == "decided":
            with naming(asked[0]):
                answers |= {a: marks.answer(a) for a in every if a not in answers}
        hints: tuple[str, ...] = ()
        if options.proposal == "hinted":
            hints = tuple(sorted({*every, *answers}))
        with naming(asked[0]):
            prompts = marks.prompt(text), *(marks.hinted(text, a) for a in hints)
            _check_length(
                longest,
                max(map(len, prompts)),
                options.max_think_tokens + len(marks.end_ids),
                max(map(len, answers.values())),
            )
        found.append(Question(name, text, tuple(asked), prompts, hints, answers))
    return found


def _check_length(longest: int, prompt: int, thought: int, answer: int) -> None:
    if (needed := prompt + thought + answer) > longest:
        raise ValueError(
            f"the network reads {longest} tokens, and this may take {needed}: {prompt} "
            f"of the prompt, {thought} of a thought, {answer} of an answer. Lower "
            "max_think_tokens"
        )
