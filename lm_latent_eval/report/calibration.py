"""What texts of a model say of an estimator, in a few lines."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from lm_latent_eval.report.tabular import aligned, four_decimals
from lm_latent_eval.scoring.calibration import Calibration

MOST_SHOWN = 3


def written(found: Calibration, settings: Mapping[str, Any], asked: int) -> str:
    """Return the numbers, and the sentence that they come to.

    Args:
        found: What was measured.
        settings: How texts were scored: a scorer's ``fingerprint``.
        asked: How many texts were drawn, of which some may not have ended.
    """
    texts = found.texts
    left_out = asked - len(texts)
    tokens = sum(text.num_tokens for text in texts)
    lower = statistics.fmean(text.estimate.log_evidence for text in texts)
    how = f"{settings['estimator']}, num_samples={settings['num_samples']}"
    widest = sorted(texts, key=lambda text: -text.gap)[:MOST_SHOWN]
    head = f"{len(texts):,} texts drawn from the model, {tokens:,} predicted tokens"
    if left_out:
        head += f"; {left_out:,} others did not end in time and are left out"
    apart = f"{four_decimals(found.gap)} ± {four_decimals(found.half_width)}"
    cells = [
        [f"log p, estimated ({how})", four_decimals(lower), "nats a text"],
        ["log p, bounded from above", four_decimals(lower + found.gap), "nats a text"],
        ["apart (mean, 95 %)", apart, "nats a text"],
        ["median of the printed errors", four_decimals(found.printed), "nats"],
        ["texts without an error", f"{found.unknown}", ""],
        [
            "widest gaps",
            ", ".join(four_decimals(text.gap) for text in widest),
            "nats",
        ],
    ]
    lines = [line.rstrip() for line in aligned(cells, right=True)]
    most = max(found.gap + found.half_width, 0.0)
    sentence = (
        f"On texts of this model, estimates by {how} are on average at most "
        f"{four_decimals(most)} nats a text too low (95 %)."
    )
    return "\n".join([head, *lines, sentence])
