"""RNNG's joint distribution p(x, z): sentences and binary trees.

    p(x, z) = prod over actions a of P(a | stack), and P(x_t | stack) at every SHIFT

Symbols: u, E, w, s_ij -> ``networks.py``; log Z -> ``crf.py``; z is written as REDUCEs
before each word (``trees.py``), which makes it a latent a word.
Two families of proposals: the CRF reads a whole sentence and draws whole trees; the
left-to-right ones (``left_to_right.py``) draw the REDUCEs before each word.

Sequences of actions that begin alike have the same stacks, so those of a batch form a
tree of prefixes, whose stacks are made once for all samples and texts. Which they are
is known beforehand (``stacks.py``): one tensor operation serves all that need no other.
The factors of a sequence are those along its path.

Departures: the CRF has word embeddings of its own; newly trained models exclude an end
before one tree stands and charge nothing after it (``only_possible``), so that p is
normalised.
Source: Kim et al. (2019), "Unsupervised Recurrent Neural Network Grammars".
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from lm_latent_eval.devices import fetched, sent, wide_zeros
from lm_latent_eval.latent import Normalization
from lm_latent_eval.models.pretrained import TrainedModel
from lm_latent_eval.models.rnng.choices import Choices
from lm_latent_eval.models.rnng.networks import GenerativeModel, RNNGConfig, SpanScores
from lm_latent_eval.models.rnng.stacks import (
    Growth,
    Integers,
    Stacks,
    StackState,
    growth,
    sent_all,
)
from lm_latent_eval.models.rnng.trees import REDUCE, Trees, moves
from lm_latent_eval.text.batch import TokenBatch, known_ids
from lm_latent_eval.text.words import END, UNKNOWN


def ended(config: RNNGConfig, batch: TokenBatch) -> Tensor:
    """Mask of texts that have their end word, on the host, (B,) bool.

    Raises:
        ValueError: If words follow an end.
    """
    if not config.sentence_ends:
        return torch.zeros(len(batch.length), dtype=torch.bool)
    targets, length = batch.on_host
    is_end = (targets == END) & batch.inside_on_host
    last = (length - 1).clamp_min(0)[:, None]
    at_last = is_end.gather(1, last)[:, 0]
    if bool((is_end.sum(-1) > at_last.long()).any()):
        raise ValueError(
            "words follow the end of a sentence: this model reads one sentence at a "
            "time, so split the text"
        )
    return at_last


def num_words(config: RNNGConfig, batch: TokenBatch) -> Tensor:
    """Number of words of whole sentences without their end word, on the host, (B,).

    Raises:
        ValueError: If the model has sentence ends and a text lacks its own.
    """
    end = ended(config, batch)
    if config.sentence_ends and not bool(end.all()):
        raise ValueError(
            "a text without a sentence end has no whole trees: end it with the end "
            "word, or use a proposal that reads from left to right"
        )
    return batch.on_host[1] - end.long()


STACKS_AT_ONCE = 1 << 14
"""Largest number of stacks that one ``walk`` makes; one sequence is never cut."""


def walk(
    model: GenerativeModel,
    stacks: Stacks,
    row: Integers,
    moves: Integers,
    over: NDArray[np.bool_],
) -> tuple[Tensor, Stacks, Integers]:
    """Apply sequences of moves.

    Args:
        model: p(x, z).
        stacks: Table of stacks.
        row: The stack each sequence begins on, (R,).
        moves: Word ids, ``REDUCE`` or ``NOTHING``, (R, A).
        over: Mask of sequences that end a sentence; their stacks are dropped, (R,).

    Returns:
        log p of each in nats, (R,) float64; the stacks after them, and the row of each,
        (R,), the empty one after an end.
    """
    # Sorted, so that those of one part share most of their beginnings.
    sequences = torch.from_numpy(np.concatenate([row[:, None], moves], 1))
    sequences, inverse = torch.unique(sequences, dim=0, return_inverse=True)
    ends = torch.zeros(len(sequences), dtype=torch.bool)
    ends[inverse] = torch.from_numpy(over)
    at_once = max(1, STACKS_AT_ONCE // sequences.shape[1])
    parts = zip(sequences.split(at_once), ends.split(at_once), strict=True)
    log_p, tables, rows = [], [], []
    for part, end in parts:
        made = growth(stacks, part[:, 0].numpy(), part[:, 1:].numpy())
        table = model.grown(stacks, made)
        log_p.append(_log_p(model, table, made))
        table, last = table.compact(np.where(end, 0, made.path[:, -1]))
        tables.append(table)
        rows.append(last)
    joined, moved = Stacks.join(tables)
    last = np.concatenate([r + m for r, m in zip(rows, moved, strict=True)])
    index = sent(inverse, stacks.device)
    return torch.cat(log_p)[index], joined, last[inverse.numpy()]


def _log_p(model: GenerativeModel, stacks: Stacks, made: Growth) -> Tensor:
    (shift,) = (made.move != REDUCE).nonzero()
    before, after = made.path[:, :-1], made.path[:, 1:]
    # Factors are those of the new stacks, after one for no move.
    factor = np.where(after == before, 0, after + 1 + len(made.move) - len(stacks))
    integers = stacks.size[made.parent], shift, made.move[shift], factor
    size, shifts, word, path = sent_all(stacks.device, *integers)
    top = stacks.top(made.parent)
    log_shift, log_p = model.log_actions(top, size)
    log_word = model.log_word(top[shifts], size[shifts], word)
    log_p = log_p.index_put((shifts,), log_shift[shifts] + log_word)
    return F.pad(log_p, (1, 0))[path].sum(-1)


@dataclass(frozen=True)
class Encoded:
    """Pieces of sentences and the stacks that they begin on."""

    batch: TokenBatch
    words: Tensor
    """Targets within the model's vocabulary, on the host, (B, T)."""
    ended: Tensor
    """Mask of texts with their end word, on the host, (B,)."""
    state: StackState
    """Stacks of B texts with 1 or K histories."""
    begun: list[tuple[Integers, Choices]] = field(default_factory=list)
    """Cached choices before the first word, and the stacks they were listed for."""
    reached: list[tuple[Trees, StackState]] = field(default_factory=list)
    """The trees that were scored last, and the stacks that they lead to."""
    scored: list[tuple[Trees, Tensor]] = field(default_factory=list)
    """The trees that a proposal made last, and their log p without the cost of unknown
    words, (B, K) nats, float64."""

    @property
    def longest(self) -> int:
        return int(self.batch.on_host[1].max())

    def token(self, t: int) -> tuple[Integers, Integers]:
        """Indices of the texts that have a token t, and the words there."""
        (text,) = (self.batch.on_host[1] > t).numpy().nonzero()
        return text, self.words.numpy()[text, t]

    def remember(self, trees: Trees, stacks: Stacks, row: Integers) -> None:
        self.reached[:] = [(trees, StackState(stacks, row))]


