"""Columns of a corpus's answers: a few numbers a text, whatever else answers hold."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lm_latent_eval.estimators import Bound, Estimate, EstimateColumns
from lm_latent_eval.scoring.answer import Answer

_BOUNDS = [*Bound]
_KINDS = {
    **dict.fromkeys(("words", "bytes", "tokens", "bound", "text", "stream"), "q"),
    **dict.fromkeys(("log_p", "draws_stderr", "draws_degrees", "missed"), "d"),
    **dict.fromkeys(("upper", "effective_sample_size", "pareto_k"), "d"),
}
"""Columns, and their types in NumPy."""


class Totals:
    """Columns of answers of whole texts, to which others can be added.

    Memory holds 8 bytes for each column whose numbers differ: 40 a text where nothing
    is drawn, about 100 else. Log-weights are summed over texts at once.
    """

    def __init__(self, answers: Iterable[Answer] = ()) -> None:
        self._columns = {name: _Column(kind) for name, kind in _KINDS.items()}
        self._size = 0
        self._products: Tensor | None = None
        self._all_weighted = True
        self.unspelled = 0
        """Unknown words charged as a class."""
        self.respaced = 0
        """Gaps of unusual white space that were not charged."""
        self.left_out = 0
        """Unknown words that were not scored."""
        for answer in answers:
            self.add(answer)

    def __len__(self) -> int:
        return self._size

    def add(self, answer: Answer) -> None:
        estimate = answer.estimate
        # Exact ones draw nothing, and have no stream.
        stream = answer.stream or f"text {self._size}"
        row = {
            "words": answer.words,
            "bytes": answer.bytes,
            "tokens": answer.tokens,
            "bound": _BOUNDS.index(estimate.bound),
            "text": _key(answer.text or stream),
            "stream": _key(stream),
            "log_p": estimate.log_evidence,
            "draws_stderr": estimate.draws_stderr,
            "draws_degrees": estimate.draws_degrees,
            "missed": _or_nan(estimate.missed),
            "upper": _or_nan(estimate.upper),
            "effective_sample_size": _or_nan(estimate.effective_sample_size),
            "pareto_k": _or_nan(estimate.pareto_k),
        }
        for name, value in row.items():
            self._columns[name].add(value)
        self._weigh(estimate)
        self.unspelled += answer.unspelled
        self.respaced += answer.respaced
        self.left_out += answer.left_out
        self._size += 1

    def _weigh(self, estimate: Estimate) -> None:
        if estimate.bound is Bound.STOCHASTIC_LOWER and not estimate.log_weights:
            self._all_weighted = False
        if estimate.bound is Bound.EXACT:  # weighs the same under every draw
            return
        log_w = torch.tensor(estimate.log_weights, dtype=torch.float64)
        if self._products is None:
            self._products = log_w
        else:
            least = min(len(log_w), len(self._products))
            self._products = self._products[:least] + log_w[:least]

    def column(self, name: str) -> NDArray[Any]:
        """Return a column, (N,): whole numbers, or float64 with NaN for None."""
        return self._columns[name].numpy()

    def total(self, name: str) -> int:
        return int(self.column(name).sum())

    @property
    def bounds(self) -> set[Bound]:
        """Kinds of bounds of the answers."""
        return {_BOUNDS[index] for index in np.unique(self.column("bound"))}

    def are(self, bound: Bound) -> NDArray[np.bool_]:
        """Return which answers are bounds of a kind, (N,)."""
        return np.asarray(self.column("bound") == _BOUNDS.index(bound))

    @property
    def log_p(self) -> Tensor:
        """Log p-hat of the texts, nats, (N,)."""
        return torch.tensor(self.column("log_p"))

    @property
    def estimates(self) -> EstimateColumns:
        """Columns that errors of rates are made of."""
        return EstimateColumns(
            self.column("log_p"),
            self.column("draws_stderr"),
            self.column("draws_degrees"),
            self.column("missed"),
            ~self.are(Bound.ESTIMATED_LOWER),
        )

    @property
    def corpus_weights(self) -> Tensor | None:
        """Products of the texts' weights, nats, (K,); None if a text has none.

        K is that of the text with the fewest.
        """
        if self._products is None or not len(self._products):
            return None
        return self._products + math.fsum(self.column("log_p")[self.are(Bound.EXACT)])

    @property
    def all_weighted(self) -> bool:
        """Whether the weights of all that was drawn are known."""
        return self._all_weighted


class _Column:
    """Numbers of which equal ones take no memory."""

    def __init__(self, kind: str) -> None:
        self._kind, self._size, self._same = kind, 0, 0.0
        self._values: NDArray[Any] | None = None

    def add(self, value: float) -> None:
        same = self._same if self._size else value
        are_equal = value == same or (math.isnan(value) and math.isnan(same))
        if self._values is None and are_equal:
            self._same = value
        else:
            values = self._with_room()
            values[self._size] = value
        self._size += 1

    def _with_room(self) -> NDArray[Any]:
        """Return an array with room for one more, an eighth longer when it is full."""
        if self._values is None:
            self._values = np.full(self._size + 1, self._same, dtype=self._kind)
        elif len(self._values) == self._size:
            longer = np.empty(self._size + self._size // 8 + 1, dtype=self._kind)
            longer[: self._size] = self._values
            self._values = longer
        return self._values

    def numpy(self) -> NDArray[Any]:
        """Return the numbers, which later ones do not change."""
        if self._values is None:
            same = np.array(self._same, dtype=self._kind)
            return np.broadcast_to(same, self._size)
        return self._values[: self._size]


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


def _key(name: str) -> int:
    """Return a number for a name, 64 bits of a digest."""
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8)
    return int.from_bytes(digest.digest(), "big", signed=True)
