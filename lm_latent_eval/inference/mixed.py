r"""Beam search and importance sampling joined: found mass summed, the rest sampled.

B is a set of distinct latents that a search finds, z_1 .. z_N are draws from q:

.. math::
    \hat p_k(x) = \sum_{z \in B} p(x, z) + w_k \, [z_k \notin B],
    \qquad \hat p(x) = \frac{1}{N} \sum_{k=1}^{N} \hat p_k(x)

B does not depend on the draws, so every :math:`\hat p_k` is unbiased for p(x): they are
to this estimator what weights are to importance sampling, and its bound, error and
certificate hold. The sum over B is a strict lower bound by itself, and draws cannot
fall below it; what a search misses, draws find, and the other way round. A proposal
that searches and draws at once (``beam_and_sample``) may give up a search that holds
next to nothing of p, which does not depend on the draws either. A beam that had room
left after every step holds every latent there is: then the sum is exact.

The search also checks the draws. It goes by the model's own proposal, whichever they
come from, and what it finds has a probability under theirs: so it tells what share of
p they are likely to miss (``missing_mass``).

Source: a control variate by stratification (Owen, 2013, section 8.4), one stratum of
which is summed in whole.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from lm_latent_eval.estimators import (
    Estimate,
    degrees_of_freedom,
    log_normal_stderr,
    missing_mass,
)
from lm_latent_eval.inference.beam import (
    BeamMarginalization,
    was_cut,
)
from lm_latent_eval.inference.importance import ImportanceSampling, weighed
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
    in_pieces,
    is_in,
    read_at_once,
    with_mark,
)
from lm_latent_eval.latent import Proposal


@dataclass(frozen=True)
class Population(Gathered):
    """B texts with latents of two kinds: those that were found, and those drawn."""

    found_log_w: Tensor | None = None
    """Log-weights under the draws' proposal of what was found, (B, W) nats; None where
    nobody asked."""

    @property
    def log_w(self) -> Tensor:
        """Log-weights of N draws outside B, log p of B, and its log-weights, or NaN.

        Then whether B holds every latent, see ``with_mark``. Nats, (B, N + 2 W + 1).
        """
        found, drawn = self.parts
        log_p = found.log_w
        inside = is_in(drawn.path, found.path, log_p > -torch.inf)
        outside = drawn.log_w.masked_fill(inside, -torch.inf)
        unknown = torch.full_like(log_p, torch.nan)
        weights = unknown if self.found_log_w is None else self.found_log_w
        return with_mark(torch.cat([outside, log_p, weights], -1), self.cut)

    @property
    def shares(self) -> list[Tensor]:
        """Log p of what was found; log-weights of the draws outside, shared by all."""
        num_draws = self.parts[1].log_w.shape[-1]
        outside, log_p, _, _ = divided(self.log_w, num_draws)
        return [log_p, outside - math.log(num_draws)]


def divided(log_w: Tensor, num_draws: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Divide weights into the parts that ``Population.log_w`` puts together."""
    num_found = (log_w.shape[-1] - 1 - num_draws) // 2
    outside, found, weights, mark = log_w.split(
        [num_draws, num_found, num_found, 1], -1
    )
    return outside, found, weights, mark


