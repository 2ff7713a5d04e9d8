"""The interface of estimators, by default of whole texts."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol, Self

from torch import Tensor

from lm_latent_eval.estimators import Bound, Estimate, log_evidence, log_ratio_stderr
from lm_latent_eval.inference.streams import Streams
from lm_latent_eval.latent import LatentLM, Proposal
from lm_latent_eval.text.batch import TokenBatch


@dataclass(frozen=True)
class Texts:
    """B texts, or pieces of texts that go on, and what weighs their latents."""

    model: LatentLM
    proposal: Proposal
    batch: TokenBatch
    keys: Sequence[int]
    """The key of each text's random numbers (``stream_key``)."""
    starts: Sequence[int] = ()
    """Number of tokens of each text before this piece; empty: 0 for all."""
    whole: bool = False
    """Whether nothing follows: then no state after the tokens is asked for."""

    def piece(self, start: int, end: int, ahead: int = 0) -> Texts:
        """Return some of the tokens, as ``TokenBatch.piece`` does."""
        starts = [before + start for before in self.starts or [0] * len(self.keys)]
        batch = self.batch.piece(start, end, ahead)
        return replace(self, batch=batch, starts=starts, whole=False)

    def select(self, index: Tensor) -> Texts:
        """Pick texts, by their numbers on the host."""
        chosen = index.tolist()
        keys = [self.keys[n] for n in chosen]
        starts = [self.starts[n] for n in chosen] if self.starts else ()
        return replace(self, batch=self.batch.select(index), keys=keys, starts=starts)

    def by(self, proposal: Proposal) -> Texts:
        """Return the texts with another proposal."""
        return replace(self, proposal=proposal)

    def streams(self, num_samples: int, first: int = 0) -> Streams:
        """Return the random numbers of K samples a text."""
        return Streams(self.keys, num_samples, first, self.starts)


class Weighted(Protocol):
    """Weighted latents of B texts that can be continued, such as ``Particles``."""

    @property
    def log_w(self) -> Tensor:
        """Log-weights so far in nats, (B, number of latents) float64."""
        ...

    def select(self, index: Tensor, /) -> Self: ...

    def ahead(
        self, model: LatentLM, inputs: Tensor, given: TokenBatch | None = None, /
    ) -> Self:
        """Read the last token of each text, (B,), as one predicts what follows it.

        Args:
            model: A latent LM.
            inputs: The last tokens.
            given: What the texts are conditional on, if they are.
        """
        ...

    def next_token(
        self, model: LatentLM, keys: Sequence[int], starts: Sequence[int], /
    ) -> Tensor:
        """Predict the next token of texts that have read ``ahead``, (B, words).

        Args:
            model: A latent LM.
            keys: The key of each text's random numbers, as ``extend`` takes it.
            starts: How many tokens each text had so far.
        """
        ...


