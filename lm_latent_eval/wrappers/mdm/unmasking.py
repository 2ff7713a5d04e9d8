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
"""Function from log-probabilities of V tokens at M positions, (M, V), to certainties,
(M,)."""
ANY_ORDER, LOW_CONFIDENCE = "any_order", "low_confidence"
_AT_ONCE = 1 << 22
"""Largest size of one array of transitions."""
_THRESHOLDS = ("confidence", LOW_CONFIDENCE)
"""Rules with probabilities to compare with a threshold."""


class Predicted(NamedTuple):
    """Predictions of a target's tokens under n choices of masks, (n, L) each.

    Entries of unmasked tokens are zero.
    """

    log_p: Tensor
    """Log-probability of the target's token, nats, float64."""
    is_best: Tensor
    """Whether that token is the most probable one."""
    certainty: Tensor
    """Certainty of the prediction by the rule, independent of the target."""
    log_beaten: Tensor
    """Log-probability that the draw at j is less probable than the target's token at i,
    (n, L, L + 1), see ``log_beaten``; (n, 0, 0) if no rule needs it."""

    def of(self, rows: Tensor) -> Predicted:
        return Predicted(*(table[rows] for table in self))


Requests: TypeAlias = Generator[Tensor, Predicted, T]
"""Generator that yields masks, (n, L) true where a token is masked, and returns its
result."""


def confidence(rows: Tensor) -> Tensor:
    return rows.amax(-1)


def negative_entropy(rows: Tensor) -> Tensor:
    return (rows.exp() * rows.masked_fill(rows == -torch.inf, 0.0)).sum(-1)


def margin(rows: Tensor) -> Tensor:
    first, second = rows.exp().topk(2, dim=-1).values.unbind(-1)
    return first - second


def left_to_right(rows: Tensor) -> Tensor:
    """Certainty that falls from left to right."""
    return -torch.arange(len(rows), device=rows.device)


RULES: dict[str, Certainty] = {
    "confidence": confidence,
    "entropy": negative_entropy,
    "margin": margin,
    "left_to_right": left_to_right,
}
"""Rules whose choices follow from revealed tokens, by name."""
NAMES = (ANY_ORDER, *RULES, LOW_CONFIDENCE)


