"""What opens and closes a thought, as strings and as tokens; questions as prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from transformers import PreTrainedTokenizerBase

from lm_latent_eval.networks.network import Network, start_token
from lm_latent_eval.networks.served import ServedNetwork
from lm_latent_eval.wrappers.cot.options import ANSWER, QUESTION, ThoughtOptions

KNOWN = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
)
"""What chat templates write around thoughts."""


class Ending(StrEnum):
    """How a thought ends."""

    CLOSED = "closed"
    """By itself."""
    TRUNCATED = "truncated"
    """At ``max_think_tokens``."""
    ENDED = "ended"
    """As a text does, so that nothing follows it."""


@dataclass(frozen=True)
class Marks:
    """What stands around thoughts, and how strings become tokens there."""

    tokenizer: PreTrainedTokenizerBase
    start: str
    end: str
    hint: str
    end_ids: tuple[int, ...]
    """A thought ends where these tokens have been written, in this order."""
    stops: frozenset[int]
    """Tokens that end a text: no answer comes after them."""

    @classmethod
    def of(cls, network: Network | ServedNetwork, options: ThoughtOptions) -> Marks:
        """Find the marks of a network.

        Raises:
            ValueError: If neither options nor chat template say what they are.
        """
        start, end = options.think_start, options.think_end
        template = network.tokenizer.chat_template
        said = [pair for pair in KNOWN if pair[1] in str(template)]
        if said:
            start = said[0][0] if start is None else start
            end = said[0][1] if end is None else end
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
        """Return a question's tokens, the opening of a thought included."""
        return self._encode("".join(self._opened(question)))

    def hinted(self, question: str, answer: str) -> tuple[int, ...]:
        """Return the tokens of a prompt that shows an answer."""
        bare, opening = self._opened(question)
        shown = self.hint.replace(ANSWER, answer.strip()).replace(QUESTION, bare)
        return self._encode(shown + opening)

    def answer(self, answer: str) -> tuple[int, ...]:
        """Return an answer's tokens after the end of a thought.

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
        """Return what stands before an answer: a thought, closed by force if need be.

        A token that ends a text gives way to ``think_end``.
        """
        if ending is Ending.CLOSED:
            return tuple(drawn)
        kept = drawn[:-1] if ending is Ending.ENDED else drawn
        return (*kept, *self.end_ids)

    def ending(self, drawn: Sequence[int]) -> Ending | None:
        """Return how a thought has ended; None while it goes on."""
        if tuple(drawn[-len(self.end_ids) :]) == self.end_ids:
            return Ending.CLOSED
        return Ending.ENDED if drawn[-1] in self.stops else None

    def _opened(self, question: str) -> tuple[str, str]:
        """Tell a question from the opening of a thought, which a template may write."""
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
