"""Distortion error: which sequences a model finds less probable than they are."""

import datasets
import evaluate

from lm_latent_eval.metric_functions.distortion_error import COLUMNS, compute, prepare
from lm_latent_eval.metric_functions.rows import Rows

_DESCRIPTION = """\
Where the true probability of every sequence is known (an artificial language), the
estimation error of a model is its log-probability of a sequence minus the true one:
below 0 where the model underestimates. This metric averages it over bins of true
log-probability, with bootstrap intervals, so that the tail of rare sequences is seen by
itself.
"""

_CITATION = """\
@inproceedings{lebrun2022evaluating,
    title = {Evaluating Distributional Distortion in Neural Language Modeling},
    author = {LeBrun, Benjamin and Sordoni, Alessandro and O'Donnell, Timothy J.},
    booktitle = {International Conference on Learning Representations},
    year = {2022},
}
"""

_KWARGS_DESCRIPTION = """
Args:
    true_log_p: Log-probability of each sequence under the language, nats.
    model_log_p: Under the model, nats. Both finite: the mean error of a sequence
        that the model rules out is -inf; count such sequences and leave them out.
    stderr: Monte Carlo standard error of each model_log_p, nats, where those are
        estimates (a latent model's); 0 is exact, as all are without it.
    bins: "width" (equal ranges of true log-probability; bins of ten sequences and fewer
        are not reported) or "count" (equal numbers of sequences).
    num_bins: Number of bins, 50 by default.
    resamples: Bootstrap resamples a bin, 10,000 by default.
    confidence: Confidence of the intervals, 0.95 by default.
    seed: Seed of the resampling, 0 by default.
    histogram_bins: Bins of each axis of the joint histogram, 50 by default.

Returns:
    mean_error: Over all sequences, nats; minus the divergence KL(language || model) if
        the sequences were drawn from the language.
    share_underestimated: Share of sequences with an error below 0.
    share_stderr: Binomial standard error of that share.
    bins: From the least to the most probable sequences, each with lowest, highest and
        mean_true_log_p, count, mean_error and the interval from lower to upper;
        monte_carlo_stderr and estimator_bias of the mean error, 0 without stderr; and
        underestimates, whether upper less estimator_bias is below 0 and that
        bias at most 1/32: beyond, nobody can tell.
    monte_carlo_stderr, estimator_bias: Error and bias of mean_error. The bias is
        that of log p-hat to second order, at most 0.
    left_out: Sequences in bins too small to be reported.
    histogram: edges of both axes, and counts[true bin][model bin].

Examples:
    >>> import evaluate, lm_latent_eval
    >>> metric = evaluate.load(lm_latent_eval.metric_path("distortion_error"))
    >>> result = metric.compute(
    ...     true_log_p=[-1.0, -2.0, -3.0, -4.0],
    ...     model_log_p=[-1.5, -2.5, -5.0, -6.0],
    ...     bins="count",
    ...     num_bins=2,
    ... )
    >>> [found["mean_error"] for found in result["bins"]], result["mean_error"]
    ([-2.0, -0.5], -1.25)
"""


@evaluate.utils.file_utils.add_start_docstrings(_DESCRIPTION, _KWARGS_DESCRIPTION)
class DistortionError(Rows, evaluate.Metric):
    """Estimation error by true log-probability."""

    columns = COLUMNS
    prepare = staticmethod(prepare)

    def _info(self):
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_KWARGS_DESCRIPTION,
            features=datasets.Features(
                {
                    "true_log_p": datasets.Value("float64"),
                    "model_log_p": datasets.Value("float64"),
                    "stderr": datasets.Value("float64"),
                }
            ),
            reference_urls=["https://arxiv.org/abs/2203.12788"],
        )

    def _compute(self, **columns):
        return compute(**columns)
