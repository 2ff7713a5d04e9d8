r"""Surprisal by word of a causal LM's canonical tokens, corrected for where words end.

A token that begins with a space ends one word and begins the next. So the tokens of a
word alone give the probability of all words that begin so. The factor of the end is
moved to the word that it ends:

.. math::
    p(w_n \mid w_{<n}) = \prod_{t \in w_n} p(x_t \mid x_{<t}) \cdot
        \frac{B(x_{\le w_n})}{B(x_{\le w_{n-1}})}

where B is the probability that the next token begins with white space or ends the text,
and 1 before the first word. The factors cancel but for the last one.

Source: Pimentel and Meister (2024), "How to compute the probability of a word"; Oh and
Schuler (2024), "Leading whitespaces of language models' subword vocabulary pose a
confound for calculating word probabilities".
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import torch

from lm_latent_eval.devices import fetched, sent
from lm_latent_eval.estimators import Bound
from lm_latent_eval.networks.causal import Tokens, TokenScores
from lm_latent_eval.networks.network import Network
from lm_latent_eval.scoring.inside.regions import Regions, RegionScore
from lm_latent_eval.wrappers.tokens.encoding import Encoding, Piece
from lm_latent_eval.wrappers.tokens.estimators import canonical
from lm_latent_eval.wrappers.tokens.vocabulary import ByteVocabulary


def border_tokens(network: Network, vocabulary: ByteVocabulary) -> list[int]:
    pieces = enumerate(vocabulary.later.pieces)
    spaces = [t for t, piece in pieces if piece and piece[:1].isspace()]
    return sorted({*spaces, *network.text_ends})


def region_piece(encoding: Encoding, text: str) -> Piece:
    """Tokens of a text that fits into one window.

    Raises:
        ValueError: If its tokens do not restore it, or do not fit into the window.
    """
    if not encoding.restores(text):
        raise ValueError(
            "the tokenizer's normalizer changes the text, so its tokens have no place "
            "in it"
        )
    pieces = encoding.cut(text)
    if len(pieces) > 1:
        raise ValueError(
            f"the text has more tokens than the {encoding.window} that the network "
            "reads at once: give its parts one by one"
        )
    return pieces[0]


def region_scores(
    network: Network,
    encoding: Encoding,
    borders: Sequence[int],
    regions: Regions,
    piece: Piece,
    scores: TokenScores,
) -> list[RegionScore]:
    """Estimate the regions of a text.

    Args:
        network: The causal LM.
        encoding: Its tokenizer.
        borders: Tokens that can follow a whole word.
        regions: The text.
        piece: Its tokens.
        scores: Their log-probabilities, those of leading special tokens first.

    Raises:
        MissedSupportError: If a region has probability zero.
    """
    text, log_p = regions.query.text, scores.log_p[piece.leading :]
    owners = _owners(encoding, regions, text)
    owners += [len(regions.ends)] * (len(log_p) - len(owners))  # ends and marks
    stops = [bisect_left(owners, n + 1) for n in range(len(regions.ends))]
    is_word = [text[end : end + 1].strip() == "" for end in regions.ends]
    log_border = _log_border(
        network, piece.given + piece.tokens, len(piece.given), stops, borders
    )
    results, first, before = [], 0, 0.0
    for region, stop in enumerate(stops):
        after = log_border[region] if is_word[region] else 0.0
        total = math.fsum([*log_p[first:stop], after, -before])
        estimate = replace(canonical(total, stop - first), bound=Bound.NONE)
        results.append(RegionScore(region, estimate))
        first, before = stop, after
    if first < len(log_p):
        total = math.fsum([*log_p[first:], -before])
        estimate = replace(canonical(total, len(log_p) - first), bound=Bound.NONE)
        results.append(RegionScore(None, estimate))
    return results


def _owners(encoding: Encoding, regions: Regions, text: str) -> list[int]:
    """Region of each token, by its last character other than spaces."""
    _, inner, _ = encoding.framed(text)
    written = encoding.vocabulary.write(inner, begins=True)
    owners, whole = [], text.encode()
    for piece, end in zip(written, accumulate(map(len, written)), strict=True):
        last = end - (len(piece) - len(piece.rstrip())) * bool(piece.strip())
        characters = len(whole[:last].decode(errors="ignore"))
        owners.append(bisect_left(regions.ends, characters))
    return owners


@torch.inference_mode()
def _log_border(
    network: Network,
    tokens: Tokens,
    given: int,
    stops: Sequence[int],
    borders: Sequence[int],
) -> list[float]:
    """Log B after the first ``stops`` tokens that follow the given ones."""
    reader = network.reader()
    ids = sent(torch.tensor([tokens]), reader.device)
    positions = sent(torch.tensor(stops) + given - 1, reader.device)
    log_p = reader.log_probs(reader.call(ids).logits[0, positions])
    members = sent(torch.tensor(borders), log_p.device)
    (log_border,) = fetched(log_p[:, members].logsumexp(-1))
    return log_border.tolist()
