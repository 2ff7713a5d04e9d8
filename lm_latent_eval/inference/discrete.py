r"""Discrete particle filters with unbiased thinning, beside what searches have found.

R independent passes hold up to W histories each, all distinct. At every step each pass
lists every choice of every history, ranks them by log p so far plus what is expected
ahead, and cuts them to W without changing what sums over them are on average
(``cuts.Thinned``). With W large enough nothing is cut, and p(x) is exact. A survivor
weighs p(x, z) over its probability to survive, f.

B, the latents that a beam of K finds and those that a pilot meets, is summed, and the
passes weigh what is not in it. The pilot is R passes with random numbers of their own,
which go by flatter ranks and so keep latents that a beam drops:

.. math::
    \hat p_r = \sum_{z \in B} p(x, z)
        + \sum_{z \text{ survived } r,\; z \notin B} p(x, z) \, f_r(z), \qquad
    \hat p(x) = \frac{1}{R} \sum_{r=1}^{R} \hat p_r

Given B, which does not depend on the passes' random numbers, every pass is unbiased for
p(x), whatever the ranks are. Passes that all miss the same latents agree with each
other. So the estimate is made once more, by a beam and passes that are narrower: what
width and another ranking have found is what more of them may find, and part of the
error.

Source: Fearnhead and Clifford (2003), "On-line inference for hidden Markov models via
particle filters"; the stratum that is summed: Owen (2013), section 8.4.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from lm_latent_eval.devices import fetched, widened
from lm_latent_eval.estimators import (
    Bound,
    Estimate,
    influences,
    log_evidence,
    log_ratio_stderr,
    stderr,
    stderr_of_log_normal,
)
from lm_latent_eval.inference.beam import BeamMarginalization, SearchingEstimator
from lm_latent_eval.inference.cuts import Thinned
from lm_latent_eval.inference.interface import (
    LM,
    P,
    Predicts,
    Q,
    Sampler,
    Weighted,
    estimate_of_few,
    stderr_of_few,
)
from lm_latent_eval.inference.particles import (
    Particles,
    as_particles,
    encode_again,
    fingerprint,
    in_pieces,
    is_in,
    predicted_by,
)
from lm_latent_eval.inference.streams import Streams
from lm_latent_eval.inference.unfolding import StepProposal, Thinning
from lm_latent_eval.latent import Latents, LeftToRight
from lm_latent_eval.text.batch import TokenBatch

PASSES = 5
"""Independent passes: the fewest whose spread says how far they err."""
NARROWER = 4
"""How many times narrower the second beam and its passes are."""
FLAT = 0.25
"""Power of the ranks that the pilot goes by: of 1, 0.7, 0.5, 0.4 and 0.25 the one that
met most of what passes missed in texts that the demonstration's model fits badly."""
LIKELY = 0.35
"""How much of what width or the pilot has found is likely to be found beyond: a
standard error. Measured on texts that fit the demonstration's model well and badly."""
MOST_FOUND, MOST_FOUND_SHARE = 1.0, 0.0025
"""Nats that they may have found, or share of -log p, where an error is given."""
WIDEST, WIDEST_SHARE = 2.0, 0.01
"""Nats over which passes may range, or share of -log p, where an error is given."""
PILOT, NARROW = 1, 4
"""What tells their random numbers from those of the passes and of predictions."""
UNEVEN = 0.3
"""Nats over which a pilot may err where more width is not worth while."""
HELD = 0.5
"""Share of p that the search holds where a pilot by flat ranks can be compared with."""


@dataclass(frozen=True)
class Passes:
    """B texts with the latents that R thinned passes have kept, W each."""

    particles: Particles
    """Weighted by log p(x, z), as those of a beam, (B, R W)."""
    log_f: Tensor
    """Log of one over the probability that each survived, (B, R W) float64 nats."""
    cut: Tensor
    """Whether anything was left out of a text, (B,) bool."""

    @property
    def used(self) -> Tensor:
        """Which places hold a latent, (B, R W) bool."""
        return ~self.particles.log_q.isneginf()

    def outside(self, *found: tuple[Tensor, Tensor]) -> Tensor:
        """Return log p(x, z) of what is in none of some sets, (B, R W) nats.

        Args:
            found: Fingerprints of latents, and which of them there are.
        """
        log_p = self.particles.log_w
        for path, used in found:
            inside = is_in(self.particles.path, path, used)
            log_p = log_p.masked_fill(inside, -torch.inf)
        return log_p

    def select(self, index: Tensor) -> Passes:
        return Passes(self.particles.select(index), self.log_f[index], self.cut[index])