class RNNGJoint(TrainedModel):
    """p(x, z) of an RNNG, and the span scores of its CRF."""

    config: RNNGConfig

    def __init__(self, config: RNNGConfig) -> None:
        super().__init__(config)
        self.generative = GenerativeModel(config)
        self.spans = SpanScores(config)

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, GenerativeModel):
            nn.init.zeros_(module.bias)

    @property
    def normalization(self) -> Normalization:
        if not self.config.sentence_ends:
            return Normalization.BY_LENGTH
        if not self.config.only_possible:
            return Normalization.BELOW_ONE
        return super().normalization

    def encode(self, batch: TokenBatch, after: StackState | None = None) -> Encoded:
        """Encode texts after the stacks of earlier pieces.

        Raises:
            ValueError: If words follow the end of a sentence.
        """
        if after is None:
            empty = np.zeros((len(batch.length), 1), np.int64)
            after = StackState(self.generative.begin(), empty)
        words = known_ids(batch.on_host[0], self.config.vocab_size)
        return Encoded(batch, words, ended(self.config, batch), after)

    def encode_again(
        self, encoded: Encoded, batch: TokenBatch, after: StackState | None
    ) -> Encoded:
        """Encode other targets, and keep the choices before the first word."""
        again = self.encode(batch, after or encoded.state)
        if again.state.stacks is not encoded.state.stacks:
            return again
        return replace(again, begun=encoded.begun, reached=encoded.reached)

    def choices(self, encoded: Encoded) -> Choices:
        state = encoded.state
        for listed, choices in encoded.begun:
            if listed is state.row:
                return choices
        choices = Choices.of(self.generative, state.stacks, np.unique(state.row))
        encoded.begun[:] = [(state.row, choices)]
        return choices

    def log_joint(self, encoded: Encoded, trees: Trees) -> Tensor:
        """log p(x, z_k) in nats, (B, K) float64.

        Identical trees and shared actions are scored once. The stacks are kept for
        ``advance``.
        """
        state = encoded.state
        before, after = fetched(*trees)
        stacks, rows = state.stacks, np.broadcast_to(state.row, after.shape)
        log_p = wide_zeros(rows.shape, self.device)
        choices = next((each for _, each in encoded.begun), None)
        if choices and np.isin(rows, choices.row[:, 0]).all():
            stacks = choices.stacks
            rows, done, log_p = choices.reduced(rows, before[..., 0].numpy())
            before = torch.cat(
                [before[..., :1] - torch.from_numpy(done)[..., None], before[..., 1:]],
                -1,
            )
        sequence = self._moves(encoded, Trees(before, after)).flatten(0, 1)
        over = encoded.ended[:, None].expand(rows.shape).flatten()
        walked, stacks, last = walk(
            self.generative, stacks, rows.ravel(), sequence.numpy(), over.numpy()
        )
        encoded.remember(trees, stacks, last.reshape(rows.shape))
        cost = self.log_unknown(encoded)
        return log_p + walked.view_as(log_p) + cost[:, None]

    def log_unknown(self, encoded: Encoded) -> Tensor:
        batch = encoded.batch
        unknown = batch.inside & sent(encoded.words == UNKNOWN, self.device)
        return batch.unknown_log_prob.masked_fill(~unknown, 0.0).sum(-1)

    def _moves(self, encoded: Encoded, trees: Trees) -> Tensor:
        if self.config.sentence_ends and not self.config.only_possible:
            # The original combines the tree with the end word, and charges for it.
            last = encoded.ended[:, None].long()
            trees = trees._replace(after=trees.after + last)
        return moves(trees, encoded.words, encoded.batch.on_host[1])

    def advance(self, encoded: Encoded, trees: Trees) -> StackState:
        """Stacks after the encoded piece, empty after an end."""
        if not any(cached is trees for cached, _ in encoded.reached):
            self.log_joint(encoded, trees)
        ((_, state),) = encoded.reached
        return state
