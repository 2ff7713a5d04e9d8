"""Options of ``latent_cot``, marks around thoughts, and questions as prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any

from transformers import PreTrainedTokenizerBase

from lm_latent_eval.networks.network import Network, start_token
from lm_latent_eval.options import OptionTable, choice, option, positive, whole
from lm_latent_eval.scoring.texts import Query
from lm_latent_eval.wrappers.cot.server import ServedNetwork

QUESTION, ANSWER = "{question}", "{answer}"
PROPOSALS = ("prior", "hinted")
CLOSINGS = ("natural", "forced")
UNTIL = ("samples", "decided")
SAID = "what the chat template says"
KNOWN = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
)
"""Marks around thoughts in chat templates."""
Key = tuple[str, str]
"""Name and context of a question."""


def _string(name: str, value: Any) -> str | None:
    return None if value is None else str(value)


def _end(name: str, value: Any) -> str | None:
    if value == "":
        raise ValueError("think_end='': a thought ends with it, so it cannot be empty")
    return _string(name, value)


def _hint(name: str, value: Any) -> str:
    if missing := [part for part in (QUESTION, ANSWER) if part not in str(value)]:
        raise ValueError(
            f"hint={value!r} lacks {missing[0]}: give the prompt that shows an answer, "
            "such as '{question} (The answer is {answer}.)'"
        )
    return str(value)


@dataclass(frozen=True)
class ThoughtOptions(OptionTable):
    """Settings of ``latent_cot`` that numbers depend on.

    Attributes:
        think_start: What opens a thought. Empty, a thought begins where the question
            ends.
        think_end: What closes it, white space before the answer included.
        max_think_tokens: The most that a thought has, ``think_end`` included.
        num_samples: K, thoughts a question.
        until: When a question has thoughts enough: ``samples``, when it has K;
            ``decided``, when its most probable answer is certain at 95 % (K at most).
        close: What becomes of a thought that does not close itself: ``natural``, it
            answers nothing (p is a sub-probability); ``forced``, ``think_end`` is put
            after it, which is another model.
        model_temperature: Divides the network's scores, in thoughts and answers alike:
            another p, not another proposal.
        proposal: ``prior``, the model's own thoughts about the question; ``hinted``,
            half of them from prompts that show an answer.
        hint: The prompt that shows one, with ``{question}`` and ``{answer}`` in it.
        seed: Of all random numbers.
    """

    think_start: str | None = option(None, _string, unset=SAID)
    think_end: str | None = option(None, _end, unset=SAID)
    max_think_tokens: int = option(512, partial(whole, least=1))
    num_samples: int = option(32, partial(whole, least=1))
    until: str = choice("samples", UNTIL)
    close: str = choice("natural", CLOSINGS)
    model_temperature: float = option(1.0, positive)
    proposal: str = choice("prior", PROPOSALS)
    hint: str = option("{question}\n(The answer is {answer}.)\n", _hint)
    seed: int = option(0, partial(whole, least=0))

    @property
    def idle(self) -> tuple[str, ...]:
        """Options that have no effect with this proposal."""
        return ("hint",) if self.proposal == "prior" else ()


class Ending(StrEnum):
    CLOSED = "closed"
    TRUNCATED = "truncated"
    """Cut at ``max_think_tokens``."""
    ENDED = "ended"
    """The text ended in the thought."""


@dataclass(frozen=True)
class Marks:
    """Strings around thoughts, and the tokenization there."""

    tokenizer: PreTrainedTokenizerBase
    start: str
    end: str
    hint: str
    end_ids: tuple[int, ...]
    """Tokens that end a thought, in this order."""
    stops: frozenset[int]
    """Tokens that end a text: no answer follows them."""

    @classmethod
    def of(cls, network: Network | ServedNetwork, options: ThoughtOptions) -> Marks:
        """Read the marks from the options or the chat template.

        Raises:
            ValueError: If neither has them.
        """
        start, end = options.think_start, options.think_end
        template = network.tokenizer.chat_template
        if pair := next((pair for pair in KNOWN if pair[1] in str(template)), None):
            start = pair[0] if start is None else start
            end = pair[1] if end is None else end
        if start is None or end is None:
            missing = "think_start" if start is None else "think_end"
            raise ValueError(
                f"{network.name}: no chat template says what stands around its "
                f"thoughts; give {missing}=... ('<think>' and '</think>', say)"
            )
        ids = network.tokenizer.encode(end, add_special_tokens=False)
        if not ids:
            raise ValueError(f"think_end={end!r} has no tokens in this vocabulary")
        stops = frozenset(network.text_ends)
        return cls(network.tokenizer, start, end, options.hint, tuple(ids), stops)

    def prompt(self, question: str) -> tuple[int, ...]:
        """Tokens of a question, with the opening of a thought."""
        return self._encode("".join(self._opened(question)))

    def hinted(self, question: str, answer: str) -> tuple[int, ...]:
        """Tokens of a prompt that shows an answer."""
        bare, opening = self._opened(question)
        shown = self.hint.replace(ANSWER, answer.strip()).replace(QUESTION, bare)
        return self._encode(shown + opening)

    def answer(self, answer: str) -> tuple[int, ...]:
        """Tokens of an answer after the end of a thought.

        Raises:
            ValueError: If there are none.
        """
        both = self.tokenizer.encode(self.end + answer, add_special_tokens=False)
        size = len(self.end_ids)
        if tuple(both[:size]) == self.end_ids:
            ids = both[size:]
        else:  # a token would lie across the border, where the thought has ended
            ids = self.tokenizer.encode(answer, add_special_tokens=False)
        if not ids:
            raise ValueError("the answer is empty: there is nothing to predict")
        return tuple(ids)

    def closed(self, drawn: Sequence[int], ending: Ending) -> tuple[int, ...]:
        """Tokens before an answer: the thought, closed by force if necessary.

        ``think_end`` replaces a token that ends a text.
        """
        if ending is Ending.CLOSED:
            return tuple(drawn)
        kept = drawn[:-1] if ending is Ending.ENDED else drawn
        return (*kept, *self.end_ids)

    def ending(self, drawn: Sequence[int]) -> Ending | None:
        """How a thought has ended; None if it goes on."""
        if tuple(drawn[-len(self.end_ids) :]) == self.end_ids:
            return Ending.CLOSED
        return Ending.ENDED if drawn[-1] in self.stops else None

    def _opened(self, question: str) -> tuple[str, str]:
        """Split a question from the opening of a thought, if a template wrote one."""
        opening = self.start.strip()
        if opening and question.rstrip().endswith(opening):
            border = question.rindex(opening)
            return question[:border], question[border:]
        return question, self.start

    def _encode(self, prompt: str) -> tuple[int, ...]:
        bos = self.tokenizer.bos_token
        twice = bool(bos) and prompt.startswith(str(bos))
        ids = self.tokenizer.encode(prompt, add_special_tokens=not twice)
        if not ids:  # nothing is asked, and nothing opens a thought
            if (first := start_token(self.tokenizer)) is None:
                raise ValueError(
                    "the question is empty, and the tokenizer has no token that begins "
                    "a text"
                )
            ids = [first]
        return tuple(ids)


@dataclass(frozen=True)
class Question:
    """A context with all the answers that are asked about it."""

    name: str
    text: str
    queries: tuple[Query, ...]
    prompts: tuple[tuple[int, ...], ...]
    """Token ids of the question itself, then of each hint."""
    hints: tuple[str, ...]
    """Answers shown by prompts, sorted."""
    answers: dict[str, tuple[int, ...]]
    """Distinct answers and their token ids."""

    @property
    def key(self) -> Key:
        return self.name, self.text
