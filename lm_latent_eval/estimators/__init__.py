"""Estimators: log-weights and log-probabilities in, numbers out.

Pure functions of log-weights (nats, shape ``(..., K)``) or log-probabilities that know
nothing of models, proposals or harnesses, and the records in which their numbers leave
the library.

Example:
    >>> import torch
    >>> from lm_latent_eval.estimators import Estimate
    >>> log_w = torch.tensor([0.2, 0.4], dtype=torch.float64).log()
    >>> round(Estimate.from_log_weights(log_w, num_tokens=3).log_evidence, 4)
    -1.204
"""

from lm_latent_eval.estimators.beam import log_mass
from lm_latent_eval.estimators.bins import Bins
from lm_latent_eval.estimators.bootstrap import bootstrap_interval
from lm_latent_eval.estimators.certificate import (
    certified_log_likelihood,
    certified_perplexity,
)
from lm_latent_eval.estimators.choices import (
    AccuracyPoint,
    Margin,
    accuracy_curve,
    log_mean_gap,
    votes,
)
from lm_latent_eval.estimators.contrastive import (
    Verdict,
    contrastive_entropy,
    contrastive_ratio,
    contrastive_ratio_stderr,
    contrastive_stderr,
    mean_stderr,
    ratio_stderr,
    verdict,
)
from lm_latent_eval.estimators.contrastive_levels import (
    ContrastiveLevel,
    ContrastiveMean,
    Rate,
    contrastive_levels,
    mean_entropy,
    mean_ratio,
)
from lm_latent_eval.estimators.corpus import (
    checked_log_evidences,
    corpus_effective_sample_size,
    corpus_log_evidence,
    corpus_perplexity,
    corpus_stderr,
    instance_perplexity,
    stacked_weights,
)
from lm_latent_eval.estimators.corpus_estimate import (
    CorpusEstimate,
    filter_log_weights,
)
from lm_latent_eval.estimators.corpus_rate import CorpusRate
from lm_latent_eval.estimators.error_curve import (
    ErrorBin,
    ErrorCurve,
    estimation_error,
)
from lm_latent_eval.estimators.error_map import ErrorCell, ErrorMap, ErrorRow
from lm_latent_eval.estimators.error_trajectory import ErrorTrajectory
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
from lm_latent_eval.estimators.joint_histogram import JointHistogram
from lm_latent_eval.estimators.length_error import LengthError, LengthErrors
from lm_latent_eval.estimators.pilot import enough_samples, required_num_samples
from lm_latent_eval.estimators.productivity import (
    ProductivityCurve,
    good_turing,
    potential_productivity,
    productivity_stderr,
)
from lm_latent_eval.estimators.rates import (
    InformationRate,
    branching_factor,
    gambling_rate,
    log_capital,
    perplexity,
)
from lm_latent_eval.estimators.sentence_perplexity import mean_sentence_perplexity
from lm_latent_eval.estimators.unseen import unseen_share

__all__ = [
    "AccuracyPoint",
    "Bins",
    "Bound",
    "ContrastiveLevel",
    "ContrastiveMean",
    "CorpusEstimate",
    "CorpusRate",
    "ErrorBin",
    "ErrorCell",
    "ErrorCurve",
    "ErrorMap",
    "ErrorRow",
    "ErrorTrajectory",
    "Estimate",
    "InformationRate",
    "JointHistogram",
    "LengthError",
    "LengthErrors",
    "Margin",
    "MissedSupportError",
    "ProductivityCurve",
    "Rate",
    "Verdict",
    "accuracy_curve",
    "bootstrap_interval",
    "branching_factor",
    "certified_log_likelihood",
    "certified_perplexity",
    "checked_log_evidences",
    "checked_weights",
    "contrastive_entropy",
    "contrastive_levels",
    "contrastive_ratio",
    "contrastive_ratio_stderr",
    "contrastive_stderr",
    "corpus_effective_sample_size",
    "corpus_log_evidence",
    "corpus_perplexity",
    "corpus_stderr",
    "effective_sample_size",
    "enough_samples",
    "estimation_error",
    "filter_log_weights",
    "gambling_rate",
    "good_turing",
    "instance_perplexity",
    "log_capital",
    "log_evidence",
    "log_grid",
    "log_mass",
    "log_mean_gap",
    "log_ratio_stderr",
    "mean_entropy",
    "mean_ratio",
    "mean_sentence_perplexity",
    "mean_stderr",
    "pareto_k",
    "perplexity",
    "potential_productivity",
    "productivity_stderr",
    "ratio_stderr",
    "relative_variance",
    "required_num_samples",
    "sample_size_curve",
    "stacked_weights",
    "stderr",
    "unseen_share",
    "verdict",
    "votes",
]
