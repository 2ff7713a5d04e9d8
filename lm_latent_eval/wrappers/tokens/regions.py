r"""Surprisal by word of a causal LM, corrected for where words end.

A token that begins with a space ends one word and begins the next. So the tokens of a
word alone give the probability of all words that begin so. The factor of the end is
moved to the word that it ends:

.. math::
    p(w_n \mid w_{<n}) = \prod_{t \in w_n} p(x_t \mid x_{<t}) \cdot
        \frac{B(x_{\le w_n})}{B(x_{\le w_{n-1}})}

where B is the probability that the next token begins with white space or ends the text,
and 1 before the first word. The factors cancel but for the last one. Where
segmentations are summed, p(w_1 .. w_n) is the sum over all that white space or the end
follows, of which a last token may write a part, too. The canonical segmentation is
always among them, but the one that a word goes on with may have been dropped: so a word
is held against what it predicts, as in ``scoring.inside.prefixes``.

Source: Pimentel and Meister (2024), "How to compute the probability of a word"; Oh and
Schuler (2024), "Leading whitespaces of language models' subword vocabulary pose a
confound for calculating word probabilities".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import torch

from lm_latent_eval.devices import fetched, sent
from lm_latent_eval.estimators import Bound, Estimate
from lm_latent_eval.networks.causal import Tokens, TokenScores
from lm_latent_eval.networks.network import Network
from lm_latent_eval.scoring.inside.prefixes import RARE, ROUNDING
from lm_latent_eval.scoring.inside.regions import Regions
from lm_latent_eval.wrappers.tokens.encoding import Encoding, Piece
from lm_latent_eval.wrappers.tokens.estimators import WalkEstimator, canonical
from lm_latent_eval.wrappers.tokens.lattice import OVERRUN
from lm_latent_eval.wrappers.tokens.search import SegmentationWalk
from lm_latent_eval.wrappers.tokens.vocabulary import ByteVocabulary


def border_tokens(network: Network, vocabulary: ByteVocabulary) -> Tokens:
    later = vocabulary.later
    spaces = filter(later.has_space, range(len(later.pieces)))
    return tuple(sorted({*spaces, *network.text_ends}))


def beginnings(encoding: Encoding, borders: Tokens, regions: Regions) -> list[Piece]:
    """Text up to the end of each region, and all of it if more is scored.

    Raises:
        ValueError: If the tokens of the text do not restore it, or do not fit into the
            window.
    """
    text = regions.query.text
    whole, *more = encoding.cut(text)
    if not whole.restores:
        raise ValueError(
            "the tokenizer's normalizer changes the text, so its tokens have no place "
            "in it"
        )
    if more:
        raise ValueError(
            f"the text has more tokens than the {encoding.window} that the network "
            "reads at once: give its parts one by one"
        )
    pieces = []
    for end in regions.ends:
        after = text[end : end + 1].encode()
        is_word = not after or after.isspace()
        pieces.append(encoding.beginning(text[:end], borders if is_word else ()))
    return pieces if pieces[-1].tokens == whole.tokens else [*pieces, whole]


class After(NamedTuple):
    """What the network expects after the canonical tokens of a whole word."""

    log_border: float
    """Log B."""
    log_rare: float
    """Log of the share of B that tokens no likelier than the next one have together;
    0 where there is none."""


def borders_after(network: Network, pieces: Sequence[Piece]) -> list[After | None]:
    """Read what follows each piece; None of those that end inside a word."""
    read = {piece.given + piece.tokens for piece in pieces if piece.borders}
    after: dict[Tokens, After] = {}
    for tokens in sorted(read, key=len, reverse=True):
        if tokens not in after:
            begun = [one for one in read if tokens[: len(one)] == one]
            borders = next(piece.borders for piece in pieces if piece.borders)
            found = _read_borders(network, tokens, [*map(len, begun)], borders)
            after.update(zip(begun, found, strict=True))
    return [
        after[piece.given + piece.tokens] if piece.borders else None for piece in pieces
    ]


@torch.inference_mode()
def _read_borders(
    network: Network, tokens: Tokens, lengths: Sequence[int], borders: Tokens
) -> list[After]:
    """Read what follows so many of the tokens."""
    reader = network.reader()
    ids = sent(torch.tensor([tokens]), reader.device)
    positions = sent(torch.tensor(lengths) - 1, reader.device)
    log_p = reader.log_probs(reader.call(ids).logits[0, positions])
    (among,) = fetched(log_p[:, sent(torch.tensor(borders), log_p.device)])
    places, results = {token: n for n, token in enumerate(borders)}, []
    for length, row in zip(lengths, among, strict=True):
        log_border, log_rare = row.logsumexp(0).item(), 0.0
        if length < len(tokens) and tokens[length] in places:
            own = row[places[tokens[length]]]
            rare = row[row <= own + ROUNDING].logsumexp(0)
            log_rare = rare.item() - log_border
        results.append(After(log_border, log_rare))
    return results


def with_border(
    piece: Piece, scores: TokenScores, after: After | None
) -> tuple[Piece, TokenScores]:
    """Append what follows a whole word to its canonical tokens, as one token."""
    if after is None:
        return piece, scores
    log_p, greedy = (*scores.log_p, after.log_border), (*scores.greedy, False)
    return replace(piece, tokens=(*piece.tokens, OVERRUN)), TokenScores(log_p, greedy)


def canonical_estimates(scores: Sequence[TokenScores]) -> list[Estimate]:
    """Estimate the regions of a text by the canonical tokens of ``beginnings``.

    Raises:
        MissedSupportError: If a region has probability zero.
    """
    totals = [(0.0, 0), *((one.total, len(one.log_p)) for one in scores)]
    return [
        replace(canonical(after - before, max(1, size - less)), bound=Bound.NONE)
        for (before, less), (after, size) in pairwise(totals)
    ]


def summed_estimates(
    estimator: WalkEstimator,
    walks: Sequence[SegmentationWalk],
    after: Sequence[After | None],
) -> list[Estimate]:
    """Estimate the regions of a text from the walks of ``beginnings``.

    Raises:
        MissedSupportError: If a region has probability zero.
    """
    sizes = [len(walk.stretch.canonical) for walk in walks]
    estimates = [estimator.estimate(walks[0], sizes[0])]
    refuted = False
    for n, (before, walk) in enumerate(pairwise(walks), 1):
        size = max(1, sizes[n] - sizes[n - 1])
        estimate = estimator.difference(walk, before, size)
        refuted |= _is_unforeseen(estimator, before, estimate, after[n - 1])
        if refuted:
            estimate = replace(estimate, stderr=None, replicates=())
        estimates.append(estimate)
    return estimates


def _is_unforeseen(
    estimator: WalkEstimator,
    before: SegmentationWalk,
    estimate: Estimate,
    after: After | None,
) -> bool:
    """Whether a segmentation that was dropped explains a region better.

    That is one of a share of what is not canonical that all histories miss with a
    probability of 5 %.
    """
    if estimate.bound is Bound.EXACT or not estimator.method.checks:
        return False
    prefix = estimator.estimate(before, 1)
    others = -math.expm1(min(before.stretch.log_p - prefix.log_evidence, 0.0))
    missed = others * RARE / estimator.method.num_samples
    log_rare = estimate.log_evidence if after is None else after.log_rare
    return math.exp(max(log_rare, estimate.log_evidence)) < missed
