"""Contrastive entropy: log-scores of a text against those of distorted copies.

Source: Arora and Rangarajan (2016).
"""

from lm_latent_eval.contrastive.entropy import (
    Verdict,
    contrastive_entropy,
    contrastive_ratio,
    contrastive_ratio_stderr,
    contrastive_stderr,
    verdict,
)
from lm_latent_eval.contrastive.levels import (
    ContrastiveLevel,
    ContrastiveMean,
    Rate,
    check_levels,
    contrastive_levels,
    mean_entropy,
    mean_ratio,
)
