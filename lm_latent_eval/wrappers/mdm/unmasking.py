r"""Rules of unmasking: which masked places of a block a step reveals.

    f(S u A) += pi(A, x_A | S, x_S) f(S)

Symbols: S -> revealed places; A -> ``chosen``, those that the next step reveals; pi ->
``Unmasking.log_transitions``, the probability that it reveals these and that the
target's tokens are what it writes there; log f(all) is log p of the block.

Three kinds of rule:

* ``any_order``: A is a uniform set, pi = prod_{i in A} p(x_i | S) / C(h, k) of h
  hidden places.
* ``confidence``, ``entropy``, ``margin``, ``left_to_right``: A follows from x_S alone,
  so there is one path, pi = prod_{i in A} p(x_i | S).
* ``low_confidence``: a token y_j is drawn for every hidden place, the k that are most
  probable are kept and the others thrown away. With c the least probability among A,

      pi = prod_{i in A} p(x_i | S) prod_{j not in A} P(p(y_j | S) < c)

  since tokens are drawn independently. Of equal ones the earlier place is kept.

With a threshold, all places more probable than it are kept where they are k or more.

Source: generate.py of github.com/ML-GSAI/LLaDA (``low_confidence``, ``random``) and of
github.com/JetAstra/SDAR (thresholds: ``low_confidence_dynamic``). The sum over what is
thrown away is ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple, TypeAlias, TypeVar

import torch
from torch import Tensor

from lm_latent_eval.devices import widened

T = TypeVar("T")


Certainty: TypeAlias = Callable[[Tensor], Tensor]
"""Log-probabilities of V tokens at M places, (M, V) -> how sure each is, (M,)."""
ANY_ORDER, LOW_CONFIDENCE = "any_order", "low_confidence"
_AT_ONCE = 1 << 22
"""Numbers of one array of transitions."""
_THRESHOLDS = ("confidence", LOW_CONFIDENCE)
"""Rules that a threshold on probabilities means something to."""


class Predicted(NamedTuple):
    """Predictions of a target's tokens under n choices of masks, (n, L) each.

    Only what is said of masked tokens means something; the rest is zero.
    """

    log_p: Tensor
    """Log-probability of the target's token, nats, float64."""
    is_best: Tensor
    """Whether that token is the most probable one."""
    certainty: Tensor
    """How sure the prediction is, by the rule of an order; it never sees the target."""
    log_beaten: Tensor
    """How likely what is drawn at j is less probable than the target's token at i,
    (n, L, L + 1), see ``log_beaten``; (n, 0, 0) where no rule asks."""

    def of(self, rows: Tensor) -> Predicted:
        """Return the predictions under some of the choices."""
        return Predicted(*(table[rows] for table in self))


Requests: TypeAlias = Generator[Tensor, Predicted, T]
"""Yields masks, (n, L) true where a token is masked; returns what it has found."""


def confidence(rows: Tensor) -> Tensor:
    """The largest log-probability."""
    return rows.amax(-1)


def negative_entropy(rows: Tensor) -> Tensor:
    """The negative entropy, nats."""
    return (rows.exp() * rows.masked_fill(rows == -torch.inf, 0.0)).sum(-1)


def margin(rows: Tensor) -> Tensor:
    """The two largest probabilities' difference."""
    first, second = rows.exp().topk(2, dim=-1).values.unbind(-1)
    return first - second


def left_to_right(rows: Tensor) -> Tensor:
    """The earlier the surer; predictions come in the order of their places."""
    return -torch.arange(len(rows), device=rows.device)


RULES: dict[str, Certainty] = {
    "confidence": confidence,
    "entropy": negative_entropy,
    "margin": margin,
    "left_to_right": left_to_right,
}
"""Rules by which places follow from what is revealed, by name."""
NAMES = (ANY_ORDER, *RULES, LOW_CONFIDENCE)