@dataclass(frozen=True)
class Survivors:
    """B texts with the latents that beams found, and those that passes kept."""

    found: Particles
    """By the wider beam."""
    fewer: Particles
    """By the narrower."""
    pilot: Passes
    """By flatter ranks."""
    narrow: Passes
    """Narrower ones."""
    passes: Passes

    @property
    def log_w(self) -> Tensor:
        """Weights as ``Found`` reads them, (B, 3 R + 4) float64 nats."""
        beam = self.found.path, ~self.found.log_q.isneginf()
        fewer = self.fewer.path, ~self.fewer.log_q.isneginf()
        met = self.pilot.particles.path, self.pilot.used
        more = self.pilot.outside(beam)
        once = more.masked_fill(~_first(*met), -torch.inf)
        found = self.found.log_w.logsumexp(-1, keepdim=True)
        left_out = self.passes.cut[:, None]
        parts = [
            _a_pass(self.passes.outside(beam, met) + self.passes.log_f),
            torch.logaddexp(found, once.logsumexp(-1, keepdim=True)),
            found,
            self.fewer.log_w.logsumexp(-1, keepdim=True),
            _a_pass(self.narrow.outside(fewer) + self.narrow.log_f),
            _a_pass(more + self.pilot.log_f),
            torch.zeros_like(found).masked_fill(left_out, -torch.inf),
        ]
        return torch.cat(parts, -1)

    def select(self, index: Tensor) -> Survivors:
        return Survivors(
            self.found.select(index),
            self.fewer.select(index),
            self.pilot.select(index),
            self.narrow.select(index),
            self.passes.select(index),
        )

    def ahead(
        self, model: Predicts[P], inputs: Tensor, given: TokenBatch | None = None
    ) -> Survivors:
        """Read the last token of each text, (B,), as one predicts what follows it."""
        read = self.passes.particles.ahead(model, inputs, given)
        return replace(
            self,
            found=self.found.ahead(model, inputs, given),
            passes=replace(self.passes, particles=read),
        )

    def next_token(
        self, model: Predicts[P], keys: Sequence[int], starts: Sequence[int]
    ) -> Tensor:
        """Predict the next token of each text, (B, words), see ``predicted_by``.

        By the beam and by what passes kept outside of it: the pilot is not asked.
        """
        outside = self.passes.outside((self.found.path, ~self.found.log_q.isneginf()))
        weights = outside + self.passes.log_f - math.log(PASSES)
        parts = [(self.passes.particles, weights), (self.found, self.found.log_w)]
        return predicted_by(model, parts, keys, starts)


def _a_pass(log_w: Tensor) -> Tensor:
    """Sum over the latents of each pass, (B, R W) -> (B, R) nats."""
    total: Tensor = log_w.unflatten(-1, (PASSES, -1)).logsumexp(-1)
    return total


def _first(path: Tensor, used: Tensor) -> Tensor:
    """Return one place of every latent among those that are used, (B, N) bool."""
    place = (~used).long().argsort(dim=-1, stable=True)
    ordered, order = path.gather(-1, place).sort(dim=-1, stable=True)
    new = F.pad(ordered.diff(dim=-1) != 0, (1, 0), value=True)
    return torch.zeros_like(new).scatter(-1, place.gather(-1, order), new)


