"""Estimators: log-weights and log-probabilities in, estimates with errors out.

Pure functions of log-weights (nats, shape ``(..., K)``) or log-probabilities that know
nothing of models, proposals or harnesses, and the records in which their numbers leave
the library:

- ``importance``: log p-hat, its error and effective sample size; ``diagnostics``:
  whether they can be believed; ``estimate``: the record of a text;
- ``corpus``, ``corpus_estimate``, ``rates``: perplexity, bits, certificate of a corpus;
- ``standard_errors``, ``intervals``: what follows a ±;
- ``paired``, ``power``, ``choices``: two models, how many texts, an answer.

Example:
    >>> import torch
    >>> from lm_latent_eval.estimators import Estimate
    >>> log_w = torch.tensor([0.2, 0.4], dtype=torch.float64).log()
    >>> round(Estimate.from_log_weights(log_w, num_tokens=3).log_evidence, 4)
    -1.204
"""

from lm_latent_eval.estimators.checks import checked_weights
from lm_latent_eval.estimators.corpus import (
    certificate_cost,
    certified_log_likelihood,
    certified_perplexity,
    checked_log_evidences,
    corpus_perplexity,
    corpus_weights,
    instance_perplexity,
)
from lm_latent_eval.estimators.corpus_estimate import (
    CorpusEstimate,
    CorpusRate,
    EstimateColumns,
)
from lm_latent_eval.estimators.diagnostics import pareto_k
from lm_latent_eval.estimators.estimate import Bound, Estimate, MissedSupportError
from lm_latent_eval.estimators.importance import (
    effective_sample_size,
    enough_samples,
    influences,
    log_evidence,
    log_grid,
    log_ratio_stderr,
    relative_variance,
    sample_size_curve,
    stderr,
    stderr_of_log_normal,
)
from lm_latent_eval.estimators.intervals import (
    Choice,
    discoveries,
    probability_interval,
)
from lm_latent_eval.estimators.rates import InformationRate, perplexity
from lm_latent_eval.estimators.standard_errors import (
    bootstrap_interval,
    mean_stderr,
    ratio_stderr,
)