@dataclass(frozen=True)
class Unmasking:
    """A rule, and how much a step reveals.

    Attributes:
        rule: One of ``NAMES``.
        tokens_per_step: k; the last step of a block reveals what is left.
        threshold: Probability above which places are revealed as well; None is none.

    Raises:
        ValueError: If the rule has no probabilities to hold against a threshold.
    """

    rule: str = ANY_ORDER
    tokens_per_step: int = 1
    threshold: float | None = None

    def __post_init__(self) -> None:
        """Refuse a threshold that means nothing."""
        if self.threshold is not None and self.rule not in _THRESHOLDS:
            raise ValueError(
                f"threshold={self.threshold:g}: unmasking={self.rule} does not go by "
                f"probabilities: use unmasking={' or '.join(_THRESHOLDS)}"
            )

    @property
    def follows(self) -> bool:
        """Whether revealed tokens determine the next places: there is one path."""
        return self.rule in RULES

    @property
    def is_plain(self) -> bool:
        """Whether every order of single tokens is as likely as any other."""
        return self.rule == ANY_ORDER and self.tokens_per_step == 1

    @property
    def draws(self) -> bool:
        """Whether places depend on tokens that are drawn."""
        return self.rule == LOW_CONFIDENCE

    @property
    def certainty(self) -> Certainty:
        """Measure of certainty: for ``low_confidence`` that of ``confidence``."""
        return RULES.get(self.rule, confidence)

    def __str__(self) -> str:
        """Say it in a record."""
        number = self.tokens_per_step
        step = "one token a step" if number == 1 else f"{number} tokens a step"
        if self.threshold is not None:
            step += f", or all above a probability of {self.threshold:g}"
        return f"{self.rule}, {step}"

    def surest(self, certainty: Tensor, masked: Tensor) -> Tensor:
        """Return the surest places, which a step reveals, (n, L).

        Args:
            certainty: How sure each place is, (n, L); a log-probability where a
                threshold is held against it.
            masked: Which are hidden, (n, L).
        """
        sure = certainty.masked_fill(~masked, -torch.inf)
        order = sure.argsort(dim=-1, descending=True, stable=True)
        chosen = order.argsort(-1) < self.tokens_per_step
        if self.threshold is not None:
            chosen |= sure > math.log(self.threshold)
        return chosen & masked

    def sizes(self, hidden: int) -> range:
        """Return how many of so many hidden places a step can reveal."""
        least = min(self.tokens_per_step, hidden)
        return range(least, (least if self.threshold is None else hidden) + 1)

    def number_of_choices(self, length: int) -> int:
        """Count the sets that some step of a block of L places can reveal."""
        sizes = {n for hidden in range(1, length + 1) for n in self.sizes(hidden)}
        return sum(math.comb(length, size) for size in sizes)

    def choices(self, length: int) -> Tensor:
        """List them, (C, L) true where a place is in."""
        sizes = {n for hidden in range(1, length + 1) for n in self.sizes(hidden)}
        return torch.cat([subsets(length, size) for size in sorted(sizes)])

    def log_transitions(
        self, predicted: Predicted, masked: Tensor, choices: Tensor
    ) -> Tensor:
        """Return log pi of revealing each of C sets, with the target's tokens.

        Args:
            predicted: What is predicted under n choices of masks.
            masked: Those, (n, L).
            choices: Sets of places, (C, L).

        Returns:
            Nats, (n, C); ``-inf`` where a step cannot reveal the set.
        """
        part = max(1, _AT_ONCE // masked.numel())
        found = [
            self._log_transitions(predicted, masked, some)
            for some in choices.split(part)
        ]
        return torch.cat(found, dim=1)

    def _log_transitions(
        self, predicted: Predicted, masked: Tensor, choices: Tensor
    ) -> Tensor:
        hidden = masked.sum(-1, keepdim=True)
        number = choices.sum(-1)
        least = hidden.clamp(max=self.tokens_per_step)
        possible = (masked[:, None] | ~choices).all(-1)
        log_p = predicted.log_p[:, None].expand(-1, len(choices), -1)
        own = log_p.masked_fill(~choices, 0.0).sum(-1)
        if self.rule == ANY_ORDER:
            pairs = zip(hidden[:, 0].tolist(), least[:, 0].tolist(), strict=True)
            ways = torch.tensor([math.comb(*pair) for pair in pairs], dtype=own.dtype)
            log_p = own - ways[:, None].log()
            return log_p.masked_fill(~possible | (number != least), -torch.inf)
        # Of equal probabilities the earlier place is kept: the last is the weakest.
        backwards = log_p.masked_fill(~choices, torch.inf).flip(-1)
        least_sure, behind = backwards.min(-1)
        weakest = choices.shape[1] - 1 - behind
        thrown = masked[:, None] & ~choices  # (n, C, L)
        # What is drawn at j, and if the weakest of A beats it: (n, C, L).
        index = weakest[:, None].expand(-1, choices.shape[1], -1)
        beaten = predicted.log_beaten.gather(-1, index).mT
        log_kept = beaten.masked_fill(~thrown, 0.0).sum(-1)
        log_kept = log_kept.masked_fill(number != least, -torch.inf)
        if self.threshold is not None:
            above = least_sure > math.log(self.threshold)
            below = predicted.log_beaten[..., -1][:, None]
            log_all = below.masked_fill(~thrown, 0.0).sum(-1)
            log_all = log_all.masked_fill(number < least, -torch.inf)
            log_kept = torch.where(above, log_all, log_kept)
        return (own + log_kept).masked_fill(~possible, -torch.inf)


def log_beaten(rows: Tensor, wanted: Tensor, threshold: float | None) -> Tensor:
    """Return log P(a draw is less probable than a target's token).

    Args:
        rows: Log-probabilities at the h hidden places of one text, (h, V).
        wanted: Those of the target's tokens, (h,).
        threshold: A probability; None is 1.

    Returns:
        Nats, (h, h + 1): row j, column i is of what is drawn at j and the token at i,
        the earlier place winning ties; the last column is of the threshold.
    """
    values = rows.sort(-1).values
    mass = torch.nn.functional.pad(widened(values).exp().cumsum(-1), (1, 0))
    number = len(rows)
    limits = torch.cat([wanted, wanted.new_full((1,), math.log(threshold or 1.0))])
    limits = limits.expand(number, -1).contiguous()
    less = torch.searchsorted(values, limits)
    not_more = torch.searchsorted(values, limits, right=True)
    place = torch.arange(number, device=rows.device)
    later = torch.ones(number, number + 1, dtype=torch.bool, device=rows.device)
    later[:, :-1] = place[:, None] > place
    found = mass.gather(-1, torch.where(later, not_more, less))
    return (found / mass[:, -1:]).log()


def subsets(length: int, size: int) -> Tensor:
    """List the subsets of a size, (n, L) true where a place is in."""
    chosen = torch.tensor(list(combinations(range(length), size)), dtype=torch.long)
    found = torch.zeros(len(chosen), length, dtype=torch.bool)
    return found.scatter_(1, chosen, True) if size else found
