r"""Log-weights of a corpus in the study's ledger, and corpus totals from them.

K samples of a text are K / k disjoint replicates of k samples. With
:math:`\ell_n^{(r)} = \log \frac{1}{k} \sum_{j \in r} w_{nj}`,

.. math::
    L^{(r)} = \sum_n \ell_n^{(r)}, \qquad L^* = \sum_n \ell_n^{(r_n)}

:math:`L^{(1)}`, from the first k samples, is the curve over k, all :math:`L^{(r)}` are
its replicates. Texts draw independently, so any choice :math:`r_n` of replicates makes
another corpus estimate, distributed as every other. ``RECOMBINED`` random ones, the
same in every run, show that distribution where the R replicates are few. They vary less
than estimates from fresh draws do, by 1 - 1/R, and their mean has an error, of 1/R of
the variance; so a fresh estimate is distributed as

.. math::
    \bar L + \sqrt{\frac{R + 1}{R - 1}} \, (L^* - \bar L)

is, over the draws. Everything is a sum over texts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lm_latent_eval.estimators import (
    effective_sample_size,
    log_evidence,
    log_grid,
    pareto_k,
    perplexity,
    stderr,
)
from lm_latent_eval.estimators.diagnostics import RELIABLE_PARETO_K
from lm_latent_eval.inference.streams import stream_key
from lm_latent_eval.ledger.database import Found, Ledger, Rows
from lm_latent_eval.scoring.texts import Text

Key = tuple[int, int]
"""Text and sentence."""
FILE = "draws.sqlite"
FORMAT = 1
ROWS_AT_ONCE = 1 << 22
"""Log-weights read at a time."""


def ledger(directory: Path) -> Ledger:
    """Return the file of a study's log-weights."""
    return Ledger(directory / FILE, "file of draws", FORMAT)


@dataclass(frozen=True)
class DrawnRows:
    """Some sentences."""

    keys: list[Key]
    num_tokens: Tensor
    """(n,), int64."""
    log_w: Tensor
    """(n, K) nats, float64."""


