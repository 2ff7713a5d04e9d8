r"""The proposal q(z | x): a conditional random field over binary trees.

.. math:: q(z \mid x) = \exp\Big(\frac{1}{\tau} \sum_{(i,j) \in z} s_{ij}
    - \log Z_\tau\Big)

where s_ij is the score of the span from word i to word j, both included, single words
too (``networks.py``). A device computes those; over trees the host sums, draws and
searches, for which a device would be asked for hundreds of small operations.

A chart is a list by width: ``chart[w][:, i]`` belongs to the constituent of the
w + 1 words i .. i + w, so one tensor operation serves a batch and all of its
constituents of one width. Sentences shorter than N read their own corner of it.

Departures: the paper's proposal shares the word embeddings of p, ours has its own.
Source: Kim et al. (2019).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from lm_latent_eval.devices import fetched, sent
from lm_latent_eval.inference.streams import invert_cdf
from lm_latent_eval.latent import Beam, Draws, Proposal, Uniforms
from lm_latent_eval.models.rnng.joint import RNNGJoint, num_words
from lm_latent_eval.models.rnng.left_to_right import WordByWord
from lm_latent_eval.models.rnng.trees import (
    Trees,
    count_ends,
    from_ends,
    num_trees,
    score_constituents,
    unfold,
)
from lm_latent_eval.text.batch import TokenBatch, known_ids

Chart = list[Tensor]


def splits(chart: Chart, width: int) -> Tensor:
    """Sums of both parts of every division, (B, N - w, w), short left parts first."""
    count = chart[0].shape[1] - width
    return torch.stack(
        [
            chart[u][:, :count] + chart[width - 1 - u][:, u + 1 : u + 1 + count]
            for u in range(width)
        ],
        -1,
    )


def inside(scores: Tensor) -> Chart:
    r"""Sum over the trees of every constituent.

    .. math:: a_{st} = \log \sum_{u=s}^{t-1} e^{a_{su} + a_{u+1,t}} + s_{st}

    Args:
        scores: Nats, (B, N, N).
    """
    chart = [scores.diagonal(0, 1, 2)]
    for w in range(1, scores.shape[1]):
        chart.append(splits(chart, w).logsumexp(-1) + scores.diagonal(w, 1, 2))
    return chart


def entropy(chart: Chart) -> Chart:
    r"""Entropy of the trees of every constituent, in nats.

    .. math:: H_{st} = \sum_u q_u (H_{su} + H_{u+1,t} - \log q_u)
    """
    result = [torch.zeros_like(chart[0])]
    for w in range(1, len(chart)):
        log_q = splits(chart, w).log_softmax(-1)
        result.append((log_q.exp() * (splits(result, w) - log_q)).sum(-1))
    return result


def at_root(chart: Chart, words: Tensor) -> Tensor:
    """Chart entries of whole sentences, (B,); 0 for an empty one."""
    roots = torch.stack([row[:, 0] for row in chart], -1)
    root = roots.gather(1, (words - 1).clamp_min(0)[:, None])[:, 0]
    return root.masked_fill(words == 0, 0.0)


def sample(
    chart: Chart, words: Tensor, uniforms: Sequence[Tensor], num_samples: int
) -> tuple[Tensor, Tensor]:
    """Draw trees from the root down, one uniform number a division.

    Args:
        chart: ``inside``.
        words: n of each text, (B,).
        uniforms: Random numbers, (B, K) for the m-th division of each tree, parents
            first and left before right.
        num_samples: K.

    Returns:
        ``count_ends`` of the trees, (B, K, N + 1), and log q in nats, (B, K).
    """
    batch, size = chart[0].shape
    left = chart[0].new_full((batch, size, size), -torch.inf)
    for w, row in enumerate(chart):
        left.diagonal(w, 1, 2).copy_(row)
    # right[:, t, u] is the part from word u + 1 to word t.
    right = left.transpose(1, 2).roll(-1, 2)
    text = torch.arange(batch, device=words.device)[:, None]
    position = torch.arange(size, device=words.device)
    log_q = chart[0].new_zeros(batch, num_samples)

    def split(
        step: int, i: Tensor, j: Tensor, label: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        nonlocal log_q
        active = (step < words - 1)[:, None].expand_as(i)
        between = (position >= i[..., None]) & (position < j[..., None])
        value = (left[text, i] + right[text, j]).masked_fill(~between, -torch.inf)
        # A text that is complete has nothing to divide.
        log_prob = value.masked_fill(~active[..., None], 0.0).log_softmax(-1)
        u = invert_cdf(log_prob.exp(), uniforms[step])
        drawn = log_prob.gather(2, u[..., None])[..., 0]
        log_q = log_q + drawn.masked_fill(~active, 0.0)
        return u, label, label

    root = torch.zeros(batch, num_samples, dtype=torch.long, device=words.device)
    ends = unfold(words, root, split)
    return ends, log_q


@dataclass(frozen=True)
class BestTrees:
    """The k best trees of every constituent: their scores and divisions."""

    width: int
    score: Chart
    """Nats, (B, N - w, k_w), the best first."""
    division: list[Tensor]
    """Codes (u k + a) k + b of divisions, (B, N - w, k_w).

    u + 1 is the length of the left part; a and b are the ranks of both parts' trees."""


