r"""Proposals of an NKLM: a topic, and then word by word where each comes from.

.. math:: q(z_t \mid z_{<t}, x_{\le t}) = p(z_t \mid z_{<t}, x_{\le t})

which is known exactly, since few names have any one word. ``peeking`` draws the topic
from p's prior. ``adapted`` reads the piece at hand for it,

.. math:: q(k) \propto p(k) \prod_{t:\, x_t \text{ in a name of } k} \frac{N}{n(x_t)}

where n(x) of the N topics have the word x in a name: so "of" says next to nothing of
what a text is about, and a surname much. A search ranks by p so far, and by what the
words to come say of the topic.

Source: Pitt and Shephard (1999), the fully adapted auxiliary particle filter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lm_latent_eval.devices import fetched, sent, sent_uniforms, wide_zeros, widened
from lm_latent_eval.latent import Beam, Draws, Uniforms
from lm_latent_eval.models.kglm.ragged import (
    expand_ranges,
    invert_cdf,
    ranked_within,
    segment_logsumexp,
)
from lm_latent_eval.models.nklm.joint import Encoded, NKLMJoint
from lm_latent_eval.models.nklm.state import WORD, Copies, NKLMState
from lm_latent_eval.models.ties import best_of
from lm_latent_eval.text.batch import TokenBatch

TOPIC_LANE = 1
"""Which of a decision's random numbers draws the topic."""


@dataclass(frozen=True)
class Sources:
    """Where the next word of each of N latents can come from, sorted by latent.

    On the host, but for what p says of it.
    """

    row: Tensor
    """The latent, (M,), non-decreasing."""
    source: Tensor
    """(M,)."""
    offset: Tensor
    """(M,)."""
    log_p: Tensor
    """Log p of that and of the word, (M,) float64."""


