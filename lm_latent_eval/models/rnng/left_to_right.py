r"""RNNG word by word: z_t is the number of REDUCEs before word t.

.. math::
    p(x_t, z_t \mid \text{stack}) = \prod_{r < z_t} P(\mathrm{REDUCE} \mid s_r)
        \cdot P(\mathrm{SHIFT} \mid s_{z_t}) \cdot P(x_t \mid s_{z_t})

where s_r is the stack after r REDUCEs. A stack of m items leaves m choices, which are
summed over exactly in predictions, and drawn from one of

* ``adapted``: q(z_t) ∝ p̂(x_t, z_t | stack), nearly the best that reads no further than
  x_t: p's own choice, weighed by what p says of the word after it;
* ``prior``: q(z_t) = p(z_t | stack), reading only whether the sentence ends.

With p for p̂, the weight of a history would be a product of p(x_t | stack), whatever z_t
was drawn: the proposal of a fully adapted particle filter (Pitt and Shephard, 1999).
p̂ is p, but for words after many REDUCEs. With u_r the state after r, up to r = c they
are scored over the whole vocabulary, then to first order about u_c,

.. math::
    \log \hat P(x \mid s_r) = \log P(x \mid s_c)
        + (u_r - u_c) \cdot \nabla_{u_c} \log P(x \mid s_c) \ge \log P(x \mid s_r)

unless one tree is left. Where many more REDUCEs are unlikely they are one class, whose
probability is known without them, with the word scored as before it: its members are
listed if it is drawn. So q is a distribution over all trees whose log is exact, and
weights are unbiased, whatever the word would have cost.

A sentence ends once one tree stands, so z_t of an end is the one choice that leaves it.

What the model computes is log p of every choice, for which the host waits once a word;
it chooses by itself and so knows which stacks come next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from lm_latent_eval.devices import fetched, sent, wide_zeros, widened
from lm_latent_eval.inference.cuts import Cut
from lm_latent_eval.inference.step_choices import Choices, Dense
from lm_latent_eval.inference.steps import Drawn, Found, Sampled, Taken
from lm_latent_eval.inference.unfolding import StepProposal
from lm_latent_eval.latent import Uniforms
from lm_latent_eval.models.rnng.choices import AT_ONCE, Listed
from lm_latent_eval.models.rnng.choices import Choices as Reduces
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

SPOKEN = 3
"""c + 1: the choices after which a word is scored over the whole vocabulary. Of a model
of GUM the others add 0.001 to the variance of log-weights of 24 words, 0.02 of 80."""


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
        Where what was not listed is drawn, it is listed to see what that is.
        """
        text, word = self.encoded.token(t)
        u, row, others = uniforms(t), state.row, [] if origin is None else [origin]
        stacks, listed = self.proposal.listed(state.stacks, row[text], word)
        *others, log_p, log_reduced, spoken = fetched(*others, *listed.computed)
        if origin is not None:
            (origin,) = others
            row = np.take_along_axis(row, origin.numpy(), 1)
            listed = listed.resampled(origin.numpy()[text])
        log_prob, _ = self.proposal.scored(listed, log_p, log_reduced, spoken)
        log_prob = log_prob[listed.pair]
        drawn = _inverted(log_prob, u[text][..., 0])
        whole = torch.zeros_like(drawn, dtype=torch.bool)
        while (unlisted := drawn == log_prob.shape[2] - 1).any():
            whole |= unlisted
            asked = state.stacks, row[text], word, whole.numpy()
            stacks, listed = self.proposal.listed(*asked)
            log_prob, _ = self.proposal.scored(listed, *fetched(*listed.computed))
            log_prob = log_prob[listed.pair]
            drawn = _inverted(log_prob, u[text][..., 0])
        column, log_q = torch.zeros(u.shape[:2]).long(), torch.zeros(u.shape[:2])
        column[text], log_q = drawn, log_q.double()
        log_q[text] = log_prob.gather(2, drawn[..., None])[..., 0]
        row = np.array(row)
        row[text] = listed.after(drawn)
        state = Standing(*self.proposal.shifted(stacks, row, text, word))
        return Drawn(state, (column,), log_q, origin)

    def choices(self, state: Standing, t: int, score: Tensor, cut: Cut | None) -> Dense:
        """List numbers of REDUCEs, ranked as ``WordByWord`` says.

        A beam is not given unlikely ones, unless it has room: then it must not have
        left anything out.
        """
        text, word = self.encoded.token(t)
        there, width = score[text] > -torch.inf, 0 if cut is None else cut.width
        whole = torch.full_like(there, cut is None or cut.exhaustive)
        while True:
            asked = state.stacks, state.row[text], word, whole.numpy()
            stacks, listed = self.proposal.listed(*asked)
            found = self.proposal.scored(listed, *fetched(*listed.computed))
            log_q, rank = (values[listed.pair] for values in found)
            rank = rank.masked_fill(~there[..., None], -torch.inf)
            room = (rank > -torch.inf).flatten(1).sum(1) < width
            missing = room[:, None] & listed.more[listed.pair] & there
            if not missing.any():
                break
            whole |= missing
        self._asked[:] = [(stacks, listed)]
        size = (*score.shape, rank.shape[-1])
        every, every_q = rank.new_full(size, -torch.inf), log_q.new_zeros(size)
        every[text], every_q[text] = rank, log_q[..., :-1]
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
    exact: bool = False
    """Whether p̂ is p, whatever that costs."""

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
            reduces = before[text, :, t]
            whole = (reduces >= AT_ONCE).numpy()
            stacks, listed = self.listed(stacks, row[text], word, whole)
            within = reduces < listed.row.shape[1]
            reduces = reduces.where(within, 0)
            row[text] = listed.after(reduces)
            stacks, row = self.shifted(stacks, row, text, word)
            steps.append((text, listed, reduces, within))
        log_q = torch.zeros(after.shape, dtype=torch.float64)
        computed = iter(fetched(*(x for _, y, *_ in steps for x in y.computed)))
        for text, listed, reduces, within in steps:
            log_prob, _ = self.scored(listed, *islice(computed, len(listed.computed)))
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
        self,
        stacks: Stacks,
        row: Integers,
        word: Integers,
        whole: NDArray[np.bool_] | bool = False,
    ) -> tuple[Stacks, Listed]:
        """List the choices of B texts with K histories, (B, K), before a word of each.

        Args:
            stacks: A table.
            row: The stack of each history.
            word: The words, (B,).
            whole: Of which histories unlikely choices are listed as well, (B, K).

        Returns:
            A table with the stacks after them, and the choices.
        """
        model, config = self.model.generative, self.model.config
        place, which = _distinct(row)
        # An end asks for all REDUCEs, likely or not.
        whole = whole | self._is_end(word)[:, None] | self.exact
        whole = np.broadcast_to(whole, row.shape)
        every = np.zeros_like(place, bool)
        every[which[whole]] = True
        choices = Reduces.of(model, stacks, place, every)
        stacks = choices.stacks
        # Each (stack, next word) once.
        pair, of_pair = _distinct(which * config.vocab_size + word[:, None])
        stack, word = pair // config.vocab_size, pair % config.vocab_size
        after, possible = choices.row[stack], choices.possible[stack]
        return stacks, Listed(
            of_pair,
            after,
            torch.from_numpy(possible.sum(-1)),
            torch.from_numpy(choices.more[stack]),
            torch.from_numpy((stacks.size[after] != 1) & self._is_end(word)[:, None]),
            torch.from_numpy(self._is_end(word) | self.exact),
            stack,
            choices.log_p,
            choices.log_reduced,
            self._spoken(stacks, after, possible, word),
        )

    def _is_end(self, word: Integers) -> NDArray[np.bool_]:
        """Return which words end a sentence."""
        ends: NDArray[np.bool_] = (word == END) & self.model.config.sentence_ends
        return ends

    def _spoken(
        self,
        stacks: Stacks,
        after: Integers,
        possible: NDArray[np.bool_],
        word: Integers,
    ) -> Tensor:
        """Score the word after each choice, see ``Listed``.

        A word is scored over the whole vocabulary after the first ``SPOKEN`` choices
        and where one tree stands, and after others to first order about the last of
        those. ``prior`` does not look at it.
        """
        model, device = self.model.generative, self.model.device
        spoken = wide_zeros((after.size,), device)
        if self.name != "adapted":
            return spoken.view(after.shape)
        size, place = stacks.size[after], np.arange(after.shape[1])
        near = possible & (place >= SPOKEN) & (size > 1) & (not self.exact)
        base = near.any(1, keepdims=True) & (place == SPOKEN - 1)

        def found(some: NDArray[np.bool_]) -> Iterator[Tensor]:
            said = np.broadcast_to(word[:, None], after.shape)
            columns = (x[some] for x in (after, size, said))
            return sent_all(device, np.flatnonzero(some), *columns)

        spoken -= torch.inf
        where, row, *there = found(possible & ~near & ~base)
        spoken[where] = model.log_word(stacks.top(row), *there)
        if len(owner := near.nonzero()[0]):
            where, row, *there = found(base)
            top = stacks.top(row)
            log_p, slope = model.log_word_and_slope(top, *there)
            spoken[where] = log_p
            which = near.any(1).cumsum()[owner] - 1
            integers = np.flatnonzero(near), after[near], which
            where, row, of = sent_all(device, *integers)
            further = ((stacks.top(row) - top[of]) * slope[of]).sum(-1)
            spoken[where] = log_p[of] + widened(further)
        return spoken.view(after.shape)

    def scored(
        self, listed: Listed, log_p: Tensor, log_reduced: Tensor, spoken: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return log q(z_t) and what z_t adds to a rank, (P, M + 1) and (P, M) float64.

        The last column is log q of all choices that are not listed. From where more
        are unlikely, they are one class, listed or not: the word is scored as after
        the last choice before, and q within the class is p's own.

        Args:
            listed: The choices.
            log_p: What is computed of them, on the host.
            log_reduced: The same.
            spoken: The same.
        """
        log_p, log_reduced = (x.double()[listed.stack] for x in (log_p, log_reduced))
        words = spoken.double()
        if self.name != "adapted":
            words = words.masked_fill(listed.unfinished, -torch.inf)
        first = listed.first_unlikely(log_reduced)
        log_class = log_reduced.gather(1, first)
        in_class = torch.arange(log_p.shape[1]) >= first
        prior = torch.cat([log_p.masked_fill(in_class, -torch.inf), log_class], 1)
        score = prior + torch.cat([words, words.gather(1, first - 1)], 1)
        # Where nothing is possible, p is zero whatever is drawn.
        score = score.where((score > -torch.inf).any(-1, keepdim=True), prior)
        log_q = (score / self.temperature).log_softmax(-1)
        of_class, log_q = log_q[:, -1:], log_q[:, :-1]
        log_q = torch.where(in_class, of_class + log_p - log_class, log_q)
        is_listed = first < listed.number[:, None]
        log_q = torch.cat([log_q, of_class.masked_fill(is_listed, -torch.inf)], 1)
        return log_q, log_p + words if self.name == "adapted" else log_q[:, :-1]

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


def _inverted(log_prob: Tensor, u: Tensor) -> Tensor:
    """Draw a column of each row, (..., N), by numbers of (0, 1), (...)."""
    mass = log_prob.exp().cumsum(-1)
    return (mass < u[..., None] * mass[..., -1:]).sum(-1)


def _distinct(numbers: Integers) -> tuple[Integers, Integers]:
    """Return the distinct numbers, and the index of each."""
    found, which = np.unique(numbers, return_inverse=True)
    return found, which.reshape(numbers.shape)
