r"""Discrete particle filters with unbiased thinning.

R independent passes hold up to W histories each, all distinct. At every step each pass
lists every choice of every history, ranks them by log p so far plus what is expected
ahead, and cuts them to W without changing what sums over them are on average
(``cuts.Thinned``). A survivor z weighs p(x, z) over its probability to survive, f:

.. math::
    \hat p_r = \sum_{z \text{ survived } r} p(x, z) \, f_r(z), \qquad
    \hat p(x) = \frac{1}{R} \sum_{r=1}^{R} \hat p_r

Every pass is unbiased for p(x), whatever the ranks are. With W large enough nothing is
cut, and p(x) is exact.

Passes that all miss the same latents agree with each other. So other passes check them,
with random numbers of their own: coarse and fine ones, which keep fewer places, and,
where the proposal has another look-ahead, some that go by that and keep other
latents. What fine passes find beyond coarse ones, and the other look-ahead beyond both,
says how many places a text needs. That, and what the estimate differs by from fine
passes, is its error. The checks choose places and add nothing to the estimate.

Source: Fearnhead and Clifford (2003), "On-line inference for hidden Markov models via
particle filters".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from lm_latent_eval.devices import fetched
from lm_latent_eval.estimators import (
    Bound,
    Estimate,
    influences,
    log_evidence,
    stderr_of_log_normal,
)
from lm_latent_eval.inference.cuts import Thinned
from lm_latent_eval.inference.interface import (
    Estimator,
    Texts,
    Weighted,
    stderr_of_few,
)
from lm_latent_eval.inference.particles import (
    Gathered,
    as_particles,
    continued,
    encode,
    in_pieces,
    with_mark,
)
from lm_latent_eval.inference.unfolding import SearchedProposal
from lm_latent_eval.latent import offers

PASSES = 5
"""Independent passes: the fewest whose spread says how far they err."""
CHECKS, OTHERS = 2, 3
"""Coarse passes, and as many fine ones; and passes by another look-ahead. One of these
may be nats above log p: of a demonstration text one in five is."""
COARSE, FINE, FINEST = 4**1, 4**3, 4**7
"""Over 1 / W, the share of the total that is worth a place: of coarse passes, of fine
ones, and of those that estimate where these disagree."""
AGREE = 0.01
"""Nats that fine passes may find beyond coarse ones, and the other look-ahead."""
NARROWEST = 16
"""Histories of a pass, at least, for an error to be told: of a garden path 21 of 150
intervals by twelve did not hold, and none by sixteen."""
DEGREES = PASSES - 1
"""Degrees of freedom of the variance of passes."""
LIKELY = 0.5
"""Ratio of the estimate's standard error to its distance from a check."""
MOST_FOUND, MOST_FOUND_SHARE = 1.0, 0.0025
"""No error is given where passes and check are further apart, in nats and as a share of
-log p."""
WIDEST, WIDEST_SHARE = 2.0, 0.01
"""No error is given where passes range over more, likewise."""


