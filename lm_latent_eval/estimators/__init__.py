"""Estimators: log-weights in, numbers out.

Pure functions of log-weights (nats, shape ``(..., K)``) that know nothing of models,
proposals or harnesses, and the record in which their numbers leave the library.

Example:
    >>> import torch
    >>> from lm_latent_eval.estimators import Estimate
    >>> log_w = torch.tensor([0.2, 0.4], dtype=torch.float64).log()
    >>> round(Estimate.from_log_weights(log_w, num_tokens=3).log_evidence, 4)
    -1.204
"""

from lm_latent_eval.estimators.beam import log_mass
from lm_latent_eval.estimators.certificate import (
    certified_log_likelihood,
    certified_perplexity,
)
from lm_latent_eval.estimators.corpus import (
    Rate,
    bits_per_byte,
    checked_log_evidences,
    corpus_effective_sample_size,
    corpus_log_evidence,
    corpus_perplexity,
    corpus_stderr,
    instance_perplexity,
    perplexity_per_unit,
    stacked_weights,
    total_stderr,
)
from lm_latent_eval.estimators.estimate import Bound, Estimate, MissedSupportError
from lm_latent_eval.estimators.importance import (
    checked_weights,
    effective_sample_size,
    log_evidence,
    log_grid,
    log_ratio_stderr,
    pareto_k,
    relative_variance,
    sample_size_curve,
    stderr,
)
from lm_latent_eval.estimators.pilot import required_num_samples

__all__ = [
    "Bound",
    "Estimate",
    "MissedSupportError",
    "Rate",
    "bits_per_byte",
    "certified_log_likelihood",
    "certified_perplexity",
    "checked_log_evidences",
    "checked_weights",
    "corpus_effective_sample_size",
    "corpus_log_evidence",
    "corpus_perplexity",
    "corpus_stderr",
    "effective_sample_size",
    "instance_perplexity",
    "log_evidence",
    "log_grid",
    "log_mass",
    "log_ratio_stderr",
    "pareto_k",
    "perplexity_per_unit",
    "relative_variance",
    "required_num_samples",
    "sample_size_curve",
    "stacked_weights",
    "stderr",
    "total_stderr",
]
