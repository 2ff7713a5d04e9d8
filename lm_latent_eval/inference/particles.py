"""Weighted particles of a text that is read piece by piece.

A left-to-right model stops after any piece and goes on, so a context is read once for
all of its continuations, and a text of any length fits into the memory of one piece.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from lm_latent_eval.devices import fetched, sent, wide_zeros, widened
from lm_latent_eval.inference.interface import Texts, Weighted
from lm_latent_eval.inference.streams import Streams
from lm_latent_eval.latent import (
    Beam,
    Draws,
    LatentLM,
    Latents,
    Reader,
    State,
    offers,
    parts_of,
    rebuilt,
)
from lm_latent_eval.text.batch import TokenBatch

T = TypeVar("T")

PIECE = 256
"""Tokens read at a time by models that can stop and go on."""
AHEAD = 64
"""Tokens after a piece that look-ahead reads."""
NEGLIGIBLE = 1e-6
"""Probability of latents that a next-token distribution may leave out."""
PREDICTS = 2
"""Separates the random numbers of predictions from those of draws."""


@dataclass(frozen=True)
class Particles:
    """B texts with K weighted latents each, and the states of p and q."""

    model_state: State | None
    proposal_state: State | None
    log_w: Tensor
    """Log-weights so far in nats, (B, K) float64: of importance samples
    log p(x, z) - log q(z | x), of a beam log p(x, z)."""
    log_q: Tensor
    """log q(z_k | x) so far in nats, (B, K) float64; of a beam its ``score``."""
    path: Tensor
    """Fingerprints of the latents so far, (B, K) int64, see ``fingerprint``."""
    read: Any = None
    """The model's encoding of the last token, if the next one was predicted."""

    @classmethod
    def begin(cls, batch_size: int, device: torch.device | str) -> Particles:
        """Return B texts of which nothing has been read."""
        zeros = wide_zeros((batch_size, 1), device)
        return cls(None, None, zeros, zeros, zeros.long())

    def select(self, index: Tensor) -> Particles:
        """Pick texts, by their numbers on the host."""
        there = sent(index, self.log_w.device)
        return Particles(
            self.model_state and self.model_state.select(index),
            self.proposal_state and self.proposal_state.select(index),
            self.log_w[there],
            self.log_q[there],
            self.path[there],
        )

    def ahead(
        self, model: LatentLM, inputs: Tensor, given: TokenBatch | None = None
    ) -> Particles:
        """Read the last token of each text, (B,), as one predicts what follows it."""
        tokens = inputs[:, None]
        batch = TokenBatch(
            tokens,
            torch.zeros_like(tokens),
            torch.ones_like(inputs),
            wide_zeros(tokens.shape, tokens.device),
            given=given,
        )
        return replace(self, read=model.encode(batch, self.model_state))

    def next_token(
        self, model: LatentLM, keys: Sequence[int], starts: Sequence[int]
    ) -> Tensor:
        """Predict the next token of each text from its weighted latents, (B, words).

        What predicts is independent of what is drawn by the same keys elsewhere.
        """
        mine = [key ^ PREDICTS for key in keys]
        uniforms = Streams(mine, self.log_w.shape[1], starts=starts)
        return model.next_token(self.read, self.log_w, uniforms)

    def encoded(self, model: LatentLM, piece: TokenBatch, after: State | None) -> Any:
        """Encode a piece that follows given latents; reuse what was read ahead.

        Args:
            model: A left-to-right latent LM.
            piece: The tokens that follow, one if it has read ``ahead``.
            after: ``model_state``, or a choice of its latents.
        """
        if self.read is None:
            return encode(model, piece, after)
        return model.encode_again(self.read, piece, after)


def with_mark(log_w: Tensor, cut: Tensor) -> Tensor:
    """Append 0 to the weights of a text of which nothing was left out, else ``-inf``.

    Args:
        log_w: Of B texts, (B, N) nats.
        cut: Whether latents of a text may have been left out, (B,) bool.

    Returns:
        (B, N + 1).
    """
    mark = log_w.new_zeros(len(cut), 1)
    mark = mark.masked_fill(sent(cut, log_w.device)[:, None], -torch.inf)
    return torch.cat([log_w, mark], -1)