class Weights(NamedTuple):
    """What was found of a text, nats: a row of ``Survivors.log_w``, or several."""

    added: Tensor
    """By each pass to B, (..., R)."""
    summed: Tensor
    """Log p of B, (..., 1)."""
    found: Tensor
    """Log p of what the wider beam found, (..., 1)."""
    fewer: Tensor
    """Log p of what the narrower one found, (..., 1)."""
    narrow: Tensor
    """What each narrower pass added to the narrower beam, (..., R)."""
    pilot: Tensor
    """What each pass of the pilot added to the wider beam, (..., R)."""
    mark: Tensor
    """0 where passes left nothing out, else ``-inf``, (..., 1)."""

    @classmethod
    def of(cls, log_w: Tensor) -> Weights:
        """Read rows, (..., 3 R + 4)."""
        return cls(*log_w.split([PASSES, 1, 1, 1, PASSES, PASSES, 1], -1))

    @property
    def passes(self) -> Tensor:
        """Return the logarithms of independent unbiased estimates of p(x), (R,)."""
        return torch.logaddexp(self.added, self.summed)

    @property
    def of_pilot(self) -> Tensor:
        """Return those of the pilot, likewise."""
        return torch.logaddexp(self.pilot, self.found)

    @property
    def of_narrow(self) -> Tensor:
        """Return those of the narrower passes, likewise."""
        return torch.logaddexp(self.narrow, self.fewer)

    @property
    def grown(self) -> float:
        """Return what the estimate is above that of narrower passes."""
        wide, narrow = log_evidence(self.passes), log_evidence(self.of_narrow)
        return (wide - narrow).item()

    @property
    def off(self) -> float:
        """Return what the estimate is above the pilot's.

        Where the search holds little of p, ranks as flat as the pilot's are far from p
        and its estimates too uneven to be compared with, unless they are above.
        """
        log_p = log_evidence(self.passes).item()
        off = log_p - log_evidence(self.of_pilot).item()
        held = math.exp(min(self.summed.item() - log_p, 0.0))
        return off if off < 0 or held >= HELD else held * off


