"""Sums over latents without draws: beam marginalization and exact likelihoods.

A beam sums p(x, z) over what a search finds, a strict lower bound. ``Exact`` is for
models whose latents all fit into a beam, as far as they do not go on alike, for models
without latents and for those that sum their latents themselves (``summation``): one
latent, the empty one or all of them at once, is then all there is. A model may say
so and be wrong. So it is checked: that the latent decides nothing, or that the sum is
that over a list of latents, on prefixes of the first texts. What is not proven is the
probability of one latent, a strict lower bound.
"""

from __future__ import annotations

from dataclasses import InitVar, dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from lm_latent_eval.devices import sent
from lm_latent_eval.estimators import Bound, Estimate
from lm_latent_eval.inference.consistency import decides_nothing, sums_exactly
from lm_latent_eval.inference.interface import (
    Estimator,
    Texts,
    Weighted,
)
from lm_latent_eval.inference.particles import (
    Gathered,
    Particles,
    as_particles,
    continued,
    encode,
    in_pieces,
    with_mark,
)
from lm_latent_eval.inference.unfolding import StepProposal


@dataclass(frozen=True)
class BeamMarginalization(Estimator):
    """The k distinct latents of high p, summed: a strict lower bound of p(x).

    Of latents after which everything goes on alike one stands for all.

    Source: Logan et al. (2020), section 5.
    """

    name: ClassVar[str] = "beam"
    how: ClassVar[str] = (
        "beam marginalization: latents found by the {proposal} proposal are summed"
    )
    bound: ClassVar[Bound] = Bound.STRICT_LOWER
    searches: ClassVar[bool] = True
    seeded: ClassVar[bool] = False
    num_samples: int
    """k, the width of the beam."""
    recombines: bool = True
    """Whether one latent may stand for several."""

    @property
    def held(self) -> int:
        """Latents of a text that are held at once: all."""
        return self.num_samples

    def extend(self, texts: Texts, after: Weighted | None) -> Particles:
        """Read on: continue the beams of the texts so far over some more tokens."""

        def read(piece: Texts, before: Particles) -> Particles:
            return self.read(piece, before)[0]

        return in_pieces(texts, as_particles(after, texts), read)

    def read(self, texts: Texts, before: Particles) -> tuple[Particles, Tensor]:
        """Continue the beams of the texts so far over pieces.

        Returns:
            The latents, and whether any may have been left out, (B,) bool.
        """
        q = encode(texts.proposal, texts.batch, before.proposal_state)
        score = None if before.proposal_state is None else before.log_q
        proposal, width = texts.proposal, self.num_samples
        if self.recombines and isinstance(proposal, StepProposal):
            beam = proposal.recombining_beam(q, width, score)
        else:
            beam = proposal.beam(q, width, score)
        cut = beam.cut
        if cut is None:
            cut = torch.ones_like(beam.score[:, 0] > 0)
        return continued(texts, q, beam, before), cut

    def estimate(self, log_w: Tensor, num_tokens: int) -> Estimate:
        """Return the bound of one text's log p(x), from log p(x, z) of shape (k,)."""
        bound = Estimate.from_beam(log_w, num_tokens=num_tokens)
        # A beam may have fewer places than k: it depends on its company.
        return replace(bound, num_samples=self.num_samples)

    def difference(
        self, log_w: Tensor, log_w_prefix: Tensor, num_tokens: int
    ) -> Estimate:
        """Return the difference of two bounds, which is no bound itself."""
        whole = self.estimate(log_w, num_tokens)
        log_p = whole.log_evidence - log_w_prefix.logsumexp(-1).item()
        return replace(whole, log_evidence=log_p, bound=Bound.NONE)


_BEAM = BeamMarginalization(1)


EVERY = 1 << 12
"""Histories, at most, that ``exact`` sums."""
_EVERY = BeamMarginalization(EVERY)


class Summed(Gathered):
    """B texts with latents that may not be all there is."""

    @property
    def log_w(self) -> Tensor:
        """Their log p, then whether they are all, see ``with_mark``, (B, 2)."""
        return with_mark(self.found.log_w.logsumexp(-1, keepdim=True), self.cut)


def _summed(texts: Texts) -> tuple[Texts, bool]:
    """Return texts by a proposal of one latent, and if that is proven to be all."""
    model, proposal, batch = texts.model, texts.proposal, texts.batch
    if model.summation is not None:
        return texts.by(model.summation), sums_exactly(model, proposal, batch)
    return texts, decides_nothing(proposal, batch)


@dataclass(frozen=True)
class Exact(Estimator):
    """log p(x) as it is: a beam that holds every latent."""

    name: ClassVar[str] = "exact"
    how: ClassVar[str] = "nothing is drawn: log-likelihoods are exact"
    bound: ClassVar[Bound] = Bound.EXACT
    seeded: ClassVar[bool] = False
    asked: InitVar[int] = 1
    """Requested ``num_samples``; ignored, because an exact sum draws nothing."""
    num_samples: int = field(default=1, init=False)

    def extend(self, texts: Texts, after: Weighted | None) -> Summed:
        begun = after if isinstance(after, Summed) else None
        particles = begun.found if begun else as_particles(after, texts)
        listed = isinstance(texts.proposal, StepProposal)
        if listed and texts.model.summation is None:
            whole = begun.cut if begun else torch.zeros(len(texts.keys)).bool()

            def read(piece: Texts, before: Summed) -> Summed:
                found, cut = _EVERY.read(piece, before.found)
                return Summed(found, sent(before.cut, cut.device) | cut)

            return in_pieces(texts, Summed(particles, whole), read)
        summed, proven = _summed(texts)
        found = _BEAM.extend(summed, particles)
        here = torch.full_like(found.log_w[:, 0], not proven).bool()
        return Summed(found, here | begun.cut if begun else here)

    def estimate(self, log_w: Tensor, num_tokens: int) -> Estimate:
        """Return log p(x) of one text; a bound where that is not proven."""
        log_p, mark = log_w.split([len(log_w) - 1, 1])
        if mark.isneginf():
            return Estimate.from_beam(log_p, num_tokens=num_tokens, estimator=self.name)
        exact = Estimate.exact(
            log_p.logsumexp(-1).item(), num_tokens=num_tokens, estimator=self.name
        )
        return replace(exact, num_samples=len(log_p))

    def difference(
        self, log_w: Tensor, log_w_prefix: Tensor, num_tokens: int
    ) -> Estimate:
        """Return log p(continuation | prefix); no bound where it is not proven."""
        estimate = _BEAM.difference(log_w[:-1], log_w_prefix[:-1], num_tokens)
        estimate = replace(estimate, estimator=self.name)
        if log_w[-1].isneginf():
            return estimate
        return replace(estimate, stderr=0.0, bound=Bound.EXACT)