@dataclass(frozen=True)
class Gathered(ABC):
    """B texts with latents of which it is known whether they are all."""

    found: Particles
    cut: Tensor
    """Whether latents of a text may have been left out, (B,) bool."""

    @property
    @abstractmethod
    def log_w(self) -> Tensor:
        """A row of numbers a text, as the estimator reads it."""

    @property
    def shares(self) -> Tensor:
        """Log-weights of the latents as they add to p(x), (B, K) nats."""
        return self.found.log_w

    def select(self, index: Tensor) -> Self:
        return type(self)(self.found.select(index), self.cut[index])

    def ahead(
        self, model: LatentLM, inputs: Tensor, given: TokenBatch | None = None
    ) -> Self:
        """Read the last token of each text, (B,), as one predicts what follows it."""
        return replace(self, found=self.found.ahead(model, inputs, given))

    def next_token(
        self, model: LatentLM, keys: Sequence[int], starts: Sequence[int]
    ) -> Tensor:
        """Predict the next token of texts that have read ``ahead``, (B, words)."""
        log_w = self.shares
        # Where p(x) is 0, all latents predict alike.
        log_w = log_w.masked_fill(log_w.amax(-1, True).isneginf(), 0.0)
        return replace(self.found, log_w=log_w).next_token(model, keys, starts)


def not_negligible(mass: Tensor) -> Tensor:
    """Return the places of all but the smallest, (N,).

    Those that are left out total ``NEGLIGIBLE`` at most.
    """
    sorted_mass, order = mass.sort(descending=True)
    rest = mass.sum() - sorted_mass.cumsum(0) + sorted_mass
    return order[(rest > NEGLIGIBLE) & (sorted_mass > 0)].sort().values


def encode(who: Reader, batch: TokenBatch, after: Any) -> Any:
    """Encode pieces; what reads whole texts alone knows of no state."""
    return who.encode(batch) if after is None else who.encode(batch, after)


def read_at_once(texts: Texts) -> bool:
    """Whether texts are read in one piece: short ones, and those that have to be."""
    short = texts.batch.targets.shape[1] <= PIECE
    return short or not all(offers(o, "advance") for o in (texts.model, texts.proposal))


def log_joint(model: LatentLM, encoded: Any, latents: Draws | Beam) -> Tensor:
    """Return log p(x, z_k) of what was drawn or found, nats, (B, K) float64."""
    if latents.log_p is not None:
        return latents.log_p
    return widened(model.log_joint(encoded, latents.latents))


def continued(texts: Texts, q: Any, beam: Beam, before: Particles) -> Particles:
    """Go on with latents that a search has found in pieces of texts.

    Args:
        texts: The pieces.
        q: As the proposal encodes them, after ``before``.
        beam: What was found.
        before: The texts so far.
    """
    model, proposal, piece = texts.model, texts.proposal, texts.batch
    p_state, q_state = before.model_state, before.proposal_state
    if p_state is None or q_state is None:
        p = before.encoded(model, piece, None)
        log_p = _log_joint_of_used(model, p, beam)
    else:
        (origin,) = fetched(beam.origin)
        p_state, q_state = p_state.resample(origin), q_state.resample(origin)
        q = proposal.encode_again(q, piece, q_state)
        p = before.encoded(model, piece, p_state)
        log_p = log_joint(model, p, beam)
    log_p = log_p + before.log_w.gather(1, beam.origin)
    if beam.log_f is not None:
        log_p = log_p + beam.log_f
    return Particles(
        None if texts.whole else model.advance(p, beam.latents),
        None if texts.whole else proposal.advance(q, beam.latents),
        log_p.masked_fill(beam.score.isneginf(), -torch.inf),
        beam.score,
        fingerprint(beam.latents, before.path.gather(1, beam.origin)),
    )


