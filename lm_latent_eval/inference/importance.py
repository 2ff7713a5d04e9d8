"""Importance sampling: log w_k = log p(x, z_k) - log q(z_k | x), z_k drawn from q."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from lm_latent_eval.estimators import Estimate
from lm_latent_eval.inference.interface import (
    Estimator,
    Texts,
    Weighted,
)
from lm_latent_eval.inference.particles import (
    PIECE,
    Particles,
    as_particles,
    encode,
    fingerprint,
    in_pieces,
    log_joint,
)
from lm_latent_eval.latent import Draws

DECISIONS = 1 << 21
"""Latent decisions (texts x samples x tokens) held at a time."""
ROWS = 1 << 16
"""Latents (texts x samples) drawn side by side."""


@dataclass(frozen=True)
class ImportanceSampling(Estimator):
    """K independent draws a text; unbiased for p(x), nested in K."""

    name: ClassVar[str] = "is"
    how: ClassVar[str] = (
        "importance sampling from the {proposal} proposal at temperature "
        "{temperature:g}, seed {seed}"
    )
    num_samples: int

    @property
    def kept(self) -> int:
        return self.num_samples

    def extend(self, texts: Texts, after: Weighted | None) -> Particles:
        """Read on: draw the latents of some more tokens and weigh them.

        The weights of the particles estimate the probability of the text so far as a
        prefix.
        """
        return self.drawn(texts, as_particles(after, texts))

    def drawn(self, texts: Texts, begun: Particles, q: Any = None) -> Particles:
        """Draw and weigh; of whole texts in as many rounds as memory asks for.

        Rounds do not change what is drawn. Texts that are read at once may come with
        their encoding by the proposal, ``q``.
        """
        at_once = self.num_samples
        if texts.whole:
            at_once = self.at_once(*texts.batch.targets.shape)
        rounds = []
        for first in range(0, self.num_samples, at_once):
            number = min(at_once, self.num_samples - first)
            read = partial(_drawn, number=number, first=first, q=q)
            rounds.append(in_pieces(texts, begun, read))
        if len(rounds) == 1:
            return rounds[0]
        return Particles(
            None,
            None,
            torch.cat([each.log_w for each in rounds], 1),
            torch.cat([each.log_q for each in rounds], 1),
            torch.cat([each.path for each in rounds], 1),
        )

    def read(self, texts: Texts, before: Particles) -> Particles:
        """Draw the latents of pieces, and weigh them."""
        return _drawn(texts, before, number=self.num_samples)

    @staticmethod
    def at_once(batch_size: int, num_tokens: int) -> int:
        """How many samples of each text are drawn in one round."""
        texts, tokens = max(1, batch_size), max(1, min(num_tokens, PIECE))
        return max(1, min(DECISIONS // (texts * tokens), ROWS // texts))

    def estimate(self, log_w: Tensor, num_tokens: int) -> Estimate:
        """Return the estimate of one text's log p(x), from log-weights (K,)."""
        return Estimate.from_log_weights(log_w, num_tokens=num_tokens)


def _drawn(
    texts: Texts, before: Particles, *, number: int, first: int = 0, q: Any = None
) -> Particles:
    """Go on with some of the latents of pieces, the ``first`` and those after it."""
    p = before.encoded(texts.model, texts.batch, before.model_state)
    if q is None:
        q = encode(texts.proposal, texts.batch, before.proposal_state)
    draws = texts.proposal.sample(q, texts.streams(number, first), number)
    return weighed(texts, p, q, draws, before)


def weighed(texts: Texts, p: Any, q: Any, draws: Draws, before: Particles) -> Particles:
    """Go on with latents of encoded pieces, and weigh them.

    Args:
        texts: The pieces.
        p: As the model encodes them, after ``before``.
        q: As the proposal does.
        draws: What it has drawn.
        before: The texts so far.
    """
    log_w = log_joint(texts.model, p, draws) - draws.log_q
    return Particles(
        None if texts.whole else texts.model.advance(p, draws.latents),
        None if texts.whole else texts.proposal.advance(q, draws.latents),
        before.log_w + log_w,
        before.log_q + draws.log_q,
        fingerprint(draws.latents, before.path),
    )
