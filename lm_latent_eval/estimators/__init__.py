"""Estimators: log-weights and log-probabilities in, estimates with errors out.

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
from lm_latent_eval.estimators.bootstrap import bootstrap_interval
from lm_latent_eval.estimators.bound import Bound
from lm_latent_eval.estimators.bounded import (
    Choice,
    bernstein_interval,
    best_by_length,
    difference_interval,
    discoveries,
    log_ratio_interval,
    probability_interval,
    smallest_at_most,
)
from lm_latent_eval.estimators.certificate import (
    certificate_cost,
    certified_log_likelihood,
    certified_perplexity,
)
from lm_latent_eval.estimators.checks import checked_weights
from lm_latent_eval.estimators.choices import (
    AccuracyPoint,
    Margin,
    accuracy_curve,
    log_mean_gap,
    votes,
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
from lm_latent_eval.estimators.curve import log_grid, sample_size_curve
from lm_latent_eval.estimators.estimate import Estimate, MissedSupportError
from lm_latent_eval.estimators.importance import (
    degrees_of_freedom,
    effective_sample_size,
    influences,
    log_evidence,
    log_normal_stderr,
    log_ratio_stderr,
    relative_variance,
    stderr,
)
from lm_latent_eval.estimators.means import mean_stderr, ratio_stderr
from lm_latent_eval.estimators.missing_mass import missing_mass
from lm_latent_eval.estimators.pareto import pareto_k
from lm_latent_eval.estimators.pilot import enough_samples, required_num_samples
from lm_latent_eval.estimators.rates import (
    InformationRate,
    branching_factor,
    gambling_rate,
    log_capital,
    perplexity,
)
