"""Proposals of KGLM's walks: draws, searches and log q by tables of a text."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from lm_latent_eval.devices import fetched, sent, widened
from lm_latent_eval.inference.cuts import Cut
from lm_latent_eval.inference.unfolding import (
    SearchedProposal,
    Thinning,
    own_histories,
)
from lm_latent_eval.latent import Beam, Draws, Uniforms
from lm_latent_eval.models.kglm.encoding import Encoded, KGLMState
from lm_latent_eval.models.kglm.joint import KGLMJoint
from lm_latent_eval.models.kglm.latents import Walks
from lm_latent_eval.models.kglm.network import Trunk
from lm_latent_eval.models.kglm.outlooks import LookAhead, Tempered, WalkTables
from lm_latent_eval.models.kglm.search import DrawnWalks, search
from lm_latent_eval.models.kglm.steps import log_prob_walks
from lm_latent_eval.models.kglm.tables import TextScores
from lm_latent_eval.text.batch import TokenBatch


@dataclass(frozen=True)
class KGLMProposal(SearchedProposal):
    """q(z | x): walks over the scores of a trunk, over possible choices only.

    A peeking proposal reads each token before it decides on its latent, so exactly one
    token more than p; a smoothing one reads to the end of the piece of text at hand.
    """

    model: KGLMJoint
    name: str
    trunk: Trunk
    reads_target: bool
    looks_ahead: bool
    temperature: float
    widening: ClassVar[int] = 64
    checks: bool = False
    """Whether groups that check look ahead as if every entity that the text may mention
    had just been mentioned: they keep walks whose parents the others do not expect."""

    def with_checks(self) -> KGLMProposal:
        return replace(self, checks=self.looks_ahead)

    def encode(self, batch: TokenBatch, after: KGLMState | None = None) -> Encoded:
        """Read the text and score every decision of a walk."""
        tokens = batch.targets if self.reads_target else batch.inputs
        whole = batch
        if self.looks_ahead and batch.further is not None:
            whole = batch.further
        encoded = self.model._encode(
            self.trunk, tokens, batch, after, only_possible=True, whole=whole
        )
        walk, text, cutoff = encoded.walk, encoded.text, self.model.config.cutoff
        if self.looks_ahead:
            scores = TextScores(walk, whole, text, self.model._log_words)
            follows, checks = after is not None, self.checks
            ahead = LookAhead(scores, cutoff, follows=follows, checks=checks)
            return replace(encoded, tables=ahead)
        walk = replace(walk, scores=walk.scores.scaled(1.0 / self.temperature))
        plain, twist = walk, None
        if self.trunk.matching is not None:
            twist = self.trunk.matching(*batch.on_host, self.model.knowledge)
            twist = twist.scaled(1.0 / self.temperature)
            walk = replace(walk, twist=twist)
        tables = WalkTables(TextScores(plain, batch, text, None, twist), cutoff)
        return replace(encoded, walk=walk, tables=tables)

    def encode_again(
        self, encoded: Encoded, batch: TokenBatch, after: KGLMState | None
    ) -> Encoded:
        """Reuse an encoding after walks change."""
        return self.model.encode_again(encoded, batch, after)

    def search(
        self, encoded: Encoded, cut: Cut, score: Tensor | None = None
    ) -> Thinning:
        """Find distinct walks, as a cut decides.

        One that looks ahead ranks by log p so far and what it expects of the rest,
        whatever its temperature; others by log q.
        """
        batch, device = encoded.batch, encoded.batch.targets.device
        targets, length = batch.on_host
        if score is not None:
            (score,) = fetched(widened(score))
        num_steps, tables = targets.shape[1], tables_of(encoded)
        columns, found = search(
            tables, encoded.history, length.tolist(), num_steps, cut, score
        )
        score, origin, log_p, log_f, was_cut = (sent(x, device) for x in found)
        known = log_p if self._knows_p else None
        beam = Beam(Walks(*columns), score, origin, log_p=known, cut=was_cut.any(1))
        return Thinning(beam, log_f, was_cut)

    @property
    def _knows_p(self) -> bool:
        """Whether its tables are those of p."""
        return self.looks_ahead and self.model.config.only_possible

    def sample(self, encoded: Encoded, uniforms: Uniforms, num_samples: int) -> Draws:
        """Draw K walks a text, continuing the K histories if there are any."""
        origin = own_histories(encoded.history.shape[1], num_samples)
        origin = origin.expand(len(encoded.history), -1)
        return self.sample_from(encoded, uniforms, origin)[0]

    def sample_from(
        self, encoded: Encoded, uniforms: Uniforms, origin: Tensor
    ) -> tuple[Draws, Tensor]:
        """Draw K walks a text, which continue those histories, (B, K)."""
        (origin,), (targets, length) = fetched(origin), encoded.batch.on_host
        num_tokens = targets.shape[1]
        columns = torch.zeros(2, *origin.shape, num_tokens, dtype=torch.long)
        sums = torch.zeros(2, *origin.shape, dtype=torch.float64)
        u = [uniforms(t)[..., :2].numpy() for t in range(num_tokens)]
        numbers = np.stack(u, 1) if u else np.zeros((len(origin), 0, 1, 2))
        for b, number in enumerate(length.tolist()):
            history = encoded.history[b, origin[b]]
            steps, *log = self._drawn(encoded)[b].draw(
                encoded.start, history, numbers[b, :number]
            )
            columns[:, b, :, :number] = torch.from_numpy(steps)
            sums[:, b] = torch.from_numpy(np.stack(log))
        log_q, log_p = sent(sums, encoded.batch.targets.device)
        knows_p = self._knows_p and self.temperature == 1.0
        draws = Draws(Walks(*columns), log_q, log_p if knows_p else None)
        return draws, origin

    def _drawn(self, encoded: Encoded) -> list[DrawnWalks]:
        """Return walks over each text to draw from."""
        if not encoded.draws:
            encoded.draws.extend(self._fresh(encoded))
        return encoded.draws

    def _fresh(self, encoded: Encoded) -> list[DrawnWalks]:
        whole = tables_of(encoded)
        if isinstance(whole, LookAhead) and self.temperature != 1.0:
            whole = Tempered.of(whole, self.temperature)
        return [
            DrawnWalks(whole, b, tables, (whole.twist(b),))
            for b, tables in enumerate(whole.tables)
        ]

    def log_prob(self, encoded: Encoded, walks: Walks) -> Tensor:
        """Return log q(z_k | x) in nats, (B, K) float64."""
        history, walks = encoded.on_host(walks)
        _, length = encoded.batch.on_host
        if not self.looks_ahead:
            log_q = log_prob_walks(encoded.walk, history, walks, length[:, None])
            return widened(log_q).sum(-1)
        log_q = torch.zeros(history.shape[:2], dtype=torch.float64)
        for b, text in enumerate(self._fresh(encoded)):
            steps = (part[b, :, : length[b]] for part in walks)
            found = text.log_q(encoded.start, history[b], *steps)
            log_q[b] = torch.from_numpy(found)
        return sent(log_q, encoded.batch.targets.device)

    def advance(self, encoded: Encoded, walks: Walks) -> KGLMState:
        """Return the state after the encoded piece."""
        return encoded.after(walks)

    def token(self, encoded: Encoded, t: int, after: KGLMState | None) -> Encoded:
        """Cut out token t, after the walks so far; where the text stands is of its end.

        It is drawn alone.
        """
        return replace(
            encoded,
            batch=encoded.batch.piece(t, t + 1),
            start=encoded.start + t,
            history=after.history if after else encoded.history,
        )

    def log_twist(self, encoded: Encoded, t: int, after: KGLMState) -> Tensor:
        """Guess log p(tokens t and on | walks so far), nats, (B, K) float64."""
        log_psi = torch.zeros(after.history.shape[:2], dtype=torch.float64)
        for b, length in enumerate(encoded.batch.on_host[1].tolist()):
            if t < length and self.looks_ahead:
                found = self._drawn(encoded)[b].log_twist(t, after.history[b])
                log_psi[b] = torch.from_numpy(found)
        return sent(log_psi, encoded.batch.targets.device)


def tables_of(encoded: Encoded) -> WalkTables:
    """Return the tables of a proposal's encoding.

    Raises:
        ValueError: If it is the model's.
    """
    if encoded.tables is None:
        raise ValueError("an encoding of p has no tables to search in")
    return encoded.tables