def k_best(scores: Tensor, width: int) -> BestTrees:
    """Find the ``width`` best distinct trees of every constituent; all if they fit.

    Exact. The pair of ranks (a, b), from 0, of two sorted lists has (a + 1)(b + 1) - 1
    pairs at least as good, so only pairs with (a + 1)(b + 1) <= width can be among the
    best. Ties go to the shorter left part, then to its better tree.

    Args:
        scores: Nats, (B, N, N).
        width: Number of trees to keep, k.
    """
    batch, size, _ = scores.shape
    chart = [scores.diagonal(0, 1, 2)[..., None]]
    division = [torch.zeros_like(chart[0], dtype=torch.long)]
    for w in range(1, size):
        count, keep = size - w, min(width, num_trees(w + 1))
        best = scores.new_empty(batch, count, 0)
        best_code = torch.empty_like(best, dtype=torch.long)
        for u in range(w):
            left = chart[u][:, :count]
            right = chart[w - 1 - u][:, u + 1 : u + 1 + count]
            a, b = _pairs(left.shape[-1], right.shape[-1], width, scores.device)
            value = torch.cat([best, left[..., a] + right[..., b]], -1)
            code = ((u * width + a) * width + b).expand(batch, count, -1)
            # A stable sort keeps those of shorter left parts before their equals.
            best, index = value.sort(dim=-1, descending=True, stable=True)
            best, index = best[..., :keep], index[..., :keep]
            best_code = torch.cat([best_code, code], -1).gather(-1, index)
        chart.append(best + scores.diagonal(w, 1, 2)[..., None])
        division.append(best_code)
    return BestTrees(width, chart, division)


