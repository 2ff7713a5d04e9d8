"""Thoughts about a question, and the journal that keeps them while a run goes on.

Thoughts cost time, and money where a server draws them: a run that is killed leaves
them, and the same command takes them up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lm_latent_eval.estimators import Choice
from lm_latent_eval.ledger.journal import Journal, Row, read_run
from lm_latent_eval.ledger.settings import Settings
from lm_latent_eval.wrappers.cot.prompts import Ending, Key

FORMAT = 4


@dataclass(frozen=True)
class Thought:
    """One that was drawn."""

    tokens: tuple[int, ...]
    """Tokens as drawn, with the one that ended it."""
    ending: Ending


@dataclass(frozen=True)
class Thoughts:
    r"""K thoughts about one question, shared by its A answers.

    .. math:: w_k(a) = \frac{p(z_k \mid x)\, p(a \mid x, z_k)}{q(z_k \mid x)}

    All in nats, float64.
    """

    name: str
    """Name of the question; its random numbers are a function of it."""
    question: str
    """The string that it was asked with."""
    hints: tuple[str, ...]
    """The answers that prompts showed; none where all thoughts are the model's own."""
    answers: tuple[str, ...]
    drawn: tuple[Thought, ...]
    log_p: Tensor
    """log p(z_k | x), shape ``(K,)``."""
    log_q: Tensor
    """log q(z_k | x), shape ``(K,)``: of the whole mixture where there are hints."""
    log_p_answers: Tensor
    """log p(a | x, z_k), shape ``(A, K)``; ``-inf`` after a thought that is not
    closed."""
    greedy: tuple[bool, ...]
    """Whether each answer is the argmax of the estimated next-token marginals."""

    def continued(self, later: Thoughts) -> Thoughts:
        """Return these thoughts and later ones about the same answers."""
        return replace(
            later,
            drawn=self.drawn + later.drawn,
            log_p=torch.cat([self.log_p, later.log_p]),
            log_q=torch.cat([self.log_q, later.log_q]),
            log_p_answers=torch.cat([self.log_p_answers, later.log_p_answers], -1),
        )

    def choice(self, most: float) -> Choice:
        """Return the most probable answer, and whether it is certain at 95 %.

        Args:
            most: What no weight is above.
        """
        return Choice.of(self.log_weights, most)

    @property
    def log_weights(self) -> Tensor:
        """Log w_k(a), shape ``(A, K)``."""
        return self.log_ratios + self.log_p_answers

    @property
    def log_ratios(self) -> Tensor:
        """Log p(z_k | x) - log q(z_k | x), shape ``(K,)``; 0 of the model's own."""
        return self.log_p - self.log_q


def row_of(thoughts: Thoughts) -> dict[str, Any]:
    """Return thoughts about a question as plain values."""
    return {
        "name": thoughts.name,
        "question": thoughts.question,
        "hints": list(thoughts.hints),
        "answers": list(thoughts.answers),
        "tokens": [thought.tokens for thought in thoughts.drawn],
        "endings": [str(thought.ending) for thought in thoughts.drawn],
        "log_p": thoughts.log_p.tolist(),
        "log_q": thoughts.log_q.tolist(),
        "log_p_answers": thoughts.log_p_answers.tolist(),
        "greedy": list(thoughts.greedy),
    }


def thoughts_of(row: dict[str, Any]) -> Thoughts:
    """Return the thoughts of a row.

    Raises:
        ValueError: If it is of none.
    """

    def tensor(name: str, *shape: int) -> Tensor:
        # "-inf" too
        values = torch.from_numpy(np.array(row[name], dtype=np.float64))
        return values.reshape(shape)

    try:
        pairs = zip(row["tokens"], row["endings"], strict=True)
        drawn = tuple(Thought(tuple(tokens), Ending(end)) for tokens, end in pairs)
        answers = tuple(row["answers"])
        return Thoughts(
            row["name"],
            row["question"],
            tuple(row["hints"]),
            answers,
            drawn,
            tensor("log_p", len(drawn)),
            tensor("log_q", len(drawn)),
            tensor("log_p_answers", len(answers), len(drawn)),
            tuple(row["greedy"]),
        )
    except (KeyError, TypeError, ValueError, RuntimeError) as err:
        raise ValueError(f"it is of no thoughts ({err!r})") from err


@contextmanager
def journal(
    path: Path, settings: Settings
) -> Iterator[Callable[[str, Thoughts], None]]:
    """Yield what keeps the thoughts about a task's question at once.

    Args:
        path: The file; what an earlier run with the same settings left there stays.
        settings: What the numbers depend on.

    Raises:
        BusyError: If another run is writing it.
    """
    with _journal(path).going_on(settings, "the thoughts so far") as rows:
        yield lambda task, thoughts: rows.add(row_of(thoughts))


def read_unfinished(paths: Sequence[Path]) -> list[Thoughts]:
    """Read what one run has thought so far, every process of it.

    Raises:
        ValueError: If a file is something else, or they are of several runs.
    """

    def read_row(row: Row) -> tuple[str, Key, Thoughts]:
        found = thoughts_of(row)
        return "", (found.name, found.question), found

    _, tasks = read_run([_journal(path) for path in paths], read_row)
    return [thoughts for found in tasks.values() for thoughts in found]


def _journal(path: Path) -> Journal:
    return Journal(path, "record of thoughts", FORMAT)
