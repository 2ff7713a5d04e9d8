r"""RNNG word by word: z_t is the number of REDUCEs before word t.

.. math::
    p(x_t, z_t \mid \text{stack}) = \prod_{r < z_t} P(\mathrm{REDUCE} \mid s_r)
        \cdot P(\mathrm{SHIFT} \mid s_{z_t}) \cdot P(x_t \mid s_{z_t})

where s_r is the stack after r REDUCEs. A stack of m items leaves m choices, which are
summed over exactly in predictions, and drawn from one of

* ``adapted``: q(z_t) ∝ p(x_t, z_t | stack), the best that reads no further than x_t:
  p's own choice, weighed by what p says of the word after it;
* ``prior``: q(z_t) = p(z_t | stack), reading only whether the sentence ends.

The weight of a history by ``adapted`` would be a product of p(x_t | stack), whatever
z_t was drawn: the proposal of a fully adapted particle filter (Pitt and Shephard,
1999). But if many more REDUCEs are unlikely they form one class, whose probability is
known without listing them, with the word scored as before it. Its members are listed
only as far as they are drawn. So q is a distribution over all trees whose log is exact,
and weights are unbiased.

A sentence ends once one tree stands, so z_t of an end is the one choice that leaves it.

The model computes log p of every choice, for which the host waits once a word; choices
are made on the host, which therefore knows the next stacks and log p of histories.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from lm_latent_eval.devices import fetched, sent, wide_zeros
from lm_latent_eval.inference.cuts import Cut
from lm_latent_eval.inference.step_choices import Choices, Dense
from lm_latent_eval.inference.steps import (
    Drawn,
    Found,
    Sampled,
    Taken,
)
from lm_latent_eval.inference.streams import invert_cdf
from lm_latent_eval.inference.unfolding import StepProposal
from lm_latent_eval.latent import Uniforms
from lm_latent_eval.models.rnng.choices import AT_ONCE, LEAST, Listed
from lm_latent_eval.models.rnng.choices import Choices as Reduces
from lm_latent_eval.models.rnng.joint import Encoded, RNNGJoint
from lm_latent_eval.models.rnng.stacks import (
    Integers,
    Stacks,
    StackState,
    distinct,
    sent_all,
)
from lm_latent_eval.models.rnng.trees import Trees
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.words import END

WIDENING = 16
"""``StepProposal.widening`` of trees, whose histories each have a stack of their own:
twice as many take twice as long for two thirds of the error."""


@dataclass(frozen=True)
class PendingStacks:
    """K histories of each of B texts, before the last word is put on their stacks."""

    stacks: Stacks
    """Table of stacks that all histories share."""
    row: Integers
    """Stack of each history, (B, K)."""
    last: int | None
    """Index of the pending last word, in texts that have it; None before the first."""
    log_p: Tensor
    """Log p of the piece so far in nats, on the host, (B, K) float64."""


@dataclass(frozen=True)
class NextWordChoices:
    """Stacks before the next word, and their choices, for texts that have one."""

    stacks: Stacks
    """Table of stacks, those after every choice included."""
    row: Integers
    """Stack of each history of every text, (B, K)."""
    log_p: Tensor
    """Log p of the piece before the word, (B, K); see ``PendingStacks``."""
    listed: Listed
    log_q: Tensor
    """Results of ``WordByWord.scored``: ``log_q`` (P, M + 1), ``rank`` and
    ``log_joint`` (P, M), ``log_class`` (P,)."""
    rank: Tensor
    log_joint: Tensor
    log_class: Tensor

    def resampled(self, origin: Tensor, text: Integers) -> NextWordChoices:
        """Pick histories of each text, (B, K'); ``text`` lists those with a word."""
        return replace(
            self,
            row=np.take_along_axis(self.row, origin.numpy(), 1),
            log_p=self.log_p.gather(1, origin),
            listed=self.listed.resampled(origin.numpy()[text]),
        )

    def chosen(self, choice: Tensor) -> tuple[Integers, Tensor]:
        """Stacks after choices of texts with a word, and log p added, (texts, K)."""
        log_joint = self.log_joint[self.listed.pair]
        added = log_joint.gather(2, choice[..., None])[..., 0]
        return self.listed.after(choice), added


@dataclass(frozen=True, kw_only=True)
class StackChoices(Dense):
    """Numbers of REDUCEs of every history, and the stacks after them for ``take``."""

    next_word: NextWordChoices


@dataclass(frozen=True)
class StackSteps:
    """Steps of a piece: the REDUCEs before each word."""

    proposal: WordByWord
    encoded: Encoded
    num_columns: ClassVar[int] = 1

    @property
    def length(self) -> Tensor:
        return self.encoded.batch.on_host[1]

    @property
    def num_steps(self) -> int:
        return self.encoded.longest

    def begin(self, num_histories: int | None) -> PendingStacks:
        """Stacks before the piece, of K histories or of the given ones."""
        row = self.encoded.state.row
        row = np.broadcast_to(row, (len(row), num_histories or row.shape[1]))
        log_p = torch.zeros(row.shape, dtype=torch.float64)
        return PendingStacks(self.encoded.state.stacks, row, None, log_p)

    def num_histories(self, state: PendingStacks) -> int:
        histories: int = state.row.shape[1]
        return histories

    def _listed(
        self,
        state: PendingStacks,
        t: int,
        others: Sequence[Tensor] = (),
        *,
        every: bool = False,
    ) -> tuple[NextWordChoices, list[Tensor]]:
        """List z_t, and wait for it and for other tensors once.

        Returns:
            The choices, and the others on the host.
        """
        text, word = self.encoded.token(t)
        stacks, row = self.proposal.arrived(self.encoded, state)
        log_least = -math.inf if every else math.log(LEAST)
        stacks, listed = self.proposal.listed(stacks, row[text], word, log_least)
        on_host = fetched(*listed.computed, *others)
        number = len(listed.computed)
        scored = self.proposal.scored(listed, *on_host[:number])
        ahead = NextWordChoices(stacks, row, state.log_p, listed, *scored)
        return ahead, [*on_host[number:]]

    def _again(
        self,
        ahead: NextWordChoices,
        row: Integers,
        word: Integers,
        log_least: NDArray[np.float64],
    ) -> NextWordChoices:
        """List choices of some of the stacks anew."""
        stacks, listed = self.proposal.listed(ahead.stacks, row, word, log_least)
        scored = self.proposal.scored(listed, *fetched(*listed.computed))
        return NextWordChoices(stacks, ahead.row, ahead.log_p, listed, *scored)

    def draw(
        self, state: PendingStacks, t: int, uniforms: Uniforms, origin: Tensor | None
    ) -> Drawn:
        """Draw the REDUCEs before word t.

        All histories are listed before ``origin`` is known, so that both arrive in one
        wait. A draw of the unlisted class is resolved by listing its members.
        """
        (text, word), u = self.encoded.token(t), uniforms(t)
        ahead, others = self._listed(state, t, [] if origin is None else [origin])
        if origin is not None:
            (origin,) = others
            ahead = ahead.resampled(origin, text)
        log_prob, uniform = ahead.log_q[ahead.listed.pair], u[text][..., 0]
        drawn = invert_cdf(log_prob.exp(), uniform)
        log_q = log_prob.gather(2, drawn[..., None])[..., 0]
        unlisted = drawn == log_prob.shape[2] - 1
        after, added = ahead.chosen(drawn.masked_fill(unlisted, 0))
        if unlisted.any():
            which, k = unlisted.numpy().nonzero()
            row, u_class = ahead.row[text][which, k][:, None], uniform[which, k]
            # Within the class q is p's own: the rest of the uniform number decides.
            left = ((1 - u_class).log() - log_q[which, k]).clamp_max(0.0)
            least = left + ahead.log_class[ahead.listed.pair[which, k]]
            among = self._again(ahead, row, word[which], least[:, None].numpy())
            ahead, listed = replace(ahead, stacks=among.stacks), among.listed
            log_prob = among.log_q[listed.pair]
            choice = (log_prob.exp().cumsum(-1) < u_class[:, None, None]).sum(-1)
            choice = choice.minimum(listed.number[listed.pair] - 1)
            log_q[which, k] = log_prob.gather(2, choice[..., None])[:, 0, 0]
            drawn[which, k] = choice[:, 0]
            rows, added_class = among.chosen(choice)
            after[which, k], added[which, k] = rows[:, 0], added_class[:, 0]
        column, every_q = torch.zeros(u.shape[:2]).long(), torch.zeros(u.shape[:2])
        every_q = every_q.double()
        column[text], every_q[text] = drawn, log_q
        state = self._gone_on(ahead, t, after, added)
        return Drawn(state, (column,), every_q, origin)

    def choices(
        self, state: PendingStacks, t: int, score: Tensor, cut: Cut | None
    ) -> StackChoices:
        """List numbers of REDUCEs, ranked as ``WordByWord`` says.

        Unlikely ones are listed only if the beam has room: only then may it not omit
        any.
        """
        text, word = self.encoded.token(t)
        alive, width = score[text] > -torch.inf, max(cut.widths) if cut else 0
        ahead, _ = self._listed(state, t, every=cut is None or cut.exhaustive)
        log_least = np.full(alive.shape, math.log(LEAST))
        while True:
            pair = ahead.listed.pair
            rank = ahead.rank[pair].masked_fill(~alive[..., None], -torch.inf)
            room = (rank > -torch.inf).flatten(1).sum(1) < width
            missing = room[:, None] & ahead.listed.more[pair] & alive
            if not missing.any():
                break
            log_least[missing.numpy()] = -np.inf
            ahead = self._again(ahead, ahead.row[text], word, log_least)
        size = (*score.shape, rank.shape[-1])
        every = rank.new_full(size, -torch.inf)
        every[text] = rank
        return StackChoices(log_p=every, next_word=ahead)

    def take(
        self,
        state: PendingStacks,
        t: int,
        choices: Choices,
        origin: Tensor,
        choice: Tensor,
    ) -> Taken:
        """Reduce; word t joins the stacks at the next step."""
        text, _ = self.encoded.token(t)
        assert isinstance(choices, StackChoices)
        ahead = choices.next_word.resampled(origin, text)
        return Taken(self._gone_on(ahead, t, *ahead.chosen(choice[text])), (choice,))

    def _gone_on(
        self,
        ahead: NextWordChoices,
        t: int,
        after: Integers,
        added: Tensor,
    ) -> PendingStacks:
        text, _ = self.encoded.token(t)
        row, log_p = ahead.row.copy(), ahead.log_p.clone()
        row[text] = after
        log_p[text] += added
        return PendingStacks(ahead.stacks, row, t, log_p)


@dataclass(frozen=True)
class WordByWord(StepProposal):
    """q(z | x) = prod_t q(z_t | z_<t, x_<=t), over p's own stacks."""

    widening: ClassVar[int] = WIDENING
    model: RNNGJoint
    name: str
    temperature: float
    exact: bool = False
    """Whether all choices are listed, at any cost."""
    finishes: bool = False
    """Whether an end word is added that the model lacks, sure where one tree stands;
    see ``finished.py``."""

    def encode(self, batch: TokenBatch, after: StackState | None = None) -> Encoded:
        return self.model.encode(batch, after)

    def encode_again(
        self, encoded: Encoded, batch: TokenBatch, after: StackState | None
    ) -> Encoded:
        return self.model.encode_again(encoded, batch, after)

    def drawn_steps(self, encoded: Encoded) -> StackSteps:
        """Steps, drawn and searched alike.

        ``adapted`` ranks by log p of the prefix at any temperature, without the
        original's charge after an end.
        """
        return StackSteps(self, encoded)

    searched_steps = drawn_steps

    def histories(self, encoded: Encoded) -> int:
        histories: int = encoded.state.row.shape[1]
        return histories

    def latents(self, encoded: Encoded, found: Sampled | Found) -> Trees:
        """Build trees, and remember the stacks that they lead to."""
        (before,) = found.columns
        padding = encoded.batch.targets.shape[1] - before.shape[2]
        before = F.pad(before, (0, padding))
        trees = Trees(before, torch.zeros_like(before[..., :1].sum(-1)))
        stacks, row = self.arrived(encoded, found.state)
        log_p = self._sent(found.state.log_p)
        if not encoded.longest:  # nothing was decided
            row = np.take_along_axis(row, found.origin.numpy(), 1)
            log_p = wide_zeros(row.shape, self.model.device)
        stacks, row = stacks.compact(np.where(encoded.ended.numpy()[:, None], 0, row))
        encoded.remember(trees, stacks, row)
        encoded.scored[:] = [(trees, log_p)]
        return trees

    def known_log_p(
        self,
        encoded: Encoded,
        found: Sampled | Found,
        latents: Trees,
    ) -> Tensor | None:
        """Log p(x, z_k) of the trees made last.

        None if p charges for ends, because the steps do not.
        """
        cached = [log_p for trees, log_p in encoded.scored if trees is latents]
        if not cached or not self.model.config.only_possible:
            return None
        cost = self.model.log_unknown(encoded)
        return cached[0] + cost[:, None]

    def arrived(
        self, encoded: Encoded, state: PendingStacks
    ) -> tuple[Stacks, Integers]:
        """Put the last word on the stacks; return the rows, (B, K)."""
        if state.last is None:
            return state.stacks.compact(state.row)
        return self.shifted(state.stacks, state.row, *encoded.token(state.last))

    def log_prob(self, encoded: Encoded, trees: Trees) -> Tensor:
        """Log q(z_k | x) in nats, (B, K) float64."""
        before, after = fetched(*trees)
        row = encoded.state.row
        row = np.broadcast_to(row, (len(row), after.shape[1]))
        stacks, row = encoded.state.stacks.compact(row)
        steps = []
        for t in range(encoded.longest):
            text, word = encoded.token(t)
            reduces = before[text, :, t]
            log_least = np.where(reduces >= AT_ONCE, -np.inf, math.log(LEAST))
            stacks, listed = self.listed(stacks, row[text], word, log_least)
            within = reduces < listed.row.shape[1]
            reduces = reduces.where(within, 0)
            row[text] = listed.after(reduces)
            stacks, row = self.shifted(stacks, row, text, word)
            steps.append((text, listed, reduces, within))
        log_q = torch.zeros(after.shape, dtype=torch.float64)
        computed = iter(fetched(*(x for _, y, *_ in steps for x in y.computed)))
        for text, listed, reduces, within in steps:
            log_prob, *_ = self.scored(listed, *islice(computed, len(listed.computed)))
            chosen = log_prob[listed.pair].gather(2, reduces[..., None])[..., 0]
            log_q[text] += chosen.masked_fill(~within, -torch.inf)
        return self._sent(log_q.masked_fill(after > 0, -torch.inf))

    def advance(self, encoded: Encoded, trees: Trees) -> StackState:
        return self.model.advance(encoded, trees)

    def listed(
        self,
        stacks: Stacks,
        row: Integers,
        word: Integers,
        log_least: NDArray[np.float64] | float,
    ) -> tuple[Stacks, Listed]:
        """List the choices of B texts with K histories, (B, K), before a word of each.

        Args:
            stacks: A table.
            row: The stack of each history.
            word: The words, (B,).
            log_least: Threshold of each history: REDUCEs beyond it are not listed, (B,
                K).

        Returns:
            A table with the stacks after them, and the choices.
        """
        model, config = self.model.generative, self.model.config
        rows, which = distinct(row)
        # An end requires all REDUCEs, likely or not.
        every = self._is_end(word)[:, None] | self.exact
        log_least = np.where(every, -np.inf, log_least)
        least_of_row = np.full(len(rows), np.inf)
        np.minimum.at(least_of_row, which, np.broadcast_to(log_least, row.shape))
        choices = Reduces.of(model, stacks, rows, least_of_row)
        stacks = choices.stacks
        # Each (stack, next word) once.
        pair, of_pair = distinct(which * config.vocab_size + word[:, None])
        stack, word = pair // config.vocab_size, pair % config.vocab_size
        after, possible = choices.row[stack], choices.possible[stack]
        size, index = stacks.size[after], choices.top_row[stack]
        spoken = self._spoken(choices.top, index, size, word)
        return stacks, Listed(
            of_pair,
            after,
            torch.from_numpy(possible.sum(-1)),
            torch.from_numpy(choices.more[stack]),
            torch.from_numpy((size != 1) & self._is_end(word)[:, None]),
            torch.from_numpy(self._is_end(word) | self.exact),
            stack,
            choices.log_p,
            choices.log_reduced,
            spoken,
        )

    def _is_end(self, word: Integers) -> NDArray[np.bool_]:
        says = self.model.config.sentence_ends
        ends: NDArray[np.bool_] = (word == END) & (says or self.finishes)
        return ends

    def _spoken(
        self, top: Tensor, top_row: Integers, size: Integers, word: Integers
    ) -> Tensor:
        """Log P(word | SHIFT) after each choice, (P, M); see ``Listed``.

        An end that the model lacks costs nothing.

        Args:
            top: u of stacks.
            top_row: Index in ``top`` of the stack after each choice, (P, M); -1 if not
                listed.
            size: Items on it, (P, M).
            word: The words, (P,).
        """
        said = np.broadcast_to(word[:, None], top_row.shape)
        free = self.finishes & (said == END)
        listed = (top_row >= 0) & ~free
        columns = (x[listed] for x in (top_row, size, said))
        place, row, items, words, free_sent = sent_all(
            top.device, np.flatnonzero(listed), *columns, np.flatnonzero(free)
        )
        spoken = wide_zeros((top_row.size,), top.device) - torch.inf
        spoken[place] = self.model.generative.log_word(top[row], items, words)
        spoken[free_sent] = 0.0
        return spoken.view(top_row.shape)

    def scored(
        self, listed: Listed, log_p: Tensor, log_reduced: Tensor, spoken: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Log q(z_t), rank, log p(x_t, z_t), and log p of the unlikely class.

        They are (P, M + 1), (P, M), (P, M) and (P,), float64. The last column of log q
        is the probability of all unlisted choices. Unlikely choices form one class,
        listed or not: its word is scored as after the last choice before it, and q
        within it is p's own.

        Args:
            listed: The choices.
            log_p: Field of ``listed``, on the host.
            log_reduced: Field of ``listed``, on the host.
            spoken: Field of ``listed``, on the host.
        """
        log_p, log_reduced = (x.double()[listed.stack] for x in (log_p, log_reduced))
        words = spoken.double().masked_fill(listed.unfinished, -torch.inf)
        read = words
        if self.name != "adapted":
            read = torch.zeros_like(words).masked_fill(listed.unfinished, -torch.inf)
        first = listed.first_unlikely(log_reduced)
        log_class = log_reduced.gather(1, first)
        in_class = torch.arange(log_p.shape[1]) >= first
        prior = torch.cat([log_p.masked_fill(in_class, -torch.inf), log_class], 1)
        score = prior + torch.cat([read, read.gather(1, first - 1)], 1)
        # Where nothing is possible, p is zero whatever is drawn.
        score = score.where((score > -torch.inf).any(-1, keepdim=True), prior)
        log_q = (score / self.temperature).log_softmax(-1)
        of_class, log_q = log_q[:, -1:], log_q[:, :-1]
        log_q = torch.where(in_class, of_class + log_p - log_class, log_q)
        is_listed = first < listed.number[:, None]
        log_q = torch.cat([log_q, of_class.masked_fill(is_listed, -torch.inf)], 1)
        log_joint = log_p + words
        rank = log_joint if self.name == "adapted" else log_q[:, :-1]
        return log_q, rank, log_joint, log_class[:, 0]

    def shifted(
        self, stacks: Stacks, row: Integers, text: Integers, word: Integers
    ) -> tuple[Stacks, Integers]:
        """Keep the stacks of histories, and put a word on those of given texts."""
        row, going = row.copy(), row[text]
        moves = np.broadcast_to(word[:, None], going.shape).reshape(-1, 1)
        stacks, path = self.model.generative.moved(stacks, going.ravel(), moves)
        row[text] = path[:, 1].reshape(going.shape)
        return stacks.compact(row)

    def _sent(self, log_prob: Tensor) -> Tensor:
        return sent(log_prob, self.model.device)
