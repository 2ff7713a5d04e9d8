r"""RNNG word by word: z_t is the number of REDUCEs before word t.

.. math::
    p(x_t, z_t \mid \text{stack}) = \prod_{r < z_t} P(\mathrm{REDUCE} \mid s_r)
        \cdot P(\mathrm{SHIFT} \mid s_{z_t}) \cdot P(x_t \mid s_{z_t})

where s_r is the stack after r REDUCEs. A stack of m items leaves m choices, so they are
listed: z_t is summed over exactly in predictions, and drawn from one of

* ``adapted``: q(z_t) ∝ p(x_t, z_t | stack), the best that reads no further than x_t:
  p's own choice, weighed by what p says of the word after it;
* ``prior``: q(z_t) = p(z_t | stack), reading only whether the sentence ends.

With the first the weight of a history is a product of p(x_t | stack), whatever z_t was
drawn: the proposal of a fully adapted particle filter (Pitt and Shephard, 1999).

A sentence ends once one tree stands, so z_t of an end is the one choice that leaves it.

What the model computes is log p of every choice, for which the host waits once a word;
it chooses by itself and so knows which stacks come next.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from lm_latent_eval.devices import fetched, sent
from lm_latent_eval.inference.cuts import Cut
from lm_latent_eval.inference.steps import (
    Choices,
    Dense,
    Drawn,
    Found,
    Sampled,
    Taken,
)
from lm_latent_eval.inference.unfolding import StepProposal
from lm_latent_eval.latent import Uniforms
from lm_latent_eval.models.rnng.choices import Choices as EveryReduce
from lm_latent_eval.models.rnng.choices import Listed
from lm_latent_eval.models.rnng.joint import Encoded, RNNGJoint, num_words
from lm_latent_eval.models.rnng.stacks import (
    Integers,
    Stacks,
    StackState,
    sent_all,
    shifts,
)
from lm_latent_eval.models.rnng.trees import Trees, rotated
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.words import END


@dataclass(frozen=True)
class Standing:
    """Stacks of K histories of each of B texts."""

    stacks: Stacks
    row: Integers
    """(B, K)."""


@dataclass(frozen=True)
class StackSteps:
    """The steps of a piece: how many REDUCEs there are before each word."""

    proposal: WordByWord
    encoded: Encoded
    _asked: list[tuple[Stacks, Listed]] = field(default_factory=list)
    """What was listed last: ``take`` goes on from it."""
    num_columns: ClassVar[int] = 1

    @property
    def length(self) -> Tensor:
        """Words of each text, on the host, (B,)."""
        return self.encoded.batch.on_host[1]

    @property
    def num_steps(self) -> int:
        return self.encoded.longest

    def begin(self, num_histories: int | None) -> Standing:
        """Return the stacks before the piece: of K histories, or of those there are."""
        samples = num_histories or self.encoded.state.row.shape[1]
        return Standing(*_begun(self.encoded, samples))

    def num_histories(self, state: Standing) -> int:
        """Return K."""
        histories: int = state.row.shape[1]
        return histories

    def draw(
        self, state: Standing, t: int, uniforms: Uniforms, origin: Tensor | None
    ) -> Drawn[Standing]:
        """Draw the REDUCEs before word t.

        What can come next is listed for all histories, and asked for with ``origin``.
        """
        text, word = self.encoded.token(t)
        stacks, listed = self.proposal.listed(state.stacks, state.row[text], word)
        row, others = state.row, [] if origin is None else [origin]
        log_p, spoken, *others = fetched(listed.log_p, listed.spoken, *others)
        if origin is not None:
            (origin,) = others
            row = np.take_along_axis(row, origin.numpy(), 1)
            listed = listed.resampled(origin.numpy()[text])
        log_prob = self.proposal.scored(listed, log_p, spoken)[0][listed.pair]
        u, mass = uniforms(t), log_prob.exp().cumsum(-1)
        drawn = (mass < u[text][..., :1] * mass[..., -1:]).sum(-1)
        column, log_q = torch.zeros(u.shape[:2]).long(), torch.zeros(u.shape[:2])
        column[text], log_q = drawn, log_q.double()
        log_q[text] = log_prob.gather(2, drawn[..., None])[..., 0]
        row = np.array(row)
        row[text] = listed.after(drawn)
        state = Standing(*self.proposal.shifted(stacks, row, text, word))
        return Drawn(state, (column,), log_q, origin)

    def choices(self, state: Standing, t: int, score: Tensor, cut: Cut | None) -> Dense:
        """List every number of REDUCEs, ranked as ``WordByWord`` says."""
        text, word = self.encoded.token(t)
        stacks, listed = self.proposal.listed(state.stacks, state.row[text], word)
        self._asked[:] = [(stacks, listed)]
        log_p, spoken = fetched(listed.log_p, listed.spoken)
        log_q, rank = self.proposal.scored(listed, log_p, spoken)
        size = (*score.shape, rank.shape[-1])
        every, every_q = rank.new_full(size, -torch.inf), log_q.new_zeros(size)
        every[text], every_q[text] = rank[listed.pair], log_q[listed.pair]
        return Dense(every, every_q)

    def take(
        self,
        state: Standing,
        t: int,
        choices: Choices,
        origin: Tensor,
        choice: Tensor,
        uniforms: Callable[[], Tensor],
    ) -> Taken[Standing]:
        """Reduce, and put word t on the stacks."""
        text, word = self.encoded.token(t)
        [(stacks, listed)] = self._asked
        row = np.take_along_axis(state.row, origin.numpy(), 1)
        stack = np.take_along_axis(listed.pair, origin.numpy()[text], 1)
        row[text] = listed.row[stack, choice.numpy()[text]]
        shifted = Standing(*self.proposal.shifted(stacks, row, text, word))
        return Taken(shifted, (choice,))


@dataclass(frozen=True)
class WordByWord(StepProposal[Encoded, Trees, Standing]):
    """q(z | x) = prod_t q(z_t | z_<t, x_<=t), over p's own stacks."""

    searches_know_q: ClassVar[bool] = True
    model: RNNGJoint
    name: str
    temperature: float

    def encode(self, batch: TokenBatch, after: StackState | None = None) -> Encoded:
        return self.model.encode(batch, after)

    def encode_again(
        self, encoded: Encoded, batch: TokenBatch, after: StackState | None
    ) -> Encoded:
        """Encode again, after the histories that a search has kept."""
        return self.model.encode_again(encoded, batch, after)

    def drawn_steps(self, encoded: Encoded) -> StackSteps:
        """Return the steps, which are drawn and searched alike.

        ``adapted`` ranks by log p of the prefix and its words, whatever its
        temperature, but for what the original charges after an end.
        """
        return StackSteps(self, encoded)

    searched_steps = drawn_steps

    def histories(self, encoded: Encoded) -> int:
        """Return how many histories of a text a piece follows."""
        histories: int = encoded.state.row.shape[1]
        return histories

    def latents(
        self, encoded: Encoded, found: Sampled[Standing] | Found[Standing]
    ) -> Trees:
        """Return trees, and remember the stacks that they lead to."""
        (before,) = found.columns
        padding = encoded.batch.targets.shape[1] - before.shape[2]
        before = F.pad(before, (0, padding))
        trees = Trees(before, torch.zeros_like(before[..., :1].sum(-1)))
        stacks, row = found.state.stacks, found.state.row
        if not encoded.longest:  # nothing was decided
            row = np.take_along_axis(row, found.origin.numpy(), 1)
        stacks, row = stacks.compact(np.where(encoded.ended.numpy()[:, None], 0, row))
        encoded.remember(trees, stacks, row)
        return trees

    def log_prob(self, encoded: Encoded, trees: Trees) -> Tensor:
        """Return log q(z_k | x) in nats, (B, K) float64."""
        before, after = fetched(*trees)
        stacks, row = _begun(encoded, after.shape[1])
        steps = []
        for t in range(encoded.longest):
            text, word = encoded.token(t)
            stacks, listed = self.listed(stacks, row[text], word)
            reduces = before[text, :, t]
            within = reduces < listed.possible.shape[1]
            reduces = reduces.where(within, 0)
            row[text] = listed.after(reduces)
            stacks, row = self.shifted(stacks, row, text, word)
            steps.append((text, listed, reduces, within))
        log_q = torch.zeros(after.shape, dtype=torch.float64)
        listings = [listed for _, listed, *_ in steps]
        computed = iter(fetched(*(x for y in listings for x in (y.log_p, y.spoken))))
        for text, listed, reduces, within in steps:
            log_prob, _ = self.scored(listed, next(computed), next(computed))
            chosen = log_prob[listed.pair].gather(2, reduces[..., None])[..., 0]
            log_q[text] += chosen.masked_fill(~within, -torch.inf)
        return self._sent(log_q.masked_fill(after > 0, -torch.inf))

    def moved(
        self, encoded: Encoded, trees: Trees, uniforms: Uniforms
    ) -> tuple[Trees, Tensor]:
        """Rotate one constituent of each tree.

        Raises:
            ValueError: If a text is no whole sentence.
        """
        words = num_words(self.model.config, encoded.batch)
        return rotated(trees, encoded.batch, words, uniforms(0)[..., 0])

    def advance(self, encoded: Encoded, trees: Trees) -> StackState:
        """Return the stacks after the encoded piece."""
        return self.model.advance(encoded, trees)

    def listed(
        self, stacks: Stacks, row: Integers, word: Integers
    ) -> tuple[Stacks, Listed]:
        """List the choices of B texts with K histories, (B, K), before a word of each.

        Returns:
            A table with the stacks after them, and the choices.
        """
        model, config = self.model.generative, self.model.config
        place, which = _distinct(row)
        choices = EveryReduce.of(model, stacks, place)
        stacks = choices.stacks
        # Each (stack, next word) once.
        pair, of_pair = _distinct(which * config.vocab_size + word[:, None])
        stack, word = pair // config.vocab_size, pair % config.vocab_size
        after, possible = choices.row[stack], choices.possible[stack]
        size = stacks.size[after]
        spoken = choices.log_p.new_zeros(0)
        if self.name == "adapted":
            said = np.broadcast_to(word[:, None], after.shape)
            there = sent_all(
                self.model.device, *(x[possible] for x in (after, size, said))
            )
            spoken = model.log_word(stacks.top(next(there)), *there)
        unfinished = (size != 1) & (word == END)[:, None] & config.sentence_ends
        return stacks, Listed(
            of_pair,
            after,
            torch.from_numpy(possible),
            torch.from_numpy(unfinished),
            stack,
            choices.log_p,
            spoken,
        )

    def scored(
        self, listed: Listed, log_p: Tensor, spoken: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return log q(z_t) and what z_t adds to a rank, (P, M) float64.

        Args:
            listed: The choices.
            log_p: What is computed of them, on the host.
            spoken: The same.
        """
        log_p = log_p.double()[listed.stack]
        score = log_p
        if self.name == "adapted":
            words = torch.full_like(log_p, -torch.inf)
            words = words.masked_scatter(listed.possible, spoken.double())
            score = rank = log_p + words
        else:
            score = score.masked_fill(listed.unfinished, -torch.inf)
        # Where nothing is possible, p is zero whatever is drawn.
        score = score.where((score > -torch.inf).any(-1, keepdim=True), log_p)
        log_q = (score / self.temperature).log_softmax(-1)
        return log_q, rank if self.name == "adapted" else log_q

    def shifted(
        self, stacks: Stacks, row: Integers, text: Integers, word: Integers
    ) -> tuple[Stacks, Integers]:
        """Keep the stacks of histories, and put a word on those of some texts."""
        stacks, row = stacks.compact(row)
        size = self.model.config.vocab_size
        pair, which = _distinct(row[text] * size + word[:, None])
        growth = shifts(stacks, pair // size, pair % size)
        row[text] = len(stacks) + which
        return self.model.generative.grown(stacks, growth), row

    def _sent(self, found: Tensor) -> Tensor:
        return sent(found, self.model.device)


def _begun(encoded: Encoded, samples: int) -> tuple[Stacks, Integers]:
    """Return the stacks that K histories of each text begin on."""
    row = encoded.state.row
    return encoded.state.stacks.compact(np.broadcast_to(row, (len(row), samples)))


def _distinct(numbers: Integers) -> tuple[Integers, Integers]:
    """Return the distinct numbers, and the index of each."""
    found, which = np.unique(numbers, return_inverse=True)
    return found, which.reshape(numbers.shape)
