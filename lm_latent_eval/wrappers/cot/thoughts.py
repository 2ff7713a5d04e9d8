"""Thoughts about a question, and the journal of a running job.

Thoughts cost time, and money on a server, so a killed run leaves them for the same
command to reuse.
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
    tokens: tuple[int, ...]
    """Tokens as drawn, with the last one."""
    ending: Ending


@dataclass(frozen=True)
class Thoughts:
    r"""K thoughts about one question, shared by its A answers.

    .. math:: w_k(a) = \frac{p(z_k \mid x)\, p(a \mid x, z_k)}{q(z_k \mid x)}

    All in nats, float64.
    """

    name: str
    """Name of the question; its random numbers depend on it."""
    question: str
    """Context of the question."""
    hints: tuple[str, ...]
    """Answers shown by prompts; empty for ``prior``."""
    answers: tuple[str, ...]
    drawn: tuple[Thought, ...]
    log_p: Tensor
    """Log p(z_k | x), (K,)."""
    log_q: Tensor
    """Log q(z_k | x), (K,), of the whole mixture with hints."""
    log_p_answers: Tensor
    """Log p(a | x, z_k), (A, K); ``-inf`` after a thought that is not closed."""
    greedy: tuple[bool, ...]
    """Whether each answer is the argmax of the estimated next-token marginals."""

    def continued(self, later: Thoughts) -> Thoughts:
        return replace(
            later,
            drawn=self.drawn + later.drawn,
            log_p=torch.cat([self.log_p, later.log_p]),
            log_q=torch.cat([self.log_q, later.log_q]),
            log_p_answers=torch.cat([self.log_p_answers, later.log_p_answers], -1),
        )

    def choice(self, most: float) -> Choice:
        return Choice.of(self.log_weights, most)

    @property
    def log_weights(self) -> Tensor:
        """Log w_k(a), (A, K)."""
        return self.log_ratios + self.log_p_answers

    @property
    def log_ratios(self) -> Tensor:
        """Log p(z_k | x) - log q(z_k | x), (K,); 0 for ``prior``."""
        return self.log_p - self.log_q


def row_of(thoughts: Thoughts) -> dict[str, Any]:
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
    """Thoughts of a row.

    Raises:
        ValueError: If the row is malformed.
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
    """Yield a function that appends the thoughts about a task's question to a file.

    Rows of an earlier run with the same settings are kept.

    Raises:
        BusyError: If another run is writing it.
    """
    with _journal(path).going_on(settings, "the thoughts so far") as rows:
        yield lambda task, thoughts: rows.add(row_of(thoughts))


def read_unfinished(paths: Sequence[Path]) -> list[Thoughts]:
    """Read the thoughts of a killed run, from the files of its processes.

    Raises:
        ValueError: If a file is something else, or they are of several runs.
    """

    def read_row(row: Row) -> tuple[str, Key, Thoughts]:
        thoughts = thoughts_of(row)
        return "", (thoughts.name, thoughts.question), thoughts

    _, tasks = read_run([_journal(path) for path in paths], read_row)
    return [thoughts for rows in tasks.values() for thoughts in rows]


def _journal(path: Path) -> Journal:
    return Journal(path, "record of thoughts", FORMAT)
