r"""Discrete particle filters: a search whose cut is unbiased.

R independent passes hold up to W histories each, all distinct. At every step each pass
lists every choice of every history, ranks them by log p so far plus what is expected
ahead, and cuts them to W without changing what sums over them are on average
(``cuts.Thinned``). With W large enough nothing is cut, and p(x) is exact. A survivor
weighs p(x, z) over its probability to survive, so

.. math::
    \hat p(x) = \frac{1}{R} \sum_{r=1}^{R} \hat p_r, \qquad
    \hat p_r = \sum_{z \text{ survived } r} p(x, z) \, f_r(z)

Every pass is unbiased for p(x), whatever the ranks are: their spread is the error.

Source: Fearnhead and Clifford (2003), "On-line inference for hidden Markov models via
particle filters".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from lm_latent_eval.devices import fetched, widened
from lm_latent_eval.estimators import Bound, Estimate, log_evidence, log_ratio_stderr
from lm_latent_eval.inference.cuts import Thinned
from lm_latent_eval.inference.few import estimate_of_few, stderr_of_few
from lm_latent_eval.inference.interface import Weighted
from lm_latent_eval.inference.models import LM, P, Q, Sampler
from lm_latent_eval.inference.particles import (
    Partial,
    Particles,
    as_particles,
    encode,
    encode_again,
    fingerprint,
    pieces,
)
from lm_latent_eval.inference.streams import Streams
from lm_latent_eval.inference.unfolding import StepProposal, Thinning
from lm_latent_eval.latent import Latents, LeftToRight
from lm_latent_eval.text.batch import TokenBatch

PASSES = 5
"""Independent passes: the fewest whose spread says how far they err."""


@dataclass(frozen=True)
class DiscreteFilter:
    """K histories in R passes; unbiased for p(x), exact once W covers every latent."""

    name: ClassVar[str] = "dpf"
    num_samples: int
    """K, of all passes together."""

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

    def log_weights(
        self,
        model: LM[P],
        proposal: Sampler[Q],
        batch: TokenBatch,
        keys: list[int],
    ) -> Tensor:
        """Return log-weights of whole texts in nats, see ``Partial``, float64.

        The sum of the weights of a pass is its estimate of p(x).
        """
        encoded = encode(model, proposal, batch)
        if encoded is None:
            begin = Particles.begin(len(keys), batch.inputs.device)
            starts = [0] * len(keys)
            return self.extend(model, proposal, batch, keys, starts, begin).log_w
        return self.search(model, proposal, *encoded, keys).log_w

    def search(
        self, model: LM[P], proposal: Sampler[Q], p: P, q: Q, keys: list[int]
    ) -> Partial:
        """Find latents of whole texts, without states, which nothing needs any more.

        Args:
            model: A latent LM.
            proposal: What the search goes by.
            p: The texts as the model encodes them.
            q: The texts as the proposal does.
            keys: Of the random numbers of each text.
        """
        cut = Thinned(PASSES, self.width, Streams(keys, self.num_samples))
        found = self._thinning(proposal, q, cut)
        log_w = widened(model.log_joint(p, found.beam.latents)) + found.log_f
        log_w = log_w.masked_fill(found.beam.score.isneginf(), -torch.inf)
        path = fingerprint(found.beam.latents, torch.zeros_like(found.beam.origin))
        particles = Particles(None, None, log_w, found.beam.score, path)
        return Partial(particles, found.cut)

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
    ) -> Partial:
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
        if not isinstance(after, Partial):  # the beginning
            particles = as_particles(after)
            nothing = torch.zeros(len(keys), dtype=torch.bool)
            after = Partial(particles, nothing.to(particles.log_w.device))
        for offset, piece in pieces(batch):
            here = [start + offset for start in starts]
            streams = Streams(keys, self.num_samples, starts=here)
            after = self._read(model, proposal, piece, streams, after)
        return after

    def _read(
        self,
        model: LM[P],
        proposal: Sampler[Q],
        piece: TokenBatch,
        streams: Streams,
        before: Partial,
    ) -> Partial:
        """Search a piece, and weigh what survives."""
        old = before.particles
        p_state, q_state = old.model_state, old.proposal_state
        q = proposal.encode(piece, q_state)
        cut = Thinned(PASSES, self.width, streams)
        begun = old.log_q.shape[1] > 1
        found = self._thinning(proposal, q, cut, old.log_q if begun else None)
        beam = found.beam
        origin = beam.origin if begun else torch.zeros_like(beam.origin)
        if p_state is not None and q_state is not None:
            (index,) = fetched(origin)
            p_state, q_state = p_state.resample(index), q_state.resample(index)
            q = encode_again(proposal, q, piece, q_state)
        p = old.encoded(model, piece, p_state)
        log_w = widened(model.log_joint(p, beam.latents)) + found.log_f
        log_w = log_w + old.log_w.gather(1, origin)
        particles = Particles(
            model.advance(p, beam.latents),
            proposal.advance(q, beam.latents),
            log_w.masked_fill(beam.score.isneginf(), -torch.inf),
            beam.score,
            fingerprint(beam.latents, old.path.gather(1, origin)),
        )
        return Partial(particles, before.cut | found.cut)

    def unbiased(self, log_w: Tensor) -> Tensor:
        """Return the logarithms of independent unbiased estimates of p(x), (R,)."""
        passes: Tensor = log_w[..., :-1].unflatten(-1, (PASSES, -1))
        return passes.logsumexp(-1)

    def estimate(self, log_w: Tensor, num_tokens: int) -> Estimate:
        """Return the estimate of one text's log p(x), from its row of weights.

        Exact where nothing was cut in any pass.

        Raises:
            MissedSupportError: If p is zero for all that survived.
        """
        passes = self.unbiased(log_w)
        estimate = estimate_of_few(
            passes,
            num_samples=self.num_samples,
            num_tokens=num_tokens,
            estimator=self.name,
        )
        if log_w[-1].isneginf():
            return estimate
        return replace(
            Estimate.exact(
                estimate.log_evidence, num_tokens=num_tokens, estimator=self.name
            ),
            num_samples=self.num_samples,
        )

    def difference(
        self, log_w: Tensor, log_w_prefix: Tensor, num_tokens: int
    ) -> Estimate:
        """Estimate log p(continuation | prefix), both from the same passes."""
        whole, prefix = self.unbiased(log_w), self.unbiased(log_w_prefix)
        estimate = self.estimate(log_w, num_tokens)
        log_p = log_evidence(whole).item() - log_evidence(prefix).item()
        if estimate.bound is Bound.EXACT:
            return replace(estimate, log_evidence=log_p)
        return replace(
            estimate,
            log_evidence=log_p,
            draws_stderr=stderr_of_few(log_ratio_stderr(whole, prefix).item(), PASSES),
            bound=Bound.NONE,
            log_weights=(),
        )
