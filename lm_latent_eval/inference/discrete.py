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

Passes that all miss the same latents agree with each other. So the estimate is made
again, with other random numbers, by narrower passes: what width finds is what more of
it may find. Where the proposal has another look-ahead, others, as narrow, go by that:
they keep other latents, and what they find beyond the estimate is missing in it. Both
are part of the error. All passes are groups of one search.

Source: Fearnhead and Clifford (2003), "On-line inference for hidden Markov models via
particle filters".
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

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
from lm_latent_eval.inference.unfolding import SearchedProposal, Thinning
from lm_latent_eval.latent import offers

PASSES = 5
"""Independent passes: the fewest whose spread says how far they err."""
CHECKS, NARROWER = 3, 2
"""Passes of each kind that check the estimate, and how many times narrower they are.
Passes a fourth as wide differ by their own noise more than by what wide ones miss."""
DEGREES = PASSES - 1 + CHECKS - 1
"""Degrees of freedom of the variance that passes and narrower passes have together."""
LONG_WORDS, LONGEST = 100, 300
"""In texts of more words, whose errors add up, more places are used at least, by the
square of how many times as many words they have, no more than the second number."""
LIKELY = 0.5
"""Ratio of the estimate's standard error to its distance from a
check. Were it all noise, of a variance of one over W, it would be 0.48: that of the
difference is 1 + 2 * 5 / 3 times the estimate's."""
LEAST_ERROR = 0.3
"""Over 1 / W, nats: what passes that agree in all err by, measured; of long texts more,
as ``LONG_WORDS`` says."""
MOST_FOUND, MOST_FOUND_SHARE = 1.0, 0.0025
"""No error is given where passes and check are further apart, in nats and as a share of
-log p."""
WIDEST, WIDEST_SHARE = 2.0, 0.01
"""No error is given where passes range over more, likewise."""