@dataclass(frozen=True)
class Unmasking:
    """A rule, and the number of tokens of a step.

    Attributes:
        rule: One of ``NAMES``.
        tokens_per_step: k; the last step of a block reveals the rest.
        threshold: Probability above which positions are revealed as well; None is none.

    Raises:
        ValueError: If the rule has no probabilities to compare with a threshold.
    """

    rule: str = ANY_ORDER
    tokens_per_step: int = 1
    threshold: float | None = None

    def __post_init__(self) -> None:
        if self.threshold is not None and self.rule not in _THRESHOLDS:
            raise ValueError(
                f"threshold={self.threshold:g}: unmasking={self.rule} does not go by "
                f"probabilities: use unmasking={' or '.join(_THRESHOLDS)}"
            )

    @property
    def follows(self) -> bool:
        """Whether revealed tokens determine the next positions: there is one path."""
        return self.rule in RULES

    @property
    def is_plain(self) -> bool:
        """Whether all orders of single tokens are equally likely."""
        return self.rule == ANY_ORDER and self.tokens_per_step == 1

    @property
    def draws(self) -> bool:
        """Whether positions depend on drawn tokens."""
        return self.rule == LOW_CONFIDENCE

    @property
    def certainty(self) -> Certainty:
        """Measure of certainty; that of ``confidence`` for ``low_confidence``."""
        return RULES.get(self.rule, confidence)

    def __str__(self) -> str:
        k = self.tokens_per_step
        step = "one token a step" if k == 1 else f"{k} tokens a step"
        if self.threshold is not None:
            step += f", or all above a probability of {self.threshold:g}"
        return f"{self.rule}, {step}"

    def surest(self, certainty: Tensor, masked: Tensor) -> Tensor:
        """Most certain positions, which a step reveals, (n, L).

        Args:
            certainty: Certainty of each position, (n, L); a log-probability with a
                threshold.
            masked: Mask of hidden positions, (n, L).
        """
        sure = certainty.masked_fill(~masked, -torch.inf)
        order = sure.argsort(dim=-1, descending=True, stable=True)
        chosen = order.argsort(-1) < self.tokens_per_step
        if self.threshold is not None:
            chosen |= sure > math.log(self.threshold)
        return chosen & masked

    def sizes(self, hidden: int) -> range:
        """Numbers of positions that a step can reveal."""
        least = min(self.tokens_per_step, hidden)
        return range(least, (least if self.threshold is None else hidden) + 1)

    def number_of_choices(self, length: int) -> int:
        """Number of sets that some step of a block of L positions can reveal."""
        sizes = {n for hidden in range(1, length + 1) for n in self.sizes(hidden)}
        return sum(math.comb(length, size) for size in sizes)

    def choices(self, length: int) -> Tensor:
        sizes = {n for hidden in range(1, length + 1) for n in self.sizes(hidden)}
        return torch.cat([subsets(length, size) for size in sorted(sizes)])

    def log_transitions(
        self, predicted: Predicted, masked: Tensor, choices: Tensor
    ) -> Tensor:
        """Log pi of revealing each of C sets, with the target's tokens.

        Args:
            predicted: Predictions under n choices of masks.
            masked: Masks, (n, L).
            choices: Sets of positions, (C, L).

        Returns:
            Nats, (n, C); ``-inf`` if a step cannot reveal the set.
        """
        part = max(1, _AT_ONCE // masked.numel())
        parts = [
            self._log_transitions(predicted, masked, sets)
            for sets in choices.split(part)
        ]
        return torch.cat(parts, dim=1)

    def _log_transitions(
        self, predicted: Predicted, masked: Tensor, choices: Tensor
    ) -> Tensor:
        hidden = masked.sum(-1, keepdim=True)
        size = choices.sum(-1)
        least = hidden.clamp(max=self.tokens_per_step)
        possible = (masked[:, None] | ~choices).all(-1)
        log_p = predicted.log_p[:, None].expand(-1, len(choices), -1)
        own = log_p.masked_fill(~choices, 0.0).sum(-1)
        if self.rule == ANY_ORDER:
            pairs = zip(hidden[:, 0].tolist(), least[:, 0].tolist(), strict=True)
            ways = torch.tensor([math.comb(*pair) for pair in pairs], dtype=own.dtype)
            log_p = own - ways[:, None].log()
            return log_p.masked_fill(~possible | (size != least), -torch.inf)
        # Ties keep the earlier position: the last is the weakest.
        backwards = log_p.masked_fill(~choices, torch.inf).flip(-1)
        least_sure, behind = backwards.min(-1)
        weakest = choices.shape[1] - 1 - behind
        thrown = masked[:, None] & ~choices  # (n, C, L)
        # Log-probability that the weakest of A beats the draw at j, (n, C, L).
        index = weakest[:, None].expand(-1, choices.shape[1], -1)
        beaten = predicted.log_beaten.gather(-1, index).mT
        log_kept = beaten.masked_fill(~thrown, 0.0).sum(-1)
        log_kept = log_kept.masked_fill(size != least, -torch.inf)
        if self.threshold is not None:
            above = least_sure > math.log(self.threshold)
            below = predicted.log_beaten[..., -1][:, None]
            log_all = below.masked_fill(~thrown, 0.0).sum(-1)
            log_all = log_all.masked_fill(size < least, -torch.inf)
            log_kept = torch.where(above, log_all, log_kept)
        return (own + log_kept).masked_fill(~possible, -torch.inf)


def log_beaten(rows: Tensor, wanted: Tensor, threshold: float | None) -> Tensor:
    """Log-probability that a draw is less probable than a target's token.

    Args:
        rows: Log-probabilities at the h hidden positions of one text, (h, V).
        wanted: Log-probabilities of the target's tokens, (h,).
        threshold: A probability; None is 1.

    Returns:
        Nats, (h, h + 1): row j, column i compares the draw at j with the token at i,
        the earlier position winning ties; the last column compares with the threshold.
    """
    values = rows.sort(-1).values
    mass = torch.nn.functional.pad(widened(values).exp().cumsum(-1), (1, 0))
    hidden = len(rows)
    limits = torch.cat([wanted, wanted.new_full((1,), math.log(threshold or 1.0))])
    limits = limits.expand(hidden, -1).contiguous()
    less = torch.searchsorted(values, limits)
    not_more = torch.searchsorted(values, limits, right=True)
    position = torch.arange(hidden, device=rows.device)
    later = torch.ones(hidden, hidden + 1, dtype=torch.bool, device=rows.device)
    later[:, :-1] = position[:, None] > position
    beaten = mass.gather(-1, torch.where(later, not_more, less))
    return (beaten / mass[:, -1:]).log()


def subsets(length: int, size: int) -> Tensor:
    """Subsets of a size, (n, L)."""
    chosen = torch.tensor(list(combinations(range(length), size)), dtype=torch.long)
    sets = torch.zeros(len(chosen), length, dtype=torch.bool)
    return sets.scatter_(1, chosen, True) if size else sets
