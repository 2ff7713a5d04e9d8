"""Thoughts about a question, with what they say of its answers."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lm_latent_eval.estimators import Choice
from lm_latent_eval.wrappers.cot.marks import Ending


@dataclass(frozen=True)
class Thought:
    """One that was drawn."""

    tokens: tuple[int, ...]
    """As drawn, what ended it included."""
    ending: Ending


@dataclass(frozen=True)
class Thoughts:
    r"""K thoughts about one question, shared by its A answers.

    .. math:: w_k(a) = \frac{p(z_k \mid x)\, p(a \mid x, z_k)}{q(z_k \mid x)}

    All in nats, float64.
    """

    name: str
    """Of the question: what its random numbers follow from."""
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

    def joined(self, other: Thoughts) -> Thoughts:
        """Return these thoughts with the answers of both; ``other`` are the same."""
        return replace(
            self,
            answers=self.answers + other.answers,
            log_p_answers=torch.cat([self.log_p_answers, other.log_p_answers]),
            greedy=self.greedy + other.greedy,
        )

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

    @property
    def answered(self) -> Tensor:
        """Which thoughts an answer follows, shape ``(K,)``."""
        return (self.log_p_answers > -torch.inf).any(0)
