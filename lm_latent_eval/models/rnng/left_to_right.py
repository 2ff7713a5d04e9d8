r"""The same model word by word: z_t is the number of REDUCEs before word t.

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
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from lm_latent_eval.devices import wide_zeros, widened, widest_float
from lm_latent_eval.latent import Beam, Draws, Uniforms
from lm_latent_eval.models.proposals import Strengths
from lm_latent_eval.models.rnng.generative import GenerativeModel
from lm_latent_eval.models.rnng.joint import Encoded, RNNGJoint
from lm_latent_eval.models.rnng.rotation import rotated
from lm_latent_eval.models.rnng.sentences import num_words
from lm_latent_eval.models.rnng.stacks import Stacks, StackState
from lm_latent_eval.models.rnng.trees import Trees
from lm_latent_eval.models.ties import ranks
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.words import END


@dataclass(frozen=True)
class Choices:
    """Every number of REDUCEs, 0 .. M - 1, before the next SHIFT of R stacks."""

    row: Tensor
    """The stack after them, (R, M); 0 where there are fewer items."""
    log_p: Tensor
    """log P(so many REDUCEs, then SHIFT) in nats, (R, M) float64."""

    @classmethod
    def of(cls, model: GenerativeModel, stacks: Stacks, row: Tensor) -> Choices:
        """List the choices of stacks, (R,)."""
        count = max(1, int(stacks.size[row].max()))
        rows = row.new_zeros(len(row), count)
        log_p = row.new_full(
            (len(row), count), -torch.inf, dtype=widest_float(row.device)
        )
        live = torch.arange(len(row), device=row.device)
        reduced = torch.zeros_like(log_p[:, 0])
        for r in range(count):
            log_shift, log_reduce = model.log_actions(stacks, row)
            rows[live, r], log_p[live, r] = row, reduced + log_shift
            (more,) = (stacks.size[row] >= 2).nonzero(as_tuple=True)
            live, reduced = live[more], (reduced + log_reduce)[more]
            row = model.reduce(stacks, row[more])
        return cls(rows, log_p)


@dataclass(frozen=True)
class WordByWord:
    """q(z | x) = prod_t q(z_t | z_<t, x_<=t), over p's own stacks."""

    model: RNNGJoint
    name: str
    temperature: float
    strengths: Strengths
    """``scores``, and of the adapted one ``look_ahead``, the power of the word's p."""

    def encode(self, batch: TokenBatch, after: StackState | None = None) -> Encoded:
        """Note where the texts begin."""
        return self.weighed(self.read(batch, after))

    def read(self, batch: TokenBatch, after: StackState | None = None) -> Encoded:
        """Do what no strength changes."""
        return self.model.encode(batch, after)

    def weighed(self, encoded: Encoded) -> Encoded:
        """Return what was read: strengths come in where stacks are looked at."""
        return encoded

    def sample(
        self, encoded: Encoded, uniforms: Uniforms, num_samples: int
    ) -> Draws[Trees]:
        """Draw K prefixes a text, continuing the K histories if there are any."""
        batch, samples = encoded.state.row.shape
        if samples not in (1, num_samples):
            raise ValueError(
                f"{samples} histories cannot continue in {num_samples} trees"
            )
        row = encoded.state.row.expand(batch, num_samples)
        stacks, row = encoded.state.stacks.compact(row)
        before = row.new_zeros(batch, num_samples, encoded.words.shape[1])
        log_q = wide_zeros(row.shape, row.device)
        for t in range(encoded.longest):
            (text,) = (encoded.batch.length > t).nonzero(as_tuple=True)
            word = encoded.words[text, t]
            log_prob, choice, _ = self._options(stacks, row[text], word)
            mass = log_prob.exp().cumsum(-1)
            drawn = (mass < uniforms(t)[text, :, :1] * mass[..., -1:]).sum(-1)
            before[text, :, t] = drawn
            log_q[text] += log_prob.gather(2, drawn[..., None])[..., 0]
            chosen = choice.gather(2, drawn[..., None])[..., 0]
            row[text] = self._shift(stacks, chosen, word)
            stacks, row = stacks.compact(row)
        return Draws(Trees(before, torch.zeros_like(row)), log_q)

    def log_prob(self, encoded: Encoded, trees: Trees) -> Tensor:
        """Return log q(z_k | x) in nats, (B, K) float64."""
        stacks, row = encoded.state.stacks.compact(
            encoded.state.row.expand(trees.after.shape)
        )
        log_q = wide_zeros(row.shape, row.device)
        for t in range(encoded.longest):
            (text,) = (encoded.batch.length > t).nonzero(as_tuple=True)
            word = encoded.words[text, t]
            log_prob, choice, _ = self._options(stacks, row[text], word)
            reduces = trees.before[text, :, t, None]
            within = reduces < log_prob.shape[-1]
            reduces = reduces.where(within, 0)
            chosen = log_prob.gather(2, reduces).masked_fill(~within, -torch.inf)
            log_q[text] += chosen[..., 0]
            row[text] = self._shift(stacks, choice.gather(2, reduces)[..., 0], word)
            stacks, row = stacks.compact(row)
        return log_q.masked_fill(trees.after > 0, -torch.inf)

    def beam(
        self, encoded: Encoded, width: int, score: Tensor | None = None
    ) -> Beam[Trees]:
        """Keep the ``width`` most probable distinct prefixes after every word.

        ``adapted`` ranks by log p of the prefix and its words, whatever its strengths
        and its temperature, but for what the original charges after an end.
        """
        stacks, row = encoded.state.stacks.compact(encoded.state.row)
        batch, samples = row.shape
        if score is None:
            score = wide_zeros(row.shape, row.device)
        more = max(width - samples, 0)
        score = F.pad(score, (0, more), value=-torch.inf)[:, :width]
        row = F.pad(row, (0, more))[:, :width]
        origin = torch.arange(width, device=row.device).clamp_max(samples - 1)
        origin = origin.repeat(batch, 1)
        before = row.new_zeros(batch, width, encoded.words.shape[1])
        for t in range(encoded.longest):
            (text,) = (encoded.batch.length > t).nonzero(as_tuple=True)
            word = encoded.words[text, t]
            _, choice, rank = self._options(stacks, row[text], word)
            total = (score[text, :, None] + rank).flatten(1)
            # A stable sort: ties go to the better prefix, then to fewer REDUCEs.
            index = ranks(total).argsort(dim=-1, descending=True, stable=True)
            index = index[:, :width]
            parent, reduces = index // choice.shape[2], index % choice.shape[2]
            score[text] = total.gather(1, index)
            origin[text] = origin[text].gather(1, parent)
            history = before[text].gather(1, parent[..., None].expand_as(before[text]))
            history[..., t] = reduces
            before[text] = history
            row[text] = self._shift(stacks, choice.flatten(1).gather(1, index), word)
            stacks, row = stacks.compact(row)
        return Beam(Trees(before, torch.zeros_like(row)), score, origin)

    def moved(
        self, encoded: Encoded, trees: Trees, uniforms: Uniforms
    ) -> tuple[Trees, Tensor]:
        """Rotate one constituent of each tree.

        Raises:
            ValueError: If a text is no whole sentence.
        """
        u, words = uniforms(0)[..., 0], num_words(self.model.config, encoded.batch)
        return rotated(trees, encoded.batch, words, u), torch.zeros_like(u)

    def advance(self, encoded: Encoded, trees: Trees) -> StackState:
        """Return the stacks after the encoded piece."""
        return self.model.advance(encoded, trees)

    def _options(
        self, stacks: Stacks, row: Tensor, word: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """List log q(z_t), the stacks that follow, and what z_t adds to a rank.

        Words are (B,), the results (B, K, M).
        """
        model, config = self.model.generative, self.model.config
        place, which = torch.unique(row, return_inverse=True)
        choices = Choices.of(model, stacks, place)
        # Each (stack, next word) once.
        pair, of_pair = torch.unique(
            which * config.vocab_size + word[:, None], return_inverse=True
        )
        which, word = pair // config.vocab_size, pair % config.vocab_size
        after, log_p = choices.row[which], choices.log_p[which]
        possible = log_p > -torch.inf
        weighed = log_p[possible] * self.strengths["scores"]
        score, rank = log_p.masked_scatter(possible, weighed), log_p
        if self.name == "adapted":
            spoken = model.log_word(
                stacks, after[possible], word[:, None].expand_as(after)[possible]
            )
            rank = rank.masked_scatter(possible, log_p[possible] + spoken)
            # Minus infinity stays, whatever multiplies it, and has no gradient.
            can = spoken > -torch.inf
            weighed = spoken[can] * self.strengths["look_ahead"]
            spoken = spoken.masked_scatter(can, weighed.to(spoken))
            score = score.masked_scatter(possible, score[possible] + spoken)
        elif config.sentence_ends:
            impossible = (word == END)[:, None] & (stacks.size[after] != 1)
            score = score.masked_fill(impossible, -torch.inf)
        # Where nothing is possible, p is zero whatever is drawn.
        score = score.where((score > -torch.inf).any(-1, keepdim=True), log_p)
        log_q = (score / self.temperature).log_softmax(-1)
        if self.name != "adapted":
            rank = log_q
        return log_q[of_pair], after[of_pair], rank[of_pair]

    def _shift(self, stacks: Stacks, row: Tensor, word: Tensor) -> Tensor:
        """Shift one word a text onto K stacks each, every distinct pair once."""
        size = self.model.config.vocab_size
        pair, which = torch.unique(row * size + word[:, None], return_inverse=True)
        return self.model.generative.shift(stacks, pair // size, pair % size)[which]


def next_word(model: GenerativeModel, state: StackState, log_w: Tensor) -> Tensor:
    """Predict the next word of B texts from K weighted histories, (B, V) nats."""
    place, which = torch.unique(state.row.expand(log_w.shape), return_inverse=True)
    stacks, place = state.stacks.compact(place)
    choices = Choices.of(model, stacks, place)
    weight = log_w.new_zeros(len(log_w), len(place)).scatter_add(
        1, which, log_w.softmax(-1)
    )
    owner, reduces = (choices.log_p > -torch.inf).nonzero(as_tuple=True)
    row, log_p = choices.row[owner, reduces], choices.log_p[owner, reduces]
    result = weight.new_zeros(len(weight), model.config.vocab_size)
    at_once = model.rows_at_once
    for o, r, p in zip(
        owner.split(at_once), row.split(at_once), log_p.split(at_once), strict=True
    ):
        spoken = widened(model.log_words(stacks, r))
        if model.config.sentence_ends and not model.config.only_possible:
            # The original charges for combining the tree with the end word.
            end = model.shift(stacks, r, torch.full_like(r, END))
            spoken[:, END] += model.log_actions(stacks, end)[1]
        result += (weight[:, o] * p.exp()) @ spoken.exp()
    return result.log()