class Estimator(ABC):
    """A way to estimate log p(x), built with its number of samples or width."""

    name: ClassVar[str]
    """Name of the estimator in ``estimator=``."""
    how: ClassVar[str]
    """Description for ``explain``; ``{proposal}``, ``{temperature}`` and ``{seed}``
    are filled in."""
    bound: ClassVar[Bound] = Bound.STOCHASTIC_LOWER
    """How log p-hat bounds log p where it is not found to be exact."""
    checks: ClassVar[bool] = False
    """Whether it looks for what its draws miss; without, no estimate has an error."""
    searches: ClassVar[bool] = False
    """Whether it needs the proposal's ``beam``."""
    own_proposal: ClassVar[bool] = False
    """Whether it searches by the model's own proposal, where that says what steps are,
    whatever ``proposal=`` names."""
    seeded: ClassVar[bool] = True
    """Whether random numbers move it."""

    num_samples: int
    """K: samples, particles or a beam's width."""

    @property
    def beside(self) -> int:
        """Evaluations of p(x, z) a text beside K."""
        return 0

    @property
    def held(self) -> int:
        """Latents of a text that are held at once, while it searches."""
        return 0

    @property
    def kept(self) -> int:
        """Log-weights in an estimate."""
        return 0

    def log_weights(self, texts: Texts, /) -> Tensor:
        """Weigh latents of whole texts: of tokens that follow and precede nothing.

        Returns:
            Nats of shape (B, number of latents), float64, as ``estimate`` reads them.
        """
        return self.extend(replace(texts, whole=True), None).log_w

    def extend(self, texts: Texts, after: Weighted | None, /) -> Weighted:
        """Read on: weigh latents of some more tokens.

        Args:
            texts: The tokens that follow; model and proposal go from left to right.
            after: The texts so far, as this has returned them; None, or
                ``Particles.begin``: there is nothing.

        Raises:
            ValueError: If the estimator takes whole texts alone, as by default.
        """
        raise ValueError(
            f"estimator={self.name} takes whole texts, and this one goes on: use "
            "auto, is or smc"
        )

    @abstractmethod
    def estimate(self, log_w: Tensor, num_tokens: int, /) -> Estimate:
        """Estimate log p of one text from its row of weights."""

    def difference(
        self, log_w: Tensor, log_w_prefix: Tensor, num_tokens: int, /
    ) -> Estimate:
        """Estimate log p(continuation | prefix) from both under the same latents.

        No bound: the estimate of the prefix, which is subtracted, is biased as well.
        But where that of the whole is exact, so is that of the prefix.

        Args:
            log_w: The row of prefix and continuation.
            log_w_prefix: The row of the prefix.
            num_tokens: Tokens of the continuation.
        """
        estimate = self.estimate(log_w, num_tokens)
        whole, prefix = self.unbiased(log_w), self.unbiased(log_w_prefix)
        log_p = (log_evidence(whole) - log_evidence(prefix)).item()
        if estimate.bound is Bound.EXACT:
            return replace(estimate, log_evidence=log_p)
        return replace(
            estimate,
            log_evidence=log_p,
            stderr=None,
            draws_stderr=self.ratio_stderr(whole, prefix),
            bound=Bound.NONE,
            log_weights=(),
        )

    def unbiased(self, log_w: Tensor, /) -> Tensor:
        """Return the logarithms of independent unbiased estimates of p(x), of a row.

        Where a row holds anything else, ``difference`` is the estimator's own.
        """
        return log_w

    def estimate_of_few(self, log_w: Tensor, num_tokens: int) -> Estimate:
        """Estimate log p(x) by the mean of R independent unbiased weights, (R,) nats.

        Their squared deviations are divided by R - 1. The error is infinite, which is
        to say unknown, of fewer than ``FEWEST``.
        """
        estimate = Estimate.from_log_weights(
            log_w, num_tokens=num_tokens, estimator=self.name, bound=self.bound
        )
        return replace(
            estimate,
            draws_stderr=stderr_of_few(estimate.draws_stderr, len(log_w)),
            draws_degrees=float(max(len(log_w) - 1, 1)),
            num_samples=self.num_samples,
            pareto_k=None,
        )

    def ratio_stderr(self, whole: Tensor, prefix: Tensor, /) -> float:
        """Return the error of a difference, nats, from unbiased estimates of both."""
        return log_ratio_stderr(whole, prefix).item()


FEWEST = 5
"""Fewer chains, filters or passes do not tell how much they vary: there is no error."""
CHAINS = 10
"""The most chains or filters, of ten samples at least: their spread is the error."""


def chains_of(num_samples: int, name: str, what: str = "chains") -> int:
    """Return the number of chains (or filters) that share K evaluations of p(x, z).

    Raises:
        ValueError: If they cannot be divided.
    """
    chains = min(CHAINS, max(1, num_samples // CHAINS))
    if num_samples % chains:
        raise ValueError(
            f"num_samples={num_samples}: estimator={name} needs a multiple of {chains},"
            f" the {what} that they are divided among"
        )
    return chains


def stderr_of_few(stderr: float, number: int) -> float:
    """Divide squared deviations by R - 1 instead of R, where R is not large.

    An interval of R weights is Student's t of R - 1 degrees of freedom. Infinite, which
    is to say unknown, of fewer than ``FEWEST``.
    """
    return math.inf if number < FEWEST else stderr * math.sqrt(number / (number - 1))