@dataclass(frozen=True)
class Draws:
    """The log-weights of one setting.

    Attributes:
        rows: Of the study's ledger.
        setting: The name of the setting.
        num_samples: K.
    """

    rows: Rows
    setting: str
    num_samples: int

    def keys(self) -> set[Key]:
        """Return which sentences are there.

        Raises:
            ValueError: If something else is.
        """
        found = self.rows.keys(self.setting)
        if any(tuple(map(type, key)) != (int, int) for key in found):
            raise self.rows.ledger.not_one(f"{self.setting} is of no sentences")
        return {(int(text), int(sentence)) for text, sentence in found}

    def append(self, found: Iterable[tuple[Text, Tensor]]) -> Iterator[Text]:
        """Keep log-weights, (K,) nats a text, as they are found; yield each text."""
        for text, log_w in found:
            key = text.query.index, text.sentence
            row = {"num_tokens": len(text.words)}
            self.rows.add(self.setting, key, row, log_w.numpy().astype("<f8").tobytes())
            yield text

    def read(self) -> Iterator[DrawnRows]:
        """Yield the rows by text and sentence, as many as memory takes at a time.

        Raises:
            ValueError: If one was edited.
        """
        keys = sorted(self.keys())
        size = max(1, ROWS_AT_ONCE // self.num_samples)
        for start in range(0, len(keys), size):
            some = keys[start : start + size]
            found = [self.rows.get(self.setting, key) for key in some]
            num_tokens = torch.tensor([self._num_tokens(row) for row in found])
            log_w = np.frombuffer(b"".join(row.numbers for row in found), "<f8")
            shaped = torch.from_numpy(log_w.reshape(len(some), -1).astype(float))
            yield DrawnRows(some, num_tokens, shaped)

    def _num_tokens(self, found: Found) -> int:
        number = found.row.get("num_tokens")
        if type(number) is not int or len(found.numbers) != 8 * self.num_samples:
            raise self.rows.ledger.edited(found.place, "it is no row of K log-weights")
        return number


RECOMBINED = 500
"""Corpus estimates put together from the texts' replicates."""
FEWEST_REPLICATES = 5
"""With fewer, recombinations are too much alike to show a distribution."""


@dataclass
class SizeTotals:
    """Estimates of log p of a corpus, in nats, from k samples a text."""

    replicates: Tensor
    """L of every replicate, (K // k,), float64; the first is of the first k samples."""
    recombined: Tensor
    """L* of every recombination, (RECOMBINED,), or (0,) where replicates are few."""

    def predicted(self) -> Tensor:
        """Return estimates that are distributed as one from fresh draws."""
        mean, count = self.replicates.mean(), len(self.replicates)
        if not mean.isfinite() or not len(self.recombined):
            return self.recombined  # some found nothing: no spread to correct
        widened = math.sqrt((count + 1) / (count - 1))
        return mean + widened * (self.recombined - mean)


@dataclass
class Totals:
    """Sums over the texts read so far."""

    num_samples: int
    sizes: tuple[int, ...]
    seed: int
    num_texts: int = 0
    """Texts, or sentences where they are estimated by themselves."""
    num_tokens: int = 0
    instance: dict[int, SizeTotals] = field(init=False)
    corpus: Tensor = field(init=False)
    """Sum over texts of log w_nk, (K,): the log-weights of the corpus."""
    variance: float = 0.0
    """Sum of the squared standard errors at K."""
    sample_sizes: list[float] = field(default_factory=list)
    """The texts' effective sample sizes."""
    unreliable: int = 0
    """Texts whose Pareto k is too large."""

    def __post_init__(self) -> None:
        self.corpus = torch.zeros(self.num_samples, dtype=torch.float64)
        self.instance = {}
        for size in self.sizes:
            count = self.num_samples // size
            many = RECOMBINED if count >= FEWEST_REPLICATES else 0
            self.instance[size] = SizeTotals(
                torch.zeros(count, dtype=torch.float64),
                torch.zeros(many, dtype=torch.float64),
            )

    @classmethod
    def of_samples(cls, num_samples: int, replicate: int, seed: int) -> Totals:
        """Read K samples a text, at every size of a grid and that of a replicate."""
        sizes = sorted({*log_grid(num_samples), replicate})
        return cls(num_samples, tuple(sizes), seed)

    def add(self, rows: DrawnRows) -> None:
        """Take in some texts."""
        self.num_texts += len(rows.keys)
        self.num_tokens += int(rows.num_tokens.sum())
        self.corpus += rows.log_w.sum(0)
        chance = torch.stack([self._chance(key) for key in rows.keys])
        for size, level in self.instance.items():
            count = len(level.replicates)
            parts = rows.log_w[:, : count * size].unflatten(-1, (count, size))
            log_p = log_evidence(parts)
            level.replicates += log_p.sum(0)
            if len(level.recombined):
                chosen = (chance * count).long()
                level.recombined += log_p.gather(1, chosen).sum(0)
        self.variance += stderr(rows.log_w).square().sum().item()
        self.sample_sizes += effective_sample_size(rows.log_w).tolist()
        self.unreliable += int((pareto_k(rows.log_w) > RELIABLE_PARETO_K).sum())

    def _chance(self, key: Key) -> Tensor:
        """Return numbers in [0, 1) that choose a text's replicates, (RECOMBINED,)."""
        identity = f"recombine\0{key[0]}/{key[1]}"
        bits = np.random.Philox(key=stream_key(self.seed, identity))
        return torch.from_numpy(np.random.Generator(bits).random(RECOMBINED))

    def corpus_level(self, size: int) -> Tensor:
        """Return corpus-level estimates of every replicate of k samples, in nats."""
        count = self.num_samples // size
        return log_evidence(self.corpus[: count * size].unflatten(0, (count, size)))

    def perplexity(self, log_p: float) -> float:
        """Return the token perplexity of an estimate; infinite where it found nothing.

        Raises:
            ValueError: If no token is predicted.
        """
        return perplexity(log_p, self.num_tokens)
