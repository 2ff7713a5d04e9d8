"""An arithmetic language: expressions read from left to right, modulo ten.

    3*7+4-9=  <think>  *7=1+4-9=6  </think>  6

A thought copies the expression and writes some of its intermediate values, each with
probability 0.7, so a question has many thoughts: those that write more leave less to be
done in the head. Some questions have their answer before them (``6|3*7+4-9=``), so that
a model knows what a hint is.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

OPERATIONS = {
    "+": lambda a, b: (a + b) % 10,
    "-": lambda a, b: (a - b) % 10,
    "*": lambda a, b: (a * b) % 10,
}
THINK, CLOSE, END = "<think>", "</think>", "<end>"
CHARACTERS = "0123456789+-*=|"
FEWEST, MOST = 3, 7
"""Operations of an expression."""
WRITTEN = 0.7
HINTED = 0.15
HINT = "{answer}|{question}"


@dataclass(frozen=True)
class Expression:
    """A digit, and operations with digits."""

    first: int
    steps: tuple[tuple[str, int], ...]

    @classmethod
    def draw(cls, chance: random.Random) -> Expression:
        """Draw one."""
        number = chance.randint(FEWEST, MOST)
        return cls(
            chance.randrange(10),
            tuple(
                (chance.choice(list(OPERATIONS)), chance.randrange(10))
                for _ in range(number)
            ),
        )

    @property
    def question(self) -> str:
        """What is asked."""
        return f"{self.first}{''.join(f'{o}{n}' for o, n in self.steps)}="

    @property
    def values(self) -> list[int]:
        """The value after each operation; the last one is the answer."""
        found = [self.first]
        for operation, number in self.steps:
            found.append(OPERATIONS[operation](found[-1], number))
        return found[1:]

    def thought(self, chance: random.Random) -> str:
        """Write the steps out, with some of their values."""
        return "".join(
            f"{operation}{number}" + (f"={value}" if chance.random() < WRITTEN else "")
            for (operation, number), value in zip(self.steps, self.values, strict=True)
        )


def tokenizer() -> PreTrainedTokenizerFast:
    """Return one whose tokens are characters and three marks."""
    names = [END, THINK, CLOSE, *CHARACTERS]
    inner = Tokenizer(models.WordLevel({t: n for n, t in enumerate(names)}, END))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    inner.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        eos_token=END,
        pad_token=END,
        additional_special_tokens=[THINK, CLOSE],
    )