def _log_joint_of_used(model: LatentLM, encoded: Any, beam: Beam) -> Tensor:
    """Return log p(x, z) of what was found, nats, (B, K) float64; 0 elsewhere.

    Most places of a text may be left over, since others need them.
    """
    if beam.log_p is not None or beam.score.shape[1] == 1:
        return log_joint(model, encoded, beam)
    (used,) = fetched(beam.score > -torch.inf)
    most = max(1, int(used.sum(1).max()))
    place = used.long().argsort(dim=1, descending=True, stable=True)[:, :most]
    text = torch.arange(len(place))[:, None]
    parts = [
        part[sent(text, part.device), sent(place, part.device)]
        for part in parts_of(beam.latents)
    ]
    found = widened(model.log_joint(encoded, rebuilt(beam.latents, parts)))
    log_p = wide_zeros(used.shape, found.device)
    return log_p.scatter(1, sent(place, found.device), found)


def as_particles(after: Weighted | None, texts: Texts) -> Particles:
    """Return what was read before texts, which must be particles; None: nothing was.

    Raises:
        TypeError: If another estimator has read it.
    """
    if after is None:
        return Particles.begin(len(texts.keys), texts.batch.inputs.device)
    if not isinstance(after, Particles):
        raise TypeError(f"expected Particles to go on with; got {type(after).__name__}")
    return after


def in_pieces(texts: Texts, state: T, read: Callable[[Texts, T], T]) -> T:
    """Read texts in pieces of at most ``PIECE`` tokens, where they can be cut.

    Args:
        texts: B texts, which go on after ``state``.
        state: The state before them.
        read: Returns the state after a piece, given that before it.
    """
    if read_at_once(texts):
        return read(texts, state)
    num_tokens = texts.batch.targets.shape[1]
    for at in range(0, num_tokens, PIECE):
        piece = texts.piece(at, at + PIECE, AHEAD)
        ends = texts.whole and at + PIECE >= num_tokens
        state = read(replace(piece, whole=ends), state)
    return state


def fingerprint(latents: Latents, before: Tensor | None = None) -> Tensor:
    """Return numbers that identify the latents of a text.

    Equal latents have equal ones; unequal ones differ, but for an accident of
    probability 2^-63 or so: the sum of a latent's integers, each times an odd random
    number of its place, modulo 2^64. The integer of a real number is its bits.

    Args:
        latents: Of a text or its next piece: a tensor or a tuple of tensors,
            (B, K, ...), on the host or where ``before`` is.
        before: The fingerprints of the text so far, 0 at the beginning, (B, K or 1).

    Returns:
        Shape (B, K), int64, where ``before`` is, or without it the latents.
    """
    parts = map(_as_integers, parts_of(latents))
    codes = torch.cat([part.flatten(2) for part in parts], -1)
    odd = sent(odd_numbers(codes.shape[-1] + 1), codes.device)
    code = (codes * odd[1:]).sum(-1)
    return code if before is None else before * odd[0] + sent(code, before.device)


@lru_cache(256)
def odd_numbers(number: int) -> Tensor:
    """Return the first so many of one sequence of odd random numbers."""
    random = np.random.Philox(key=1).random_raw(number) | 1
    return torch.from_numpy(random.view(np.int64))


def _as_integers(part: Tensor) -> Tensor:
    """Return latents as integers with a place axis; real numbers by their bits."""
    if part.is_floating_point():
        bits = torch.int32 if part.dtype is torch.float32 else torch.int64
        part = (part if bits is torch.int32 else part.double()).view(bits).long()
    return part if part.ndim > 2 else part[..., None]


def is_in(path: Tensor, others: Tensor, used: Tensor) -> Tensor:
    """Return which latents, (B, N), are among the used ones of others, (B, W)."""
    one = others.gather(1, used.long().argmax(-1, keepdim=True))
    known = torch.where(used, others, one).sort(-1).values
    place = torch.searchsorted(known, path).clamp_max(known.shape[-1] - 1)
    return (known.gather(-1, place) == path) & used.any(-1, keepdim=True)
