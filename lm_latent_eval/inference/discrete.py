r"""Discrete particle filters with unbiased thinning, beside a beam.

R independent passes hold up to W histories each, all distinct. At every step each pass
lists every choice of every history, ranks them by log p so far plus what is expected
ahead, and cuts them to W without changing what sums over them are on average
(``cuts.Thinned``). With W large enough nothing is cut, and p(x) is exact. A survivor
weighs p(x, z) over its probability to survive, f. B, the K latents that a beam finds,
is summed, and the passes weigh what is not in it:

.. math::
    \hat p_r = \sum_{z \in B} p(x, z)
        + \sum_{z \text{ survived } r,\; z \notin B} p(x, z) \, f_r(z), \qquad
    \hat p(x) = \frac{1}{R} \sum_{r=1}^{R} \hat p_r

B does not depend on random numbers, so every pass is unbiased for p(x), whatever the
ranks are. Passes that all miss the same latents agree with each other. So a narrower
beam is summed as well, and a pilot made of passes that go by flatter ranks: what width
and another ranking have found is what more of them may find, and part of the error.

Source: Fearnhead and Clifford (2003), "On-line inference for hidden Markov models via
particle filters"; the stratum that is summed: Owen (2013), section 8.4.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from lm_latent_eval.devices import fetched, widened
from lm_latent_eval.estimators import (
    Bound,
    Estimate,
    influences,
    log_evidence,
    log_ratio_stderr,
    stderr,
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
    Partial,
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
"""How many times narrower the second beam is."""
FLAT = 0.25
"""Power of the ranks that the pilot goes by: of 1, 0.7, 0.5, 0.4 and 0.25 the one that
met most of what passes missed in texts that the demonstration's model fits badly."""
LIKELY = 0.35
"""How much of what width or the pilot has found is likely to be found beyond: a
standard error. Measured on texts that fit the demonstration's model well and badly."""
MOST_GROWN = 1.0
"""Nats that it may have found where an error is still given."""
UNEVEN = 0.3
"""Nats over which a pilot may err where more width is not worth while."""
WIDEST, WIDEST_SHARE = 2.0, 0.01
"""Nats over which passes may range, or share of -log p, where an error is given."""


