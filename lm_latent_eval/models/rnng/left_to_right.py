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

What the model computes is log p of every choice, for which the host waits once a word;
it chooses by itself and so knows which stacks come next.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from lm_latent_eval.devices import fetched, sent
from lm_latent_eval.latent import Beam, Draws, Uniforms
from lm_latent_eval.models.proposals import Factor, Strengths
from lm_latent_eval.models.rnng.choices import Choices, Listed
from lm_latent_eval.models.rnng.growth import sent_all, shifts
from lm_latent_eval.models.rnng.joint import Encoded, RNNGJoint
from lm_latent_eval.models.rnng.rotation import rotated
from lm_latent_eval.models.rnng.sentences import num_words
from lm_latent_eval.models.rnng.stacks import Integers, Stacks, StackState
from lm_latent_eval.models.rnng.trees import Trees
from lm_latent_eval.models.ties import ranks
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.words import END


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

    def encode_again(
        self, encoded: Encoded, batch: TokenBatch, after: StackState | None
    ) -> Encoded:
        """Note from which histories a search has gone on."""
        return self.model.encode_again(encoded, batch, after)

    def sample(
        self, encoded: Encoded, uniforms: Uniforms, num_samples: int
    ) -> Draws[Trees]:
        """Draw K prefixes a text, continuing the K histories if there are any."""
        batch, samples = encoded.state.row.shape
        if samples not in (1, num_samples):
            raise ValueError(
                f"{samples} histories cannot continue in {num_samples} trees"
            )
        origin = torch.arange(num_samples).clamp_max(samples - 1).expand(batch, -1)
        return self.sample_from(encoded, uniforms, origin)[0]

    def sample_from(
        self, encoded: Encoded, uniforms: Uniforms, origin: Tensor
    ) -> tuple[Draws[Trees], Tensor]:
        """Draw K prefixes a text, which continue those histories, (B, K).

        What can come next is listed for all histories, and asked for with ``origin``.
        """
        stacks, row = _begun(encoded, encoded.state.row.shape[1])
        before = torch.zeros(*origin.shape, encoded.words.shape[1]).long()
        log_q = torch.zeros(origin.shape, dtype=torch.float64)
        for t in range(encoded.longest):
            text, word = encoded.token(t)
            stacks, listed = self._listed(stacks, row[text], word)
            *computed, origin = fetched(listed.log_p, listed.spoken, origin)
            if not t:
                row = np.take_along_axis(row, origin.numpy(), 1)
                listed = listed.resampled(origin.numpy()[text])
            log_prob, _ = self._weighed(listed, *computed)
            log_prob = log_prob[listed.pair]
            mass = log_prob.exp().cumsum(-1)
            drawn = (mass < uniforms(t)[text][..., :1] * mass[..., -1:]).sum(-1)
            before[text, :, t] = drawn
            log_q[text] += log_prob.gather(2, drawn[..., None])[..., 0]
            row[text] = listed.after(drawn)
            stacks, row = self._shifted(stacks, row, text, word)
        if not encoded.longest:  # nothing was asked for
            (origin,) = fetched(origin)
            row = np.take_along_axis(row, origin.numpy(), 1)
        trees = self._trees(encoded, before, stacks, row)
        return Draws(trees, self._sent(log_q)), origin

    def log_prob(self, encoded: Encoded, trees: Trees) -> Tensor:
        """Return log q(z_k | x) in nats, (B, K) float64."""
        before, after = fetched(*trees)
        stacks, row = _begun(encoded, after.shape[1])
        steps = []
        for t in range(encoded.longest):
            text, word = encoded.token(t)
            stacks, listed = self._listed(stacks, row[text], word)
            reduces = before[text, :, t]
            within = reduces < listed.possible.shape[1]
            reduces = reduces.where(within, 0)
            row[text] = listed.after(reduces)
            stacks, row = self._shifted(stacks, row, text, word)
            steps.append((text, listed, reduces, within))
        log_q = torch.zeros(after.shape, dtype=torch.float64)
        listings = [listed for _, listed, *_ in steps]
        computed = iter(fetched(*(x for y in listings for x in (y.log_p, y.spoken))))
        for text, listed, reduces, within in steps:
            log_prob, _ = self._weighed(listed, next(computed), next(computed))
            chosen = log_prob[listed.pair].gather(2, reduces[..., None])[..., 0]
            log_q[text] += chosen.masked_fill(~within, -torch.inf)
        return self._sent(log_q.masked_fill(after > 0, -torch.inf))

    def beam(
        self, encoded: Encoded, width: int, score: Tensor | None = None
    ) -> Beam[Trees]:
        """Keep the ``width`` most probable distinct prefixes after every word.

        ``adapted`` ranks by log p of the prefix and its words, whatever its strengths
        and its temperature, but for what the original charges after an end.
        """
        batch, samples = encoded.state.row.shape
        if score is None:
            score = torch.zeros(batch, samples, dtype=torch.float64)
        score = fetched(score)[0].double()
        origin = _best(score, width)
        unused = (0, width - origin.shape[1])
        score = F.pad(score.gather(1, origin), unused, value=-torch.inf)
        origin = F.pad(origin, unused, value=samples - 1)
        stacks, row = _begun(encoded, samples)
        row = np.take_along_axis(row, origin.numpy(), 1)
        before = torch.zeros(batch, width, encoded.words.shape[1]).long()
        for t in range(encoded.longest):
            text, word = encoded.token(t)
            stacks, listed = self._listed(stacks, row[text], word)
            _, rank = self._weighed(listed, *fetched(listed.log_p, listed.spoken))
            total = (score[text, :, None] + rank[listed.pair]).flatten(1)
            index = _best(total, width)
            parent, reduces = index // rank.shape[1], index % rank.shape[1]
            score[text] = total.gather(1, index)
            origin[text] = origin[text].gather(1, parent)
            history = before[text].gather(1, parent[..., None].expand_as(before[text]))
            history[..., t] = reduces
            before[text] = history
            stack = np.take_along_axis(listed.pair, parent.numpy(), 1)
            row[text] = listed.row[stack, reduces.numpy()]
            stacks, row = self._shifted(stacks, row, text, word)
        trees = self._trees(encoded, before, stacks, row)
        return Beam(trees, self._sent(score), self._sent(origin))

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

    def _listed(
        self, stacks: Stacks, row: Integers, word: Integers
    ) -> tuple[Stacks, Listed]:
        """List the choices of B texts with K histories, (B, K), before a word of each.

        Returns:
            A table with the stacks after them, and the choices.
        """
        model, config = self.model.generative, self.model.config
        place, which = _distinct(row)
        choices = Choices.of(model, stacks, place)
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

    def _weighed(
        self, listed: Listed, log_p: Tensor, spoken: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return log q(z_t) and what z_t adds to a rank, (P, M) float64.

        Args:
            listed: The choices.
            log_p: What is computed of them, on the host.
            spoken: The same.
        """
        log_p = log_p.double()[listed.stack]
        score = _times(log_p, self.strengths["scores"])
        if self.name == "adapted":
            words = torch.full_like(log_p, -torch.inf)
            words = words.masked_scatter(listed.possible, spoken.double())
            rank = log_p + words
            score = score + _times(words, self.strengths["look_ahead"])
        else:
            score = score.masked_fill(listed.unfinished, -torch.inf)
        # Where nothing is possible, p is zero whatever is drawn.
        score = score.where((score > -torch.inf).any(-1, keepdim=True), log_p)
        log_q = (score / self.temperature).log_softmax(-1)
        return log_q, rank if self.name == "adapted" else log_q

    def _shifted(
        self, stacks: Stacks, row: Integers, text: Integers, word: Integers
    ) -> tuple[Stacks, Integers]:
        """Keep the stacks of histories, and put a word on those of some texts."""
        stacks, row = stacks.compact(row)
        size = self.model.config.vocab_size
        pair, which = _distinct(row[text] * size + word[:, None])
        growth = shifts(stacks, pair // size, pair % size)
        row[text] = len(stacks) + which
        return self.model.generative.grown(stacks, growth), row

    def _trees(
        self, encoded: Encoded, before: Tensor, stacks: Stacks, row: Integers
    ) -> Trees:
        """Return what was found, and remember the stacks that it leads to."""
        trees = Trees(before, torch.zeros_like(before[..., 0]))
        stacks, row = stacks.compact(np.where(encoded.ended.numpy()[:, None], 0, row))
        encoded.remember(trees, stacks, row)
        return trees

    def _sent(self, found: Tensor) -> Tensor:
        return sent(found, self.model.device)


def _begun(encoded: Encoded, samples: int) -> tuple[Stacks, Integers]:
    """Return what K histories of each text begin on."""
    row = encoded.state.row
    return encoded.state.stacks.compact(np.broadcast_to(row, (len(row), samples)))


def _distinct(numbers: Integers) -> tuple[Integers, Integers]:
    """Return the numbers that there are, and which each of them is."""
    found, which = np.unique(numbers, return_inverse=True)
    return found, which.reshape(numbers.shape)


def _best(score: Tensor, width: int) -> Tensor:
    """Return the places of the best scores of each row, at most ``width`` of them.

    The sort is stable: ties go to the better prefix, then to fewer REDUCEs.
    """
    order = ranks(score).argsort(dim=-1, descending=True, stable=True)
    return order[:, :width]


def _times(log_p: Tensor, factor: Factor) -> Tensor:
    """Multiply, where minus infinity stays what it is and has no gradient."""
    can = log_p > -torch.inf
    return (log_p.masked_fill(~can, 0.0) * factor).masked_fill(~can, -torch.inf)