@dataclass(frozen=True)
class Passes(Gathered):
    """B texts with the latents that N passes have kept, up to W each.

    R estimate p(x), C are narrower. If there is another look-ahead, C more go by it.
    The latents are weighted by log p(x, z), as those of a beam, (B, N W). Whether
    anything was left out, ``cut``, is known of every pass, (B, N).
    """

    log_f: Tensor
    """Log of one over the probability that each survived, (B, N W) float64 nats."""

    @property
    def log_w(self) -> Tensor:
        """Weights as ``Weights`` reads them, (B, R + 2 C + 1) float64 nats."""
        total = self.found.log_w + self.log_f
        log_p = total.unflatten(-1, (self.cut.shape[1], -1)).logsumexp(-1)
        missing = PASSES + 2 * CHECKS - log_p.shape[1]
        log_p = F.pad(log_p, (0, missing), value=-torch.inf)
        return with_mark(log_p, self.cut[:, :PASSES].any(1))

    @property
    def shares(self) -> Tensor:
        """Weights of the latents; those of narrower passes predict nothing."""
        weights = (self.found.log_w + self.log_f).clone()
        weights[:, weights.shape[1] // self.cut.shape[1] * PASSES :] = -torch.inf
        return weights

    def select(self, index: Tensor) -> Passes:
        return Passes(self.found.select(index), self.cut[index], self.log_f[index])


class Weights(NamedTuple):
    """What was found of a text: a row of ``Passes.log_w``, or several."""

    passes: Tensor
    """Logarithms of independent unbiased estimates of p(x), (..., R) nats."""
    narrow: Tensor
    """Log estimates of p(x) by half as wide passes, nats, (..., C)."""
    other: Tensor
    """Log estimates of p(x) by half as wide passes with another look-ahead, nats,
    (..., C); ``-inf`` if the model has none."""
    mark: Tensor
    """0 where passes left nothing out, else ``-inf``, (..., 1)."""

    @classmethod
    def of(cls, log_w: Tensor) -> Weights:
        """Read rows, (..., R + 2 C + 1)."""
        return cls(*log_w.split([PASSES, CHECKS, CHECKS, 1], -1))

    @property
    def grown(self) -> float:
        """Return the estimate less that of the half as wide passes, nats."""
        return (log_evidence(self.passes) - log_evidence(self.narrow)).item()

    @property
    def found(self) -> float:
        """Return what passes that look ahead otherwise find beyond it, nats."""
        return max(0.0, (log_evidence(self.other) - log_evidence(self.passes)).item())


@dataclass(frozen=True)
class DiscreteFilter(Estimator):
    """Five unbiased passes over K histories, and narrower ones that check them."""

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
    def narrow_width(self) -> int:
        """The width of each pass that checks."""
        return max(1, self.width // NARROWER)

    @property
    def beside(self) -> int:
        """Evaluations of p(x, z) beside those of the passes."""
        return 2 * CHECKS * self.narrow_width

    @property
    def held(self) -> int:
        """Latents of a text that are held at once: all."""
        return self.num_samples + self.beside

    @property
    def kept(self) -> int:
        """Log-weights in an estimate: one a pass."""
        return PASSES

    def _thinned(
        self,
        texts: Texts,
        q: Any,
        words: Tensor,
        score: Tensor | None = None,
        was_cut: Tensor | None = None,
    ) -> Thinning:
        """Search in all passes at once, whose random numbers are independent.

        A word that a look-ahead did not expect moves a rank by about what a word costs.
        What seems less probable than that is not worth a whole place: texts that fit a
        model well need few.

        Args:
            texts: Pieces.
            q: As the proposal encodes them.
            words: Of the texts that they are of, on the host, (B,).
            score: Of the latents so far, nats, (B, K); None: there are none.
            was_cut: Whether passes have left anything out so far, (B, N).
        """
        proposal = texts.proposal
        if not isinstance(proposal, SearchedProposal):
            raise ValueError(
                f"estimator={self.name}: the proposal {proposal.name!r} does not list "
                "its choices step by step; use is or smc"
            )
        checks = CHECKS if proposal.checks else 0
        widths = [self.width] * PASSES + [self.narrow_width] * (CHECKS + checks)
        number = len(widths)
        uniforms = texts.streams(number)
        whole = torch.ones(len(texts.keys), number, dtype=torch.bool)
        if was_cut is not None:
            (whole,) = fetched(~was_cut.expand(-1, number))
        factor = _places_factor(words)
        # Each of its words may be the one that was not expected.
        chances = words.clamp(1, LONGEST) * factor.square()
        doubt = proposal.word_cost(q) + chances.log()
        cut = Thinned(tuple(widths), uniforms, whole, doubt, factor, CHECKS, checks)
        return proposal.search(q, cut, score)

    def extend(self, texts: Texts, after: Weighted | None) -> Passes:
        """Read on: search and thin over some more tokens.

        Raises:
            ValueError: If the proposal does not say what its steps are, or cannot stop
                where the text does.
        """
        if not (texts.whole or offers(texts.proposal, "advance")):
            raise ValueError(
                f"estimator={self.name}: the proposal {texts.proposal.name!r} reads "
                "whole texts, and cannot go on after one"
            )
        if not isinstance(after, Passes):  # the beginning
            begin = as_particles(after, texts)
            after = Passes(begin, torch.zeros_like(begin.log_w) > 0, begin.log_w)
        _, words = texts.batch.on_host

        def read(piece: Texts, before: Passes) -> Passes:
            return self._thin(piece, before, words)

        return in_pieces(_with_checks(texts), after, read)

    def _thin(self, texts: Texts, before: Passes, words: Tensor) -> Passes:
        """Thin pieces, the tokens that follow, and weigh what survives."""
        old = before.found
        q = encode(texts.proposal, texts.batch, old.proposal_state)
        begun = old.log_q.shape[1] > 1
        score = old.log_q if begun else None
        kept = self._thinned(texts, q, words, score, before.cut)
        beam = kept.beam
        if not begun:  # the beginning is one, whatever pass goes on from it
            beam = replace(beam, origin=torch.zeros_like(beam.origin))
        particles = continued(texts, q, beam, old)
        log_f = kept.log_f + before.log_f.gather(1, beam.origin)
        return Passes(particles, before.cut | kept.cut, log_f)

    def unbiased(self, log_w: Tensor) -> Tensor:
        """Return the logarithms of independent unbiased estimates of p(x), (R,)."""
        return Weights.of(log_w).passes

    def estimate(
        self, log_w: Tensor, num_tokens: int, *, share: float = 1.0
    ) -> Estimate:
        """Return the estimate of one text's log p(x), from its row of weights.

        Exact where nothing was cut in any pass.

        Args:
            log_w: The row.
            num_tokens: Of the text.
            share: What passes sum of the estimate, where the rest is known; above 1 if
                what they may all have left out adds up.

        Raises:
            MissedSupportError: If p is zero for all that was found and survived.
        """
        of = Weights.of(log_w)
        if not of.mark.isneginf():
            log_p = log_evidence(of.passes).item()
            exact = Estimate.exact(log_p, num_tokens=num_tokens, estimator=self.name)
            return replace(exact, num_samples=self.num_samples)
        estimate = self.estimate_of_few(of.passes, num_tokens)
        return _with_error(estimate, of.passes, of.narrow, of.grown, of.found, share)

    def difference(
        self,
        log_w: Tensor,
        log_w_prefix: Tensor,
        num_tokens: int,
        *,
        share: float = 1.0,
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
        checked = _with_error(estimate, passes, narrow, grown, found, share)
        if checked.stderr is None:
            return checked
        replicates = influences(of.passes) - influences(of_prefix.passes)
        return replace(checked, replicates=tuple(replicates.tolist()))

    def ratio_stderr(self, whole: Tensor, prefix: Tensor) -> float:
        """Return the error of a difference: of as many passes as there are."""
        return stderr_of_few(super().ratio_stderr(whole, prefix), PASSES)


def _with_checks(texts: Texts) -> Texts:
    """Return texts with the look-ahead of passes that check, if there is one."""
    proposal = texts.proposal
    if isinstance(proposal, SearchedProposal):
        return texts.by(proposal.with_checks())
    return texts


def _places_factor(words: Tensor) -> Tensor:
    """Return how many times as many places texts of so many words use at least."""
    return (words.clamp(LONG_WORDS, LONGEST) / LONG_WORDS).square()


def _with_error(
    estimate: Estimate,
    passes: Tensor,
    narrow: Tensor,
    grown: float,
    found: float,
    share: float = 1.0,
) -> Estimate:
    """Add the error of an estimate where passes and their check agree.

    Passes that agree in all may have left out the same.

    Args:
        estimate: Without an error.
        passes: What each pass alone estimates, (R,) nats.
        narrow: What each narrower pass does, (C,) nats.
        grown: What the estimate is above that of narrower passes, nats.
        found: What passes that look ahead otherwise find beyond it, nats.
        share: What passes sum of the estimate, where the rest is known.
    """
    far = -estimate.log_evidence
    range_of = (passes.max() - passes.min()).item()
    agree = range_of <= max(WIDEST, WIDEST_SHARE * far) and narrow.isfinite().all()
    most = max(MOST_FOUND, MOST_FOUND_SHARE * far)
    if not (agree and abs(grown) <= most and abs(found) <= most):
        return estimate  # NaN, of a check or a pass that found nothing, included
    drawn = stderr_of_log_normal(_variance(passes, narrow), PASSES)
    factor = _places_factor(torch.tensor(estimate.num_tokens)).item()
    least = LEAST_ERROR * factor * share * PASSES / estimate.num_samples
    error = math.hypot(drawn, LIKELY * grown, LIKELY * found, least)
    return replace(estimate, stderr=error, draws_stderr=drawn, draws_degrees=DEGREES)


def _variance(passes: Tensor, narrow: Tensor) -> Tensor:
    """Return the variance of a pass's logarithm, square nats, as all passes tell it.

    That of a narrower pass is ``NARROWER`` times as large. Logarithms of sums over many
    words are normal: where passes differ much, how far apart these are says how far the
    mean errs, and the largest of a few hardly does.
    """
    of_passes, of_narrow = passes.var(), narrow.var() / NARROWER
    return ((PASSES - 1) * of_passes + (CHECKS - 1) * of_narrow) / DEGREES
