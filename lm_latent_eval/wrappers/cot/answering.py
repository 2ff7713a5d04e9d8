"""What a network says of given thoughts, and of answers after them.

Thoughts of one length are read together and none is padded; each is read once, its keys
and values serve every answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from lm_latent_eval.devices import wide_zeros
from lm_latent_eval.networks.causal import Reading


@dataclass(frozen=True)
class Closed:
    """A distinct thought, as it stands before an answer."""

    drawn: tuple[int, ...]
    """What was drawn, which has a probability."""
    read: tuple[int, ...]
    """What stands before the answer: as drawn, or closed by force."""
    answered: bool
    """Whether an answer follows it."""


def alike(thoughts: Sequence[Closed]) -> Iterator[list[int]]:
    """Yield places of thoughts that can be read together: those of one length."""

    def lengths(place: int) -> tuple[int, int, bool]:
        thought = thoughts[place]
        return len(thought.read), len(thought.drawn), thought.answered

    for _, group in groupby(sorted(range(len(thoughts)), key=lengths), key=lengths):
        yield list(group)


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


Marginals: TypeAlias = list[tuple[int, Tensor]]
"""A place, and log-sums over thoughts of what stands there and at some places after it,
nats, ``(A, places, V)``; a constant is left out."""


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


def _gathered(log_p: Tensor, tokens: Tensor) -> Tensor:
    return log_p.gather(-1, tokens[..., None])[..., 0]
