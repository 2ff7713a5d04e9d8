"""Importance-sampled perplexity of latent language models, with its diagnostics."""

import datasets
import evaluate

from lm_latent_eval.metric_functions.importance_perplexity import (
    COLUMNS,
    compute,
    prepare,
)
from lm_latent_eval.metric_functions.rows import Rows

_DESCRIPTION = """\
The likelihood of a latent language model is a sum over latents, and its perplexity an
estimate. From the log-weights log p(x, z) - log q(z | x) of latents drawn from a
proposal q, this metric computes the perplexity at the instance level (every text by
itself) and at the corpus level (the weights of all texts multiplied), or at the token
level from a particle filter, and says how far it can be believed.
"""

_CITATION = """\
@inproceedings{logan2020importance,
    title = {On Importance Sampling-Based Evaluation of Latent Language Models},
    author = {Logan IV, Robert L. and Gardner, Matt and Singh, Sameer},
    booktitle = {Proceedings of the 58th Annual Meeting of the Association for
                 Computational Linguistics},
    year = {2020},
}
"""

_KWARGS_DESCRIPTION = """
Args:
    log_weights: Log-weights of each text in nats, in the order drawn; -inf is a weight
        of zero. Weights by which a text has a probability above 1 are refused.
    num_tokens: Predicted tokens of each text.
    log_increments: In place of both, for the token level: of each text a list of
        particle filters, each the list of its log-increments in nats, one a token.
    confidence: Confidence of the certificate, 0.95 by default.
    level: "instance", or "token" if the log-weights are those of particle filters.
    num_configurations: Number of runs on these texts of which this is the best, 1 by
        default:
        the certificate pays for the choice.
    multiplicity: Copies of the most repeated text with the same draws, 1 by
        default.

Returns:
    instance_level_perplexity and corpus_level_perplexity (None where every product of
        weights is zero); from filters token_level_perplexity instead. Beside each its
        error as the draws tell it (`_draws_stderr`), None if one draw is all there is:
        at the instance and token level their spread and the bias of the logarithms,
        at the corpus level the spread alone. It is no standard error: draws do not know
        what their proposal never visits, so from log-weights alone there is none. A
        perplexity is inf above what a float can hold.
    certified_perplexity: Upper limit of the true perplexity, at that confidence.
    bound: Direction of the error of the perplexities: "stochastic upper".
    effective_sample_sizes, draws_stderrs (nats), pareto_ks: One a text; with
        effective_sample_size_median, effective_sample_size_minimum and
        share_pareto_k_above_0.7; None where fewer than 30 positive weights tell
        nothing of a tail, or a number is infinite.
    corpus_effective_sample_size, corpus_num_samples: Sizes of the products of weights.
    curve: k -> instance-level perplexity from the first k draws of every text.
    log_likelihood (nats), num_tokens, num_texts: Totals behind the perplexities.

Examples:
    >>> import evaluate, lm_latent_eval
    >>> from math import log
    >>> metric = evaluate.load(lm_latent_eval.metric_path("importance_perplexity"))
    >>> result = metric.compute(
    ...     log_weights=[[log(0.2), log(0.3)], [log(0.1), log(0.9)]], num_tokens=[1, 2]
    ... )
    >>> round(result["instance_level_perplexity"], 4)  # (0.25 * 0.5) ** (-1 / 3)
    2.0
    >>> round(result["corpus_level_perplexity"], 4)  # (0.02 + 0.27) / 2 = 0.145
    1.9035
"""


@evaluate.utils.file_utils.add_start_docstrings(_DESCRIPTION, _KWARGS_DESCRIPTION)
class ImportancePerplexity(Rows, evaluate.Metric):
    """Perplexity from log-weights, at every level of aggregation."""

    columns = COLUMNS
    prepare = staticmethod(prepare)

    def _info(self):
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_KWARGS_DESCRIPTION,
            features=datasets.Features(
                {
                    "log_weights": datasets.Sequence(datasets.Value("float64")),
                    "num_tokens": datasets.Value("float64"),
                }
            ),
            reference_urls=["https://aclanthology.org/2020.acl-main.196"],
        )

    def _compute(self, **columns):
        return compute(**columns)
