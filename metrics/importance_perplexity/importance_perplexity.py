"""Importance-sampled perplexity of latent language models, with its diagnostics."""

import logging
import math
import statistics

import datasets
import evaluate
import torch

from lm_latent_eval.estimators import CorpusEstimate, filter_log_weights
from lm_latent_eval.metric import complete, known, present, whole_counts

logger = logging.getLogger(__name__)

_ERRORS = 5
"""Of the draws, above which an estimate of more than 1 is no chance."""
_ROUNDING = 1e-6
"""Nats."""

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
    confidence: Of the certificate, 0.95 by default.
    level: "instance", or "token" if the log-weights are those of particle filters.
    num_configurations: Of how many runs on these texts this is the best, 1 by default:
        the certificate pays for the choice.
    multiplicity: How often the most repeated text occurs with the same draws, 1 by
        default.

Returns:
    instance_level_perplexity and corpus_level_perplexity (None where every product of
        weights is zero); from filters token_level_perplexity instead. Beside each its
        error as the draws tell it (`_draws_stderr`), None if one draw is all there is:
        at the instance and token level their spread and the bias of the logarithms,
        at the corpus level the spread alone. It is no standard error: draws do not know
        what their proposal never visits, so from log-weights alone there is none. A
        perplexity is inf above what a float can hold.
    certified_perplexity: What the true perplexity is at most, at that confidence.
    bound: Which way the perplexities err: "stochastic upper".
    effective_sample_sizes, draws_stderrs (nats), pareto_ks: Of each text; with
        effective_sample_size_median, effective_sample_size_minimum and
        share_pareto_k_above_0.7.
    corpus_effective_sample_size, corpus_num_samples: Of the products of weights.
    curve: k -> instance-level perplexity from the first k draws of every text.
    log_likelihood (nats), num_tokens, num_texts: What the perplexities are made of.

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
class ImportancePerplexity(evaluate.Metric):
    """Perplexity from log-weights, at every level of aggregation."""

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

    def compute(self, **inputs):
        """Compute perplexities from log-weights, or from filters' increments."""
        known(inputs, _of_filters, self._compute, CorpusEstimate.of)
        if inputs.get("log_increments") is not None:
            inputs = _of_filters(**inputs)
        needed = ["log_weights", "num_tokens"]
        return super().compute(**complete(inputs, needed, stored=len(self)))

    def _compute(self, log_weights, num_tokens, level="instance", **settings):
        if level not in ("instance", "token"):
            raise ValueError(f"level must be instance or token; got {level!r}")
        rows = present(log_weights, "log_weights")
        num_tokens = whole_counts(num_tokens, "num_tokens")
        found = CorpusEstimate.of(
            [torch.tensor(row, dtype=torch.float64) for row in rows],
            torch.tensor(num_tokens),
            **settings,
        )
        estimates = found.estimates
        _check_probabilities(estimates, found.confidence)
        sizes = [estimate.effective_sample_size for estimate in estimates]
        tails = [estimate.pareto_k for estimate in estimates]
        return {
            **_named(f"{level}_level_perplexity", found.instance),
            **(_corpus_level(found) if level == "instance" else {}),
            "certified_perplexity": found.certified,
            "confidence": found.confidence,
            "bound": "stochastic upper",
            "effective_sample_size_median": statistics.median(sizes),
            "effective_sample_size_minimum": min(sizes),
            "share_pareto_k_above_0.7": statistics.fmean(k > 0.7 for k in tails),
            "effective_sample_sizes": sizes,
            "pareto_ks": tails,
            "draws_stderrs": [_known(e.draws_stderr) for e in estimates],
            "curve": dict(found.curve),
            "log_likelihood": math.fsum(e.log_evidence for e in estimates),
            "num_tokens": sum(num_tokens),
            "num_texts": len(estimates),
        }


def _check_probabilities(estimates, confidence):
    """Refuse estimates that are no probabilities, and tell what may be by chance.

    An unbiased estimate of a p of at most 1 is above 1 by chance alone: by Markov's
    inequality, above 1 / (1 - confidence) with a probability of at most 1 - confidence.
    """
    above = [n for n, e in enumerate(estimates) if e.log_evidence > _ROUNDING]
    for n in above:
        found = estimates[n]
        far = min(_ERRORS * found.draws_stderr, -math.log1p(-confidence))
        if found.log_evidence > far + _ROUNDING:
            raise ValueError(
                f"input {n}: the log-weights estimate log p = {found.log_evidence:.3g} "
                "nats, and no text has a probability above 1: log-weights are "
                "log p(x, z) - log q(z | x). Were the signs turned, or log p left out? "
                "Densities of real-valued data have no perplexity"
            )
    if above:
        logger.warning(
            "%d inputs, the first of them number %d, are estimated to have a "
            "probability above 1, within the errors of their draws: more draws would "
            "tell",
            len(above),
            above[0],
        )


def _of_filters(log_increments, **inputs):
    """Turn filters' increments into their log-weights and the tokens they read."""
    if given := {"log_weights", "num_tokens"} & set(inputs):
        raise ValueError(
            f"log_increments replace {' and '.join(sorted(given))}: give one or other"
        )
    for index, filters in enumerate(present(log_increments, "log_increments")):
        if len({len(increments) for increments in filters}) != 1:
            raise ValueError(
                f"log_increments[{index}]: every filter of a text reads all its tokens"
            )
    texts = [torch.tensor(text, dtype=torch.float64) for text in log_increments]
    return {
        **inputs,
        "log_weights": [filter_log_weights(text).tolist() for text in texts],
        "num_tokens": [text.shape[-1] for text in texts],
        "level": "token",
    }


def _corpus_level(found):
    return {
        **_named("corpus_level_perplexity", found.corpus),
        "corpus_effective_sample_size": found.corpus_effective_sample_size,
        "corpus_num_samples": found.corpus_num_samples,
    }


def _named(name, rate):
    if rate is None:
        return {name: None, f"{name}_draws_stderr": None}
    return {name: rate.value, f"{name}_draws_stderr": _known(rate.draws_stderr)}


def _known(number):
    return number if math.isfinite(number) else None