@dataclass(frozen=True)
class DiscreteFilter(SearchingEstimator):
    """A beam of K, and K histories in five unbiased passes for the rest of p(x)."""

    name: ClassVar[str] = "dpf"
    how: ClassVar[str] = (
        "latents found by beam search are summed, and passes that thin the others "
        "without bias add what is left, by the {proposal} proposal, seed {seed} "
        "(effective samples count passes, which are five)"
    )
    checks: ClassVar[bool] = True
    own_proposal: ClassVar[bool] = True
    num_samples: int
    """K, the width of the beam, and of all passes together."""
    thinned: int | None = None
    """Histories of all passes together, if they are not K."""

    def __post_init__(self) -> None:
        """Refuse a number that cannot be divided."""
        if self._thinned % PASSES:
            raise ValueError(
                f"num_samples={self._thinned}: estimator={self.name} needs a "
                f"multiple of {PASSES}, the passes that they are divided among"
            )

    @property
    def width(self) -> int:
        """W, of each pass."""
        return self._thinned // PASSES

    @property
    def narrow_width(self) -> int:
        """The width of each narrower pass."""
        return max(1, self.width // NARROWER)

    @property
    def _thinned(self) -> int:
        return self.num_samples if self.thinned is None else self.thinned

    @property
    def beside(self) -> int:
        """Evaluations of p(x, z) beside those of the wider beam."""
        fewer = max(1, self.num_samples // NARROWER)
        return 2 * self._thinned + PASSES * self.narrow_width + fewer

    @property
    def held(self) -> int:
        """Latents of a text that are held at once: all."""
        return self.num_samples + self.beside

    @property
    def kept(self) -> int:
        """Log-weights in an estimate: one a pass."""
        return PASSES

    @property
    def _beams(self) -> Iterator[BeamMarginalization]:
        """What finds B, and what finds fewer."""
        yield BeamMarginalization(self.num_samples)
        yield BeamMarginalization(max(1, self.num_samples // NARROWER))

    def weigh(
        self,
        model: LM[P],
        proposal: Sampler[Q],
        batch: TokenBatch,
        keys: list[int],
        encoded: tuple[P, Q],
    ) -> Tensor:
        """Return the weights of whole texts, see ``Weights``, (B, 3 R + 4)."""
        p, q = encoded
        found, fewer = (b.search(model, proposal, p, q)[0] for b in self._beams)
        pilot, narrow, passes = (
            self._passes(model, proposal, p, q, cut) for cut in self._cuts(keys)
        )
        return Survivors(found, fewer, pilot, narrow, passes).log_w

    def _cuts(
        self, keys: Sequence[int], starts: Sequence[int] | None = None
    ) -> Iterator[Thinned]:
        """Return the cuts of the pilot, of narrower passes and of the passes.

        Their random numbers are independent.
        """
        narrow, wide = PASSES * self.narrow_width, PASSES * self.width
        of_pilot, of_narrow = (
            [key ^ other for key in keys] for other in (PILOT, NARROW)
        )
        flat = Streams(of_pilot, wide, starts=starts)
        yield Thinned(PASSES, self.width, flat, FLAT)
        some = Streams(of_narrow, narrow, starts=starts)
        yield Thinned(PASSES, self.narrow_width, some)
        yield Thinned(PASSES, self.width, Streams(keys, wide, starts=starts))

    def _passes(
        self,
        model: LM[P],
        proposal: Sampler[Q],
        p: P,
        q: Q,
        cut: Thinned,
    ) -> Passes:
        """Thin whole texts, without keeping states."""
        kept = self._thinning(proposal, q, cut)
        log_p = widened(model.log_joint(p, kept.beam.latents))
        log_p = log_p.masked_fill(kept.beam.score.isneginf(), -torch.inf)
        path = fingerprint(kept.beam.latents, torch.zeros_like(kept.beam.origin))
        particles = Particles(None, None, log_p, kept.beam.score, path)
        return Passes(particles, kept.log_f, kept.cut)

    def _thinning(
        self, proposal: Sampler[Q], q: Q, cut: Thinned, score: Tensor | None = None
    ) -> Thinning[Latents]:
        """Search, if the proposal says what its steps are.

        Raises:
            ValueError: If it does not.
        """
        if isinstance(proposal, StepProposal):
            return proposal.search(q, cut, score)
        raise ValueError(
            f"estimator={self.name}: the proposal {proposal.name!r} does not list its "
            "choices step by step; use mixed, is or smc"
        )

    def extend(
        self,
        model: LM[P],
        proposal: Sampler[Q],
        batch: TokenBatch,
        keys: list[int],
        starts: list[int],
        after: Weighted,
    ) -> Survivors:
        """Read on: search and thin over some more tokens.

        Raises:
            ValueError: If the proposal does not say what its steps are, or cannot stop
                where the text does.
        """
        if not isinstance(proposal, LeftToRight):
            raise ValueError(
                f"estimator={self.name}: the proposal {proposal.name!r} reads whole "
                "texts, and cannot go on after one"
            )
        if not isinstance(after, Survivors):  # the beginning
            begin = as_particles(after)
            nothing = torch.zeros_like(begin.log_w[:, 0], dtype=torch.bool)
            begun = Passes(begin, begin.log_w, nothing)
            after = Survivors(begin, begin, begun, begun, begun)

        def read(before: Survivors, piece: TokenBatch, at: int) -> Survivors:
            pilot, narrow, cut = self._cuts(keys, [start + at for start in starts])
            wide, few = self._beams
            return Survivors(
                wide.read(model, proposal, piece, before.found),
                few.read(model, proposal, piece, before.fewer),
                self._thin(model, proposal, piece, pilot, before.pilot),
                self._thin(model, proposal, piece, narrow, before.narrow),
                self._thin(model, proposal, piece, cut, before.passes),
            )

        return in_pieces(batch, after, read)

    def _thin(
        self,
        model: LM[P],
        proposal: Sampler[Q],
        piece: TokenBatch,
        cut: Thinned,
        before: Passes,
    ) -> Passes:
        """Thin a piece, and weigh what survives."""
        old = before.particles
        p_state, q_state = old.model_state, old.proposal_state
        q = proposal.encode(piece, q_state)
        begun = old.log_q.shape[1] > 1
        kept = self._thinning(proposal, q, cut, old.log_q if begun else None)
        beam = kept.beam
        origin = beam.origin if begun else torch.zeros_like(beam.origin)
        if p_state is not None and q_state is not None:
            (index,) = fetched(origin)
            p_state, q_state = p_state.resample(index), q_state.resample(index)
            q = encode_again(proposal, q, piece, q_state)
        p = old.encoded(model, piece, p_state)
        log_p = widened(model.log_joint(p, beam.latents)) + old.log_w.gather(1, origin)
        particles = Particles(
            model.advance(p, beam.latents),
            proposal.advance(q, beam.latents),
            log_p.masked_fill(beam.score.isneginf(), -torch.inf),
            beam.score,
            fingerprint(beam.latents, old.path.gather(1, origin)),
        )
        log_f = kept.log_f + before.log_f.gather(1, origin)
        return Passes(particles, log_f, before.cut | kept.cut)

    def unbiased(self, log_w: Tensor) -> Tensor:
        """Return the logarithms of independent unbiased estimates of p(x), (R,)."""
        return Weights.of(log_w).passes

    def guess(self, log_w: Tensor) -> float:
        """Return log p by narrower passes and the pilot, which no estimate uses."""
        of = Weights.of(log_w)
        return log_evidence(torch.cat([of.of_narrow, of.of_pilot])).item()

    def pays(self, log_w: Tensor, least: float, uneven: float) -> bool:
        """Return whether wider beams and passes are worth their cost.

        It follows from beams, narrower passes and a pilot, from no number that the
        estimate uses: so what it decides biases nothing.

        Args:
            log_w: A row of weights.
            least: What the wider beam has to have found, nats of p-hat.
            uneven: Nats over which the narrower passes have to err.
        """
        of, log_p = Weights.of(log_w), self.guess(log_w)
        if log_p == -math.inf:
            return False
        held = math.exp(min(of.summed.item() - log_p, 0.0))
        grown = (of.summed - of.fewer).item() if held else 0.0
        return (
            held * grown > least
            or held * stderr(of.of_pilot).item() > UNEVEN
            or _spread(of.of_narrow) > uneven
        )

    def estimate(self, log_w: Tensor, num_tokens: int) -> Estimate:
        """Return the estimate of one text's log p(x), from its row of weights.

        Exact where nothing was cut in any pass.

        Raises:
            MissedSupportError: If p is zero for all that was found and survived.
        """
        of = Weights.of(log_w)
        estimate = estimate_of_few(
            of.passes,
            num_samples=self.num_samples,
            num_tokens=num_tokens,
            estimator=self.name,
        )
        if not of.mark.isneginf():
            exact = Estimate.exact(
                estimate.log_evidence, num_tokens=num_tokens, estimator=self.name
            )
            return replace(exact, num_samples=self.num_samples)
        return _checked(estimate, of.passes, of.grown, of.off)

    def difference(
        self, log_w: Tensor, log_w_prefix: Tensor, num_tokens: int
    ) -> Estimate:
        """Estimate log p(continuation | prefix), both from the same passes.

        Its error is of the difference as well: what the passes, more width and a pilot
        change in both alike does not count.
        """
        of, of_prefix = Weights.of(log_w), Weights.of(log_w_prefix)
        whole, prefix = of.passes, of_prefix.passes
        log_p = (log_evidence(whole) - log_evidence(prefix)).item()
        estimate = self.estimate(log_w, num_tokens)
        if estimate.bound is Bound.EXACT:
            return replace(estimate, log_evidence=log_p, replicates=(log_p,))
        estimate = replace(
            estimate,
            log_evidence=log_p,
            stderr=None,
            draws_stderr=stderr_of_few(log_ratio_stderr(whole, prefix).item(), PASSES),
            bound=Bound.NONE,
            log_weights=(),
        )
        grown, off = of.grown - of_prefix.grown, of.off - of_prefix.off
        checked = _checked(estimate, whole - prefix, grown, off)
        if checked.stderr is None:
            return checked
        replicates = influences(whole) - influences(prefix)
        return replace(checked, replicates=tuple(replicates.tolist()))


def _checked(estimate: Estimate, passes: Tensor, grown: float, off: float) -> Estimate:
    """Add the error of an estimate where passes, width and pilot agree.

    Sums over many words are log-normal: of few passes that differ much the largest
    hardly tells how far they err, and how far apart their logarithms are does.

    Args:
        estimate: Without an error.
        passes: What each pass alone estimates, (R,) nats.
        grown: What the estimate is above that of narrower passes, nats.
        off: What it is above the pilot's, nats.
    """
    far = -estimate.log_evidence
    range_of = (passes.max() - passes.min()).item()
    agree = range_of <= max(WIDEST, WIDEST_SHARE * far)
    most = max(MOST_FOUND, MOST_FOUND_SHARE * far)
    if not (agree and abs(grown) <= most and abs(off) <= most):
        return estimate  # NaN, of a pilot or a pass that found nothing, included
    drawn = max(estimate.draws_stderr, _spread(passes))
    error = math.hypot(drawn, LIKELY * grown, LIKELY * off)
    return replace(estimate, stderr=error, draws_stderr=drawn)


def _spread(passes: Tensor) -> float:
    """Return the error of a mean of passes that are log-normal, (R,) nats."""
    if passes.isneginf().any():
        return 0.0 if passes.isneginf().all() else math.inf
    return stderr_of_log_normal(passes.var(), len(passes))
