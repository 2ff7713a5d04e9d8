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
follows, of which a last token may write a part, too.

Source: Pimentel and Meister (2024), "How to compute the probability of a word"; Oh and
Schuler (2024), "Leading whitespaces of language models' subword vocabulary pose a
confound for calculating word probabilities".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import torch

from lm_latent_eval.devices import fetched, sent
from lm_latent_eval.estimators import Bound, Estimate
from lm_latent_eval.networks.causal import Tokens, TokenScores
from lm_latent_eval.networks.network import Network
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
    if not encoding.restores(text):
        raise ValueError(
            "the tokenizer's normalizer changes the text, so its tokens have no place "
            "in it"
        )
    whole, *more = encoding.cut(text)
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


def with_borders(
    network: Network, pieces: Sequence[Piece], scores: Sequence[TokenScores]
) -> tuple[list[Piece], list[TokenScores]]:
    """Append what follows whole words to their canonical tokens, as one token."""
    read = {piece.given + piece.tokens for piece in pieces if piece.borders}
    log_border: dict[Tokens, float] = {}
    for tokens in sorted(read, key=len, reverse=True):
        if tokens not in log_border:
            begun = [one for one in read if tokens[: len(one)] == one]
            borders = next(piece.borders for piece in pieces if piece.borders)
            found = _log_borders(network, tokens, [*map(len, begun)], borders)
            log_border.update(zip(begun, found, strict=True))
    whole, whole_scores = [], []
    for piece, one in zip(pieces, scores, strict=True):
        if piece.borders:
            log_p = log_border[piece.given + piece.tokens]
            one = TokenScores((*one.log_p, log_p), (*one.greedy, False))
            piece = replace(piece, tokens=(*piece.tokens, OVERRUN))
        whole.append(piece)
        whole_scores.append(one)
    return whole, whole_scores


@torch.inference_mode()
def _log_borders(
    network: Network, tokens: Tokens, lengths: Sequence[int], borders: Tokens
) -> list[float]:
    """Log B after so many of the tokens."""
    reader = network.reader()
    ids = sent(torch.tensor([tokens]), reader.device)
    positions = sent(torch.tensor(lengths) - 1, reader.device)
    log_p = reader.log_probs(reader.call(ids).logits[0, positions])
    members = sent(torch.tensor(borders), log_p.device)
    (log_border,) = fetched(log_p[:, members].logsumexp(-1))
    return log_border.tolist()


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
    estimator: WalkEstimator, walks: Sequence[SegmentationWalk]
) -> list[Estimate]:
    """Estimate the regions of a text from the walks of ``beginnings``.

    Raises:
        MissedSupportError: If a region has probability zero.
    """
    sizes = [len(walk.stretch.canonical) for walk in walks]
    estimates = [estimator.estimate(walks[0], sizes[0])]
    for n, (before, walk) in enumerate(pairwise(walks), 1):
        size = max(1, sizes[n] - sizes[n - 1])
        estimates.append(estimator.difference(walk, before, size))
    return estimates
