"""The metrics as plain functions, without ``evaluate``.

Each takes what ``compute`` of the module of its name takes, and returns the same.

Example:
    >>> from lm_latent_eval import metrics
    >>> rates = metrics.information_rate(log_likelihoods=-100.0, num_words=25)
    >>> round(rates["word_perplexity"], 4)
    54.5982
"""

from lm_latent_eval.metric_functions.contrastive_entropy import (
    contrastive_entropy as contrastive_entropy,
)
from lm_latent_eval.metric_functions.distortion_error import (
    distortion_error as distortion_error,
)
from lm_latent_eval.metric_functions.importance_perplexity import (
    importance_perplexity as importance_perplexity,
)
from lm_latent_eval.metric_functions.information_rate import (
    information_rate as information_rate,
)