@dataclass(frozen=True)
class Mixed(Estimator):
    """K latents: some are found by beam search, others drawn; unbiased for p(x)."""

    name: ClassVar[str] = "mixed"
    how: ClassVar[str] = (
        "half of the latents are found by beam search and summed, half are drawn from "
        "the {proposal} proposal at temperature {temperature:g}, seed {seed}"
    )
    checks: ClassVar[bool] = True
    searches: ClassVar[bool] = True
    num_samples: int
    """K, found and drawn together."""
    searcher: Proposal | None = field(default=None, compare=False, repr=False)
    """The proposal that the search goes by; None is the one that is drawn from."""

    def __post_init__(self) -> None:
        """Refuse what leaves nothing to find or to draw."""
        if self.num_samples < 2:
            raise ValueError(
                f"num_samples={self.num_samples}: estimator=mixed needs at least 2, "
                "one to find and one to draw"
            )

    @property
    def search(self) -> BeamMarginalization:
        """The search that finds B, latent by latent: draws are looked up in it."""
        return BeamMarginalization(self.num_samples // 2, recombines=False)

    @property
    def sampling(self) -> ImportanceSampling:
        """The sampler of the rest."""
        return ImportanceSampling(self.num_samples - self.num_samples // 2)

    @property
    def held(self) -> int:
        """Number of latents of a text that are held at once: those of the search."""
        return self.search.num_samples

    @property
    def kept(self) -> int:
        """Log-weights in an estimate: of the draws."""
        return self.sampling.num_samples

    def extend(self, texts: Texts, after: Weighted | None) -> Population:
        """Read on: search and draw over some more tokens.

        Texts that are read in pieces are not checked: what was found of one of several
        pieces is all that is known of it when the next one begins.
        """
        if not isinstance(after, Population):  # the beginning
            begin = as_particles(after, texts)
            if texts.whole and read_at_once(texts):
                return self._checked(texts, begin)
            after = Population((begin, begin), begin.log_w[:, 0] < 0)
        searcher = (self.searcher or texts.proposal).left_to_right

        def read(piece: Texts, before: Population) -> Population:
            found, drawn = before.parts
            found, cut = self.search.read(piece.by(searcher), found)
            drawn = self.sampling.read(piece, drawn)
            return Population((found, drawn), before.cut | cut)

        return in_pieces(texts, after, read)

    def _checked(self, texts: Texts, begin: Particles) -> Population:
        """Search and draw of whole texts, with log q of each latent that was found.

        Both use one encoding of the model's.
        """
        proposal, width = texts.proposal, self.search.num_samples
        begin = replace(begin, read=texts.model.encode(texts.batch))
        number, q = self.sampling.num_samples, proposal.encode(texts.batch)
        searcher = self.searcher or proposal
        at_once = self.sampling.at_once(*texts.batch.targets.shape)
        if searcher is proposal and number <= at_once:
            streams = texts.streams(number)
            beam, draws = proposal.beam_and_sample(q, width, streams, number)
            drawn = weighed(texts, begin.read, q, draws, begin)
        else:
            of_searcher = q if searcher is proposal else searcher.encode(texts.batch)
            beam = searcher.beam(of_searcher, width)
            drawn = self.sampling.drawn(texts, begin, q)
        found, log_q = continued(texts, q, beam, begin), beam.log_q
        if searcher is not proposal or log_q is None:
            log_q = proposal.log_prob(q, beam.latents)
        weights = found.log_w - log_q
        weights = weights.masked_fill(found.log_w.isneginf(), -torch.inf)
        return Population((found, drawn), was_cut(beam), weights)

    def found(self, log_w: Tensor) -> Tensor:
        """Return the logarithm of the sum over B: a strict lower bound, nats."""
        return divided(log_w, self.sampling.num_samples)[1].logsumexp(-1)

    def unbiased(self, log_w: Tensor) -> Tensor:
        """Return the logarithms of independent unbiased estimates of p(x), (N,)."""
        outside, found, _, _ = divided(log_w, self.sampling.num_samples)
        return torch.logaddexp(outside, found.logsumexp(-1, keepdim=True))

    def estimate(self, log_w: Tensor, num_tokens: int) -> Estimate:
        """Return the estimate of one text's log p(x), from weights (N + 2 W + 1,).

        Exact where B holds every latent there is.

        Otherwise the error is the largest of three: the draws' own; that of log-normal
        weights as wide, since the largest are seldom among few draws; and 1/N nats, by
        which one more draw outside, with a weight of p(x), would have moved the
        estimate. It is Student's t of as many degrees of freedom as the draws tell it
        by.

        Raises:
            MissedSupportError: If p is zero for all that was found and drawn.
        """
        outside, found, weights, mark = divided(log_w, self.sampling.num_samples)
        if not mark.isneginf() and outside.isneginf().all():
            log_p = found.logsumexp(-1).item()
            exact = Estimate.exact(log_p, num_tokens=num_tokens, estimator=self.name)
            return replace(exact, num_samples=self.num_samples)
        unbiased = self.unbiased(log_w)
        drawn = Estimate.from_log_weights(
            unbiased, num_tokens=num_tokens, estimator=self.name
        )
        errors = drawn.draws_stderr, log_normal_stderr(unbiased), 1 / len(outside)
        estimate = replace(
            drawn,
            draws_stderr=max(errors),
            draws_degrees=degrees_of_freedom(unbiased),
            num_samples=self.num_samples,
        )
        if weights.isnan().any():
            return estimate
        share = math.exp(min(self.found(log_w).item() - estimate.log_evidence, 0.0))
        unseen = missing_mass(found, weights, len(outside), estimate.log_evidence)
        return estimate.checked(unseen, share, same=self.searcher is None)

    def ratio_stderr(self, whole: Tensor, prefix: Tensor) -> float:
        """Return the error of a difference: 1/N nats at least, as of an estimate."""
        return max(super().ratio_stderr(whole, prefix), 1 / len(whole))