@dataclass(frozen=True)
class Survivors:
    """B texts with the latents that beams found, and those that passes kept."""

    found: Particles
    """By the wider beam."""
    fewer: Particles
    """By the narrower."""
    passes: Partial
    pilot: Partial
    """Passes by flatter ranks, which p-hat does not use."""

    @property
    def log_w(self) -> Tensor:
        """Log of what each pass adds to B, of B, of the narrower B; pilot; a mark.

        The mark is 0 where passes left nothing out, else ``-inf``. (B, 2 R + 3) nats.
        """
        parts = [
            self._added(self.passes),
            self.found.log_w.logsumexp(-1, keepdim=True),
            self.fewer.log_w.logsumexp(-1, keepdim=True),
            self._added(self.pilot),
            self.passes.log_w[:, -1:],
        ]
        return torch.cat(parts, -1)

    def _added(self, passes: Partial) -> Tensor:
        """Return the log of what each pass adds to B, (B, R)."""
        added: Tensor = self._outside(passes).unflatten(-1, (PASSES, -1)).logsumexp(-1)
        return added

    def _outside(self, passes: Partial) -> Tensor:
        """Return log-weights of what survived and is not in B, (B, R W)."""
        thinned, found = passes.particles, self.found
        inside = is_in(thinned.path, found.path, ~found.log_q.isneginf())
        return thinned.log_w.masked_fill(inside, -torch.inf)

    def select(self, index: Tensor) -> Survivors:
        return Survivors(
            self.found.select(index),
            self.fewer.select(index),
            self.passes.select(index),
            self.pilot.select(index),
        )

    def ahead(
        self, model: Predicts[P], inputs: Tensor, given: TokenBatch | None = None
    ) -> Survivors:
        """Read the last token of each text, (B,), as one predicts what follows it."""
        return replace(
            self,
            found=self.found.ahead(model, inputs, given),
            passes=self.passes.ahead(model, inputs, given),
        )

    def next_token(
        self, model: Predicts[P], keys: Sequence[int], starts: Sequence[int]
    ) -> Tensor:
        """Predict the next token of each text, (B, words), see ``predicted_by``."""
        outside = self._outside(self.passes) - math.log(PASSES)
        parts = [(self.passes.particles, outside), (self.found, self.found.log_w)]
        return predicted_by(model, parts, keys, starts)


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
    def _thinned(self) -> int:
        return self.num_samples if self.thinned is None else self.thinned

    @property
    def beside(self) -> int:
        """Evaluations of p(x, z) beside those of the wider beam."""
        return 2 * self._thinned + max(1, self.num_samples // NARROWER)

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
        """Return the weights of whole texts, see ``Survivors``, (B, 2 R + 3)."""
        p, q = encoded
        passes = self._passes(model, proposal, p, q, _cut(keys, self.width))
        found, fewer = (b.search(model, proposal, p, q)[0] for b in self._beams)
        flat = _cut(_others(keys), self.width, power=FLAT)
        pilot = self._passes(model, proposal, p, q, flat)
        return Survivors(found, fewer, passes, pilot).log_w

    def _passes(
        self,
        model: LM[P],
        proposal: Sampler[Q],
        p: P,
        q: Q,
        cut: Thinned,
    ) -> Partial:
        """Thin whole texts, without keeping states."""
        kept = self._thinning(proposal, q, cut)
        log_w = widened(model.log_joint(p, kept.beam.latents)) + kept.log_f
        log_w = log_w.masked_fill(kept.beam.score.isneginf(), -torch.inf)
        path = fingerprint(kept.beam.latents, torch.zeros_like(kept.beam.origin))
        return Partial(Particles(None, None, log_w, kept.beam.score, path), kept.cut)

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
            nobody = Partial(begin, nothing)
            after = Survivors(begin, begin, nobody, nobody)

        def read(before: Survivors, piece: TokenBatch, at: int) -> Survivors:
            here = [start + at for start in starts]
            cut = _cut(keys, self.width, here)
            flat = _cut(_others(keys), self.width, here, power=FLAT)
            wide, few = self._beams
            return Survivors(
                wide.read(model, proposal, piece, before.found),
                few.read(model, proposal, piece, before.fewer),
                self._thin(model, proposal, piece, cut, before.passes),
                self._thin(model, proposal, piece, flat, before.pilot),
            )

        return in_pieces(batch, after, read)

    def _thin(
        self,
        model: LM[P],
        proposal: Sampler[Q],
        piece: TokenBatch,
        cut: Thinned,
        before: Partial,
    ) -> Partial:
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
        log_w = widened(model.log_joint(p, beam.latents)) + kept.log_f
        log_w = log_w + old.log_w.gather(1, origin)
        particles = Particles(
            model.advance(p, beam.latents),
            proposal.advance(q, beam.latents),
            log_w.masked_fill(beam.score.isneginf(), -torch.inf),
            beam.score,
            fingerprint(beam.latents, old.path.gather(1, origin)),
        )
        return Partial(particles, before.cut | kept.cut)

    def unbiased(self, log_w: Tensor) -> Tensor:
        """Return the logarithms of independent unbiased estimates of p(x), (R,)."""
        return torch.logaddexp(log_w[..., :PASSES], log_w[..., PASSES, None])

    def pilot(self, log_w: Tensor) -> Tensor:
        """Return the logarithms of the pilot's estimates of p(x), (R,)."""
        return torch.logaddexp(log_w[..., PASSES + 2 : -1], log_w[..., PASSES, None])

    def pays(self, log_w: Tensor, least: float) -> bool:
        """Return whether wider beams and passes are worth their cost.

        It follows from beams and from a pilot, from no number that the estimate uses:
        so what it decides biases nothing.

        Args:
            log_w: A row of weights.
            least: What a wider beam has to have found, nats of p-hat.
        """
        pilot = self.pilot(log_w)
        if pilot.isneginf().all():
            return False
        log_p = log_evidence(pilot).item()
        uneven = _share(log_w, log_p) * stderr(pilot).item()
        return abs(_found_more(log_w, log_p)) > least or uneven > UNEVEN

    def _above_pilot(self, log_w: Tensor, log_p: float) -> float:
        """Return what p-hat is above the pilot's, nats of what the beam found.

        Of what passes alone hold, their spread tells: ranks as flat as the pilot's are
        then far from p, and its estimates too uneven to compare with.
        """
        pilot = log_evidence(self.pilot(log_w)).item()
        return _share(log_w, log_p) * (log_p - pilot)

    def estimate(self, log_w: Tensor, num_tokens: int) -> Estimate:
        """Return the estimate of one text's log p(x), from its row of weights.

        Exact where nothing was cut in any pass.

        Raises:
            MissedSupportError: If p is zero for all that was found and survived.
        """
        passes = self.unbiased(log_w)
        estimate = estimate_of_few(
            passes,
            num_samples=self.num_samples,
            num_tokens=num_tokens,
            estimator=self.name,
        )
        log_p = estimate.log_evidence
        if not log_w[-1].isneginf():
            exact = Estimate.exact(log_p, num_tokens=num_tokens, estimator=self.name)
            return replace(exact, num_samples=self.num_samples)
        off = self._above_pilot(log_w, log_p)
        return _checked(estimate, passes, _found_more(log_w, log_p), off)

    def difference(
        self, log_w: Tensor, log_w_prefix: Tensor, num_tokens: int
    ) -> Estimate:
        """Estimate log p(continuation | prefix), both from the same passes.

        Its error is of the difference as well: what the passes, more width and a pilot
        change in both alike does not count.
        """
        whole, prefix = self.unbiased(log_w), self.unbiased(log_w_prefix)
        estimate = self.estimate(log_w, num_tokens)
        of_whole, of_prefix = log_evidence(whole).item(), log_evidence(prefix).item()
        if estimate.bound is Bound.EXACT:
            log_p = of_whole - of_prefix
            return replace(estimate, log_evidence=log_p, replicates=(log_p,))
        estimate = replace(
            estimate,
            log_evidence=of_whole - of_prefix,
            stderr=None,
            draws_stderr=stderr_of_few(log_ratio_stderr(whole, prefix).item(), PASSES),
            bound=Bound.NONE,
            log_weights=(),
        )
        both = (log_w, of_whole), (log_w_prefix, of_prefix)
        grown = operator.sub(*(_found_more(*row) for row in both))
        off = operator.sub(*(self._above_pilot(*row) for row in both))
        checked = _checked(estimate, whole - prefix, grown, off)
        if checked.stderr is None:
            return checked
        replicates = influences(whole) - influences(prefix)
        return replace(checked, replicates=tuple(replicates.tolist()))


def _share(log_w: Tensor, log_p: float) -> float:
    """Return the share of p-hat that the wider beam holds, at most 1."""
    return math.exp(min(log_w[PASSES].item() - log_p, 0.0))


def _found_more(log_w: Tensor, log_p: float) -> float:
    """Return what the wider beam found beyond the narrower, nats of p-hat."""
    share, (wide, narrow) = _share(log_w, log_p), log_w[PASSES : PASSES + 2].tolist()
    return share * (wide - narrow) if share and wide != narrow else 0.0


def _checked(estimate: Estimate, passes: Tensor, grown: float, off: float) -> Estimate:
    """Add the error of an estimate where passes, beams and pilot agree.

    Args:
        estimate: Without an error.
        passes: What each pass alone estimates, (R,) nats.
        grown: What the wider beam found beyond the narrower, nats of the estimate.
        off: What the estimate is above the pilot's, likewise.
    """
    range_of = (passes.max() - passes.min()).item()
    agree = range_of <= max(WIDEST, WIDEST_SHARE * -estimate.log_evidence)
    if not (agree and abs(grown) <= MOST_GROWN and abs(off) <= MOST_GROWN):
        return estimate  # NaN, of a pilot or a pass that found nothing, included
    error = math.hypot(estimate.draws_stderr, LIKELY * grown, LIKELY * off)
    return replace(estimate, stderr=error)


def _cut(
    keys: Sequence[int],
    width: int,
    starts: Sequence[int] | None = None,
    *,
    power: float = 1.0,
) -> Thinned:
    """Return the cut of passes of a width, with random numbers of these keys."""
    return Thinned(PASSES, width, Streams(keys, PASSES * width, starts=starts), power)


def _others(keys: Sequence[int]) -> list[int]:
    """Return keys of random numbers that are independent of those."""
    return [key ^ 1 for key in keys]