@dataclass(frozen=True)
class NKLMProposal:
    """q(z | x), from left to right; ``adapted`` reads the piece for its topic."""

    model: NKLMJoint
    name: str
    temperature: float

    def encode(self, batch: TokenBatch, after: NKLMState | None = None) -> Encoded:
        """Take up a piece of text."""
        return self.model.encode(batch, after)

    def sample(
        self, encoded: Encoded, uniforms: Uniforms, num_samples: int
    ) -> Draws[Copies]:
        """Draw K latents a text, continuing the K histories if there are any."""
        state = encoded.state.expanded(num_samples)
        u = uniforms(0)[..., TOPIC_LANE]
        topic, log_q = self._draw_topic(encoded, state.topic, u)
        state, log_q = replace(state, topic=topic), sent(log_q, encoded.device)
        stay = torch.arange(num_samples).expand_as(topic)
        return self._drawn(encoded, state, log_q, uniforms, stay)[0]

    def sample_from(
        self, encoded: Encoded, uniforms: Uniforms, origin: Tensor
    ) -> tuple[Draws[Copies], Tensor]:
        """Draw K latents a text, which continue those histories, (B, K).

        Where a word can come from is listed for all histories, if topics are known.
        """
        state = encoded.state
        if encoded.batch.targets.shape[1] and bool((state.topic != 0).all()):
            log_q = wide_zeros(origin.shape, encoded.device)
            return self._drawn(encoded, state, log_q, uniforms, origin)
        (origin,) = fetched(origin)
        encoded = replace(encoded, state=state.resample(origin))
        return self.sample(encoded, uniforms, origin.shape[1]), origin

    def _drawn(
        self,
        encoded: Encoded,
        state: NKLMState,
        log_q: Tensor,
        uniforms: Uniforms,
        origin: Tensor,
    ) -> tuple[Draws[Copies], Tensor]:
        """Draw where words come from, of latents that continue those of a state."""
        batch, device = encoded.batch, encoded.device
        every, histories = torch.arange(origin.numel()), state.topic.shape[1]
        row = torch.arange(len(origin), device=origin.device)[:, None] * histories
        row = (row + origin).flatten()
        path: list[tuple[Tensor, Tensor]] = []
        for t in range(batch.targets.shape[1]):
            if path:
                state, row = self._read(encoded, state, t - 1, *path[-1]), every
            inside, num_rows = batch.length > t, state.topic.numel()
            options = self._options(encoded, state.hidden, state.topic, t)
            log_p = self._normalised(options, num_rows)
            u = sent_uniforms(uniforms(t)[..., 0].flatten(), device)
            drawn = invert_cdf(log_p.exp(), options.row, num_rows, row, u)
            log_drawn, (drawn, origin) = log_p[drawn], fetched(drawn, origin)
            source = options.source[drawn].view(origin.shape)
            offset = options.offset[drawn].view(origin.shape)
            log_drawn = log_drawn.view(origin.shape)
            log_q = log_q + log_drawn.masked_fill(~inside[:, None], 0.0)
            state = state if path else state.resample(origin)
            path.append((source, offset))
        return Draws(_stacked(state.topic, path), log_q), origin

    def log_prob(self, encoded: Encoded, copies: Copies) -> Tensor:
        """Return log q(z_k | x) in nats, (B, K) float64."""
        batch, copies = encoded.batch, Copies(*fetched(*copies))
        state = encoded.state.expanded(copies.topic.shape[1])
        log_topic = self._log_topics(encoded).gather(1, copies.topic - 1)
        log_topic = log_topic.masked_fill(state.topic != 0, 0.0)
        total = sent(log_topic, batch.targets.device)
        hidden = self.model.predicted_from(encoded, state, copies)
        for t in range(batch.targets.shape[1]):
            inside = batch.length > t
            options = self._options(encoded, hidden[:, :, t], copies.topic, t)
            log_p = self._normalised(options, copies.topic.numel())
            source, offset = copies.source[..., t], copies.offset[..., t]
            same = (options.source == source.flatten()[options.row]) & (
                options.offset == offset.flatten()[options.row]
            )
            chosen = segment_logsumexp(
                log_p.masked_fill(sent(~same, log_p.device), -torch.inf),
                options.row,
                source.numel(),
            )
            total = total + chosen.view_as(total).masked_fill(~inside[:, None], 0.0)
        return total

    def beam(
        self, encoded: Encoded, width: int, score: Tensor | None = None
    ) -> Beam[Copies]:
        """Find up to ``width`` distinct latents of high p."""
        batch, device = encoded.batch, encoded.batch.targets.device
        num_tokens, (_, length) = batch.targets.shape[1], batch.on_host
        hope = self._speak(encoded, 0, num_tokens)
        if score is not None:
            score = fetched(score)[0].double()
        state, origin, score = self._begun(encoded, width, score, hope)
        path: list[tuple[Tensor, Tensor]] = []
        for t in range(num_tokens):
            if path:
                state = self._read(encoded, state, t - 1, *path[-1])
            options = self._options(encoded, state.hidden, state.topic, t)
            (log_p,) = fetched(options.log_p)
            hope = hope - self._speak(encoded, t, t + 1)
            latents = state.topic.shape[1]
            # Texts that have ended keep what they have: one option that costs nothing.
            ended = (length <= t)[options.row // latents]
            keep = ~ended | (options.source == WORD)
            value = score.flatten()[options.row]
            value = value + log_p.masked_fill(ended, 0.0)
            keep &= value > -torch.inf
            row, value = options.row[keep], value[keep]
            coming = hope.gather(1, state.topic - 1).flatten()[row]
            order, rank = ranked_within(row // latents, value + coming)
            order, rank = order[rank < width], rank[rank < width]
            text, parent = row[order] // latents, row[order] % latents
            size = (len(score), int(rank.max()) + 1 if len(rank) else 1)

            def put(values: Tensor, nothing: float = 0) -> Tensor:
                table = values.new_full(size, nothing)  # noqa: B023
                return table.index_put((text, rank), values)  # noqa: B023

            before = put(parent)
            source = put(options.source[keep][order])
            offset = put(options.offset[keep][order])
            score = put(value[order], -torch.inf)
            state = state.resample(before)
            origin = origin.gather(1, before)
            deep = [tuple(c.gather(1, before) for c in columns) for columns in path]
            path = [*deep, (source, offset)]  # type: ignore[list-item]
        if not path:  # a piece without tokens
            best = best_of(score, min(width, score.shape[1]))
            state = state.resample(best)
            score, origin = score.gather(1, best), origin.gather(1, best)
        score, origin = sent(score, device), sent(origin, device)
        return Beam(_stacked(state.topic, path), score, origin)

    def advance(self, encoded: Encoded, copies: Copies) -> NKLMState:
        """Return the state after the encoded piece."""
        return self.model.advance(encoded, copies)

    # -- topics -----------------------------------------------------------------------

    def _log_topics(self, encoded: Encoded) -> Tensor:
        """Return log q of each topic, (B, N) float64, on the host."""
        spoken = self._speak(encoded, 0, encoded.batch.targets.shape[1])
        fitting = (encoded.tables.topics.log_prior + spoken) / self.temperature
        log_q: Tensor = fitting.log_softmax(-1)
        return log_q

    def _speak(self, encoded: Encoded, first: int, last: int) -> Tensor:
        """Return what some words of B texts speak for each topic, (B, N) nats.

        On the host.
        """
        tables, (targets, length) = encoded.tables, encoded.batch.on_host
        many = tables.topics.num_topics + 1
        spoken = torch.zeros(len(length), many, dtype=torch.float64)
        if self.name != "adapted":
            return spoken[:, 1:]
        inside = torch.arange(first, last) < length[:, None]
        text = inside.nonzero()[:, 0]
        word = targets[:, first:last][inside] * many
        start = torch.searchsorted(tables.pairs, word)
        end = torch.searchsorted(tables.pairs, word + many)
        found, row = expand_ranges(start, end)
        gain = math.log(many - 1) - widened(end - start).log()
        place = (text[row], tables.pairs[found] % many)
        return spoken.index_put(place, gain[row], accumulate=True)[:, 1:]

    def _draw_topic(
        self, encoded: Encoded, before: Tensor, u: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Draw the topics that are not known yet, and return log q, (B, K) each."""
        log_q = self._log_topics(encoded)
        mass = log_q.exp().cumsum(-1)
        place = torch.searchsorted(mass, u * mass[:, -1:], right=True)
        place = place.clamp_max(mass.shape[1] - 1)
        known = before != 0
        return (
            torch.where(known, before, place + 1),
            log_q.gather(1, place).masked_fill(known, 0.0),
        )

    def _begun(
        self, encoded: Encoded, width: int, score: Tensor | None, hope: Tensor
    ) -> tuple[NKLMState, Tensor, Tensor]:
        """Return what a beam starts from: state, origin and score, (B, W) each."""
        state = encoded.state
        if score is None:
            score = torch.zeros(state.topic.shape, dtype=torch.float64)
        if bool((state.topic != 0).all()):
            origin = torch.arange(state.topic.shape[1])
            return state, origin.expand_as(score), score
        prior = encoded.tables.topics.log_prior.expand_as(hope)
        best = (prior + hope).topk(min(width, hope.shape[1]), -1).indices
        origin = torch.zeros_like(best)
        state = replace(state.resample(origin), topic=best + 1)
        return state, origin, score + prior.gather(1, best)

    # -- words ------------------------------------------------------------------------

    def _read(
        self, encoded: Encoded, state: NKLMState, t: int, source: Tensor, offset: Tensor
    ) -> NKLMState:
        """Read word t of every latent, of a source and an offset, (B, K) each."""
        words = encoded.batch.targets[:, t : t + 1]
        _, carry = self.model.read(
            encoded.tables,
            state.carry,
            words,
            torch.ones_like(words[:, 0]),
            source[..., None],
            offset[..., None],
        )
        return replace(state, carry=carry)

    def _options(
        self, encoded: Encoded, hidden: Tensor, topic: Tensor, t: int
    ) -> Sources:
        """Return where word t of every latent can come from."""
        batch, tables, hidden = encoded.batch, encoded.tables, hidden.flatten(0, 1)
        many, flat = tables.topics.num_topics + 1, topic.flatten()
        words = batch.targets[:, t, None].expand(topic.shape).flatten()
        cost = batch.unknown_log_prob[:, t, None].expand(topic.shape).flatten()
        key, naming, offset = tables.cells
        known = batch.on_host[0][:, t, None].expand_as(topic).flatten()
        wanted = known * many + flat
        cell, row = expand_ranges(
            torch.searchsorted(key, wanted),
            torch.searchsorted(key, wanted, right=True),
        )
        fits = offset[cell] < self.model.config.num_positions
        cell, row = cell[fits], row[fits]
        every = torch.arange(len(flat))
        nothing = torch.zeros_like(every)
        rows = torch.cat([every, row])
        order = rows.argsort(stable=True)
        source = torch.cat([nothing + WORD, naming[cell] + 1])[order]
        offsets = torch.cat([nothing, offset[cell]])[order]
        rows = rows[order]
        there, plain = (
            sent(x, hidden.device) for x in (rows, (source == WORD).nonzero()[:, 0])
        )
        log_p = self.model.log_step(tables, hidden[there], flat[rows], source, offsets)
        uttered = self.model.log_words(tables, hidden, words, cost)
        log_p = log_p.index_add(0, plain, uttered)
        return Sources(rows, source, offsets, log_p)

    def _normalised(self, options: Sources, num_rows: int) -> Tensor:
        """Return log q of options; where none is possible, the plain word's is 0."""
        value = options.log_p / self.temperature
        row, plain = (
            sent(x, value.device) for x in (options.row, options.source == WORD)
        )
        log_z = segment_logsumexp(value, row, num_rows)
        dead = log_z.isneginf()[row]
        log_q = value - log_z.masked_fill(log_z.isneginf(), 0.0)[row]
        first = plain & dead
        return log_q.masked_fill(dead, -torch.inf).masked_fill(first, 0.0)


def _stacked(topic: Tensor, path: list[tuple[Tensor, Tensor]]) -> Copies:
    """Put the words of latents one after another."""
    nothing = topic.new_zeros(*topic.shape, 0)
    source, offset = (
        torch.cat([nothing, *(column[..., None] for column in columns)], -1)
        for columns in (list(zip(*path, strict=True)) or ((), ()))
    )
    return Copies(topic, source, offset)