@dataclass(frozen=True)
class Passes(Gathered):
    """B texts with the latents that N passes have kept, up to W each.

    The latents are weighted by log p(x, z), as those of a beam, (B, N W). Whether
    anything was left out, ``cut``, is known of every pass, (B, N).
    """

    log_f: Tensor
    """Log of one over the probability that each survived, (B, N W) float64 nats."""
    checks: Passes | None
    """Passes that check them, fine ones, coarse ones and some by another look-ahead;
    None: there is no other, and fine ones are the last of the N."""

    @property
    def log_p(self) -> Tensor:
        """What each pass estimates, (B, N) float64 nats."""
        total = self.found.log_w + self.log_f
        log_p: Tensor = total.unflatten(-1, (self.cut.shape[1], -1)).logsumexp(-1)
        return log_p

    @property
    def log_w(self) -> Tensor:
        """Weights as ``Weights`` reads them, (B, R + C + O + 1) float64 nats."""
        passes, narrow = self.log_p[:, :PASSES], self.log_p[:, PASSES:]
        other = torch.full_like(passes[:, :OTHERS], -torch.inf)
        if self.checks is not None:
            found = self.checks.log_p
            fine, coarse, other = found.split([CHECKS, CHECKS, OTHERS], 1)
            narrow = torch.where(_agree(found)[:, None], coarse, fine)
        row = torch.cat([passes, narrow, other], 1)
        return with_mark(row, self.cut[:, :PASSES].any(1))

    @property
    def shares(self) -> Tensor:
        """Weights of the latents; those of checks predict nothing."""
        weights = (self.found.log_w + self.log_f).clone()
        weights[:, weights.shape[1] // self.cut.shape[1] * PASSES :] = -torch.inf
        return weights

    def select(self, index: Tensor) -> Passes:
        found, checks = self.found.select(index), self.checks
        there = None if checks is None else checks.select(index)
        return Passes(found, self.cut[index], self.log_f[index], there)


class Weights(NamedTuple):
    """What was found of a text: a row of ``Passes.log_w``, or several."""

    passes: Tensor
    """Logarithms of independent unbiased estimates of p(x), (..., R) nats."""
    narrow: Tensor
    """Log estimates of p(x) by passes of fewer places, nats, (..., C)."""
    other: Tensor
    """Log estimates of p(x) by another look-ahead, nats, (..., O); ``-inf`` if the
    model has none."""
    mark: Tensor
    """0 where passes left nothing out, else ``-inf``, (..., 1)."""

    @classmethod
    def of(cls, log_w: Tensor) -> Weights:
        """Read rows, (..., R + C + O + 1)."""
        checks = log_w.shape[-1] - PASSES - OTHERS - 1
        return cls(*log_w.split([PASSES, checks, OTHERS, 1], -1))

    @property
    def grown(self) -> float:
        """Return the estimate less that of passes of fewer places, nats."""
        return (log_evidence(self.passes) - log_evidence(self.narrow)).item()

    @property
    def found(self) -> float:
        """Return what passes that look ahead otherwise find beyond it, nats."""
        return max(0.0, (log_evidence(self.other) - log_evidence(self.passes)).item())

    @property
    def surely(self) -> float:
        """Return what each of these finds beyond it, nats."""
        return max(0.0, (self.other.min() - log_evidence(self.passes)).item())


@dataclass(frozen=True)
class DiscreteFilter(Estimator):
    """Five unbiased passes over K histories, and others that check them."""

    name: ClassVar[str] = "dpf"
    how: ClassVar[str] = (
        "latents are searched in independent passes, which thin them without bias, by "
        "the {proposal} proposal, seed {seed} (effective samples count passes, which "
        "are five)"
    )
    checks: ClassVar[bool] = True
    searches: ClassVar[bool] = True
    own_proposal: ClassVar[bool] = True
    num_samples: int
    """K, histories of all passes together."""
    narrowest: int = NARROWEST
    """Histories of a pass, at least, for an error to be told."""

    def __post_init__(self) -> None:
        """Refuse a number that cannot be divided."""
        if self.num_samples % PASSES:
            raise ValueError(
                f"num_samples={self.num_samples}: estimator={self.name} needs a "
                f"multiple of {PASSES}, the passes that they are divided among"
            )

    @property
    def width(self) -> int:
        """W, of each pass."""
        return self.num_samples // PASSES

    @property
    def check_widths(self) -> list[int]:
        """Of fine passes, of coarse ones, and of those by another look-ahead."""
        fine, coarse = max(1, self.width // 2), max(1, self.width // 4)
        return [fine] * CHECKS + [coarse] * CHECKS + [fine] * OTHERS

    @property
    def beside(self) -> int:
        """Evaluations of p(x, z) beside those of the passes."""
        return sum(self.check_widths)

    @property
    def held(self) -> int:
        """Latents of a text that are held at once: all."""
        return self.num_samples + self.beside

    @property
    def kept(self) -> int:
        """Log-weights in an estimate: one a pass."""
        return PASSES

    def extend(self, texts: Texts, after: Weighted | None) -> Passes:
        """Read on: search and thin over some more tokens.

        Raises:
            ValueError: If the proposal does not say what its steps are, or cannot stop
                where the text does.
        """
        proposal = texts.proposal
        if not (texts.whole or offers(proposal, "advance")):
            raise ValueError(
                f"estimator={self.name}: the proposal {proposal.name!r} reads "
                "whole texts, and cannot go on after one"
            )
        if not isinstance(after, Passes):  # the beginning
            begin = as_particles(after, texts)
            after = Passes(begin, torch.zeros_like(begin.log_w) > 0, begin.log_w, None)
        texts = texts.by(self._searched(texts).with_checks())
        return in_pieces(texts, after, self._read)

    def _searched(self, texts: Texts) -> SearchedProposal:
        """Return the proposal, which must be one that searches."""
        proposal = texts.proposal
        if not isinstance(proposal, SearchedProposal):
            raise ValueError(
                f"estimator={self.name}: the proposal {proposal.name!r} does not list "
                "its choices step by step; use is or smc"
            )
        return proposal

    def _read(self, texts: Texts, before: Passes) -> Passes:
        """Read pieces, the tokens that follow, in all passes, the checks first."""
        q = encode(texts.proposal, texts.batch, before.found.proposal_state)
        passes, checks = [self.width] * PASSES, self.check_widths
        if not self._searched(texts).checks:  # nothing says that fewer places do
            worth = _shares([FINEST] * PASSES + [FINE] * CHECKS, texts)
            return self._thin(texts, before, q, passes + checks[:CHECKS], worth)
        begun = before.checks or before
        # At the beginning all go on from the same.
        state = begun.found.proposal_state
        again = q if begun is before else encode(texts.proposal, texts.batch, state)
        over = [FINE] * CHECKS + [COARSE] * CHECKS + [FINE] * OTHERS
        worth = _shares(over, texts)
        found = self._thin(texts, begun, again, checks, worth, checks=True)
        agree = _agree(found.log_p).cpu()[:, None]
        easy, hard = (_shares([over] * PASSES, texts) for over in (FINE, FINEST))
        worth = torch.where(agree, easy, hard)
        return replace(self._thin(texts, before, q, passes, worth), checks=found)

    def _thin(
        self,
        texts: Texts,
        before: Passes,
        q: Any,
        widths: Sequence[int],
        worth: Tensor,
        *,
        checks: bool = False,
    ) -> Passes:
        """Thin pieces, and weigh what survives.

        Args:
            texts: The tokens that follow.
            before: Passes over the text so far.
            q: The pieces as the proposal encodes them.
            widths: Of each pass.
            worth: Share of the total that is worth a place, times W, (B, N).
            checks: Whether all passes check others, the last by another look-ahead.
        """
        old, number = before.found, len(widths)
        begun = old.log_q.shape[1] > 1
        (whole,) = fetched(~before.cut.expand(-1, number))
        # Passes that estimate have the first random numbers.
        uniforms = texts.streams(number, PASSES * checks)
        others = OTHERS * checks
        narrow = number - others if checks else number - PASSES
        worth = worth / self.width
        cut = Thinned(tuple(widths), uniforms, whole, worth, narrow, others)
        proposal = self._searched(texts)
        kept = proposal.search(q, cut, old.log_q if begun else None)
        beam = kept.beam
        if not begun:  # the beginning is one, whatever pass goes on from it
            beam = replace(beam, origin=torch.zeros_like(beam.origin))
        particles = continued(texts, q, beam, old)
        log_f = kept.log_f + before.log_f.gather(1, beam.origin)
        return Passes(particles, before.cut | kept.cut, log_f, None)

    def unbiased(self, log_w: Tensor) -> Tensor:
        """Return the logarithms of independent unbiased estimates of p(x), (R,)."""
        return Weights.of(log_w).passes

    def estimate(self, log_w: Tensor, num_tokens: int) -> Estimate:
        """Return the estimate of one text's log p(x), from its row of weights.

        Exact where nothing was cut in any pass.

        Args:
            log_w: The row.
            num_tokens: Of the text.

        Raises:
            MissedSupportError: If p is zero for all that was found and survived.
        """
        of = Weights.of(log_w)
        if not of.mark.isneginf():
            log_p = log_evidence(of.passes).item()
            exact = Estimate.exact(log_p, num_tokens=num_tokens, estimator=self.name)
            return replace(exact, num_samples=self.num_samples)
        estimate = self.estimate_of_few(of.passes, num_tokens)
        apart = of.grown, of.surely
        return self._with_error(estimate, of.passes, of.narrow, apart, of.found)

    def difference(
        self, log_w: Tensor, log_w_prefix: Tensor, num_tokens: int
    ) -> Estimate:
        """Estimate log p(continuation | prefix), both from the same passes.

        Its error is of the difference as well: what the passes and their check change
        in both alike does not count.
        """
        estimate = super().difference(log_w, log_w_prefix, num_tokens)
        if estimate.bound is Bound.EXACT:
            return replace(estimate, replicates=(estimate.log_evidence,))
        of, of_prefix = Weights.of(log_w), Weights.of(log_w_prefix)
        grown, found = of.grown - of_prefix.grown, of.found - of_prefix.found
        narrow = of.narrow - of_prefix.narrow
        passes = of.passes - of_prefix.passes
        apart = grown, of.surely - of_prefix.surely
        checked = self._with_error(estimate, passes, narrow, apart, found)
        if checked.stderr is None:
            return checked
        replicates = influences(of.passes) - influences(of_prefix.passes)
        return replace(checked, replicates=tuple(replicates.tolist()))

    def _with_error(
        self,
        estimate: Estimate,
        passes: Tensor,
        narrow: Tensor,
        apart: tuple[float, float],
        found: float,
    ) -> Estimate:
        """Add the error of an estimate where passes and their checks agree.

        Passes of less than ``narrowest`` histories agree whatever they miss.

        Args:
            estimate: Without an error.
            passes: What each pass alone estimates, (R,) nats.
            narrow: What each pass of fewer places does, (C,) nats.
            apart: What the estimate is above that of these, and what each pass that
                looks ahead otherwise finds beyond it, nats.
            found: What passes that look ahead otherwise find beyond it, nats.
        """
        far = -estimate.log_evidence
        range_of = (passes.max() - passes.min()).item()
        agree = range_of <= max(WIDEST, WIDEST_SHARE * far) and narrow.isfinite().all()
        most = max(MOST_FOUND, MOST_FOUND_SHARE * far)
        near = all(abs(nats) <= most for nats in apart)
        if not (agree and near and self.width >= self.narrowest):
            return estimate  # NaN, of a check or a pass that found nothing, included
        drawn = stderr_of_log_normal(passes.var(), PASSES)
        error = math.hypot(drawn, LIKELY * apart[0], LIKELY * found)
        return replace(
            estimate, stderr=error, draws_stderr=drawn, draws_degrees=DEGREES
        )

    def ratio_stderr(self, whole: Tensor, prefix: Tensor) -> float:
        """Return the error of a difference: of as many passes as there are."""
        return stderr_of_few(super().ratio_stderr(whole, prefix), PASSES)


def _shares(over: Sequence[int], texts: Texts) -> Tensor:
    """Return one over some numbers, for each text, (B, N)."""
    return torch.tensor(over).double().reciprocal().expand(len(texts.keys), -1)


def _agree(checks: Tensor) -> Tensor:
    """Return in which texts checks agree, (B,), given what each pass finds, (B, N)."""
    parts = checks.split([CHECKS, CHECKS, OTHERS], 1)
    fine, coarse, other = (
        part.logsumexp(1) - math.log(part.shape[1]) for part in parts
    )
    beyond = other - fine
    agree: Tensor = ((fine - coarse).abs() <= AGREE) & (beyond <= AGREE)
    return agree
