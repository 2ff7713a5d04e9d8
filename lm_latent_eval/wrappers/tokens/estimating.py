"""Estimates of texts and continuations from those of their pieces.

Where there is no estimator, the canonical segmentation stands for all.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace

from lm_latent_eval.estimators import Bound, Estimate
from lm_latent_eval.networks.causal import TokenScores
from lm_latent_eval.scoring.texts import Query
from lm_latent_eval.wrappers.tokens.estimators import WalkEstimator, canonical, shifted
from lm_latent_eval.wrappers.tokens.pieces import Continuation, Piece
from lm_latent_eval.wrappers.tokens.walk import SegmentationWalk


def windows(
    estimator: WalkEstimator | None,
    pieces: Sequence[Piece],
    plain: Sequence[TokenScores],
    walks: Sequence[SegmentationWalk],
    *,
    restores: bool,
) -> list[Estimate]:
    """Estimate log p of each window of a text, whose sum is that of the text.

    Args:
        estimator: How to sum over segmentations.
        pieces: The windows.
        plain: What the network says of their canonical segmentations.
        walks: Through all of their segmentations, if they are summed over.
        restores: Whether the canonical tokens write the text.

    Raises:
        MissedSupportError: If a window has no probability.
    """
    if estimator is None:
        return [
            canonical(one.total, len(one.log_p), restores=restores) for one in plain
        ] or [Estimate.exact(0.0, num_tokens=0, estimator="canonical")]
    # Special tokens that stand before a text are not summed over.
    return [
        shifted(
            estimator.estimate(walk, len(one.log_p)),
            math.fsum(one.log_p[: piece.leading]),
        )
        for piece, walk, one in zip(pieces, walks, plain, strict=True)
    ]


def continuation(
    estimator: WalkEstimator | None,
    query: Query,
    read: Continuation,
    plain: TokenScores | None,
    walks: Mapping[Hashable, SegmentationWalk],
) -> Estimate:
    """Estimate log p of a text after its context.

    Args:
        estimator: How to sum over segmentations.
        query: Which.
        read: The same as tokens.
        plain: What ``--model hf`` makes of it; None of a text without tokens.
        walks: Through what is summed over, by the query's name and the piece.

    Raises:
        MissedSupportError: If it has no probability.
        ValueError: If it has no canonical token of its own, and nothing is summed over.
    """
    size = len(read.plain.tokens)
    if not query.text and not size:
        return Estimate.exact(0.0, num_tokens=0)
    if estimator is None and plain is not None:
        estimate = canonical(plain.total, size)
        return replace(estimate, bound=Bound.NONE) if query.context else estimate
    if estimator is None or read.whole is None:
        raise ValueError(
            "no canonical token is the continuation's own, the last one of its "
            "context writes it, too; leave out estimator=canonical"
        )
    whole = walks[query.name, read.whole]
    if read.context is None:
        return estimator.estimate(whole, size)
    context = walks[query.name, read.context]
    return estimator.difference(whole, context, size)