def _pairs(
    lefts: int, rights: int, width: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    rank = torch.arange(lefts, device=device)
    count = (width // (rank + 1)).clamp_max(rights)
    a = rank.repeat_interleave(count)
    b = torch.arange(len(a), device=device) - (count.cumsum(0) - count)[a]
    return a, b


def trees_of(best: BestTrees, words: Tensor) -> tuple[Tensor, Tensor]:
    """Best trees of the whole sentences.

    Returns:
        ``count_ends`` of the trees, (B, K, N + 1), and their scores in nats, (B, K),
        best first. Missing trees repeat the best one, with score ``-inf``.
    """
    batch, size = best.score[0].shape[:2]
    width, device = best.width, words.device
    score = best.score[0].new_full((batch, width), -torch.inf)
    for w, row in enumerate(best.score):
        (here,) = ((words - 1).clamp_min(0) == w).nonzero(as_tuple=True)
        score[here, : row.shape[-1]] = row[here, 0]
    score[words == 0, 0] = 0.0
    # One flat table: the chart's rows end to end.
    flat = torch.cat([d.flatten() for d in best.division])
    kept = torch.tensor([d.shape[-1] for d in best.division], device=device)
    sizes = torch.tensor([d.numel() for d in best.division], device=device)
    offset = sizes.cumsum(0) - sizes
    text = torch.arange(batch, device=device)[:, None]

    def split(
        step: int, i: Tensor, j: Tensor, rank: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        w = j - i
        row = (text * (size - w) + i) * kept[w] + rank
        code = flat[offset[w] + row]
        return i + code // width**2, code // width % width, code % width

    rank = torch.arange(width, device=device).expand(batch, width)
    return unfold(words, rank.masked_fill(score.isneginf(), 0), split), score


@dataclass(frozen=True)
class EncodedSpans:
    batch: TokenBatch
    words: Tensor
    """Number of words of each sentence, on the host, (B,)."""
    scores: Tensor
    """Scores of spans divided by the temperature, on the host, (B, N, N) float64."""

    @cached_property
    def inside(self) -> Chart:
        return inside(self.scores)

    @property
    def log_z(self) -> Tensor:
        return at_root(self.inside, self.words)

    @property
    def entropy(self) -> Tensor:
        """Entropy of q, (B,) nats."""
        return sent(at_root(entropy(self.inside), self.words), self.batch.length.device)


@dataclass(frozen=True)
class CRFProposal(Proposal):
    """q(z | x) over whole trees, which reads the sentence to its end."""

    model: RNNGJoint
    temperature: float = 1.0
    name: str = "crf"

    @property
    def left_to_right(self) -> WordByWord:
        return WordByWord(self.model, "adapted", self.temperature)

    def encode(self, batch: TokenBatch, after: None = None) -> EncodedSpans:
        """Score the spans of sentences.

        Raises:
            ValueError: If a text lacks its end word, or is too long.
        """
        config = self.model.config
        words = num_words(config, batch)
        size = max(int(words.max()), 1)
        ids = known_ids(batch.targets[:, :size], config.vocab_size)
        scores = self.model.spans(ids, words)
        scores = fetched(scores)[0].double() * (1.0 / self.temperature)
        return EncodedSpans(batch, words, scores)

    def sample(
        self, encoded: EncodedSpans, uniforms: Uniforms, num_samples: int
    ) -> Draws:
        steps = range(max(int(encoded.words.max()) - 1, 0))
        numbers = [uniforms(m)[..., 0] for m in steps]
        ends, log_q = sample(encoded.inside, encoded.words, numbers, num_samples)
        return Draws(self._trees(encoded, ends), self._sent(log_q))

    def log_prob(self, encoded: EncodedSpans, trees: Trees) -> Tensor:
        """log q(z_k | x) in nats, (B, K) float64."""
        ends = count_ends(Trees(*fetched(*trees)), encoded.words)
        score = score_constituents(ends, encoded.words, encoded.scores)
        return self._sent(score - encoded.log_z[:, None])

    def beam(
        self, encoded: EncodedSpans, width: int, log_q: Tensor | None = None
    ) -> Beam:
        """Find the ``width`` distinct trees of highest q; every one if they fit.

        ``log_q`` is ignored: whole sentences have no history.
        """
        best = k_best(encoded.scores, width)
        ends, score = trees_of(best, encoded.words)
        score = self._sent(score - encoded.log_z[:, None])
        trees = self._trees(encoded, ends)
        origin = torch.zeros_like(score, dtype=torch.long)
        full = ~score.isneginf().any(1)
        return Beam(trees, score, origin, cut=full)

    def _trees(self, encoded: EncodedSpans, ends: Tensor) -> Trees:
        targets, length = encoded.batch.on_host
        return from_ends(ends, length, targets.shape[1])

    def _sent(self, log_prob: Tensor) -> Tensor:
        return sent(log_prob, self.model.device)
