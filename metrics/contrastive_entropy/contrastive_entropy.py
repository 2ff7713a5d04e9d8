"""Contrastive entropy: how much worse a model likes a text once it is distorted."""

import datasets
import evaluate

from lm_latent_eval.metric_functions.contrastive_entropy import (
    COLUMNS,
    compute,
    prepare,
)
from lm_latent_eval.metric_functions.rows import Rows

_DESCRIPTION = """\
Contrastive entropy is how far a model's log-score falls, per word, from a text to a
copy of it in which some words were substituted and some transposed. Its ratio over a
mild level of distortion does not depend on the scale of the scores, so that models that
are not normalised compare as well.
"""

_CITATION = """\
@article{arora2016contrastive,
    title = {Contrastive Entropy: A new evaluation metric for unnormalized
             language models},
    author = {Arora, Kushal and Rangarajan, Anand},
    journal = {arXiv preprint arXiv:1601.00248},
    year = {2016},
}
"""

_KWARGS_DESCRIPTION = """
Either scores, in nats and unnormalised if need be, or texts and what scores them.

Args:
    log_scores: Log-score of each sentence.
    distorted: Level -> log-scores of the distorted sentences: a list, or a list a
        replicate of the noise; for `add`, the scores of one sentence. As a column: a
        sentence's log-scores, a list a level.
    num_words: Words of each sentence, at least one; without them rates are per sentence
        alone.
    stderrs: Monte Carlo errors of `log_scores`, nats, where latents were drawn, 0 by
        default; inf where that of a sentence, or of one of its copies, is not known.
        With texts, a latent LM tells its own.
    levels: Levels that a column `distorted` holds, 0.1 for 10 %, where its rows have
        no keys; with texts, at which levels to distort them. 0.1, 0.3 and 0.5 by
        default.
    baseline: The level that ratios are over; the lowest by default.
    against: Result of `compute` for another model on the same text, also read back
        from JSON; adds a verdict.
    texts: Sentences, in place of all scores; each has a word.
    scorer: A function from a list of texts to their log-scores in nats; a causal LM of
        transformers or its path; a latent LM of this package or its path.
    tokenizer: Tokenizer of a causal LM; by default the one saved beside it.
    settings: Settings of the scorer, such as {"num_samples": 1000} for a latent LM.
    vocabulary: Units that substitute words, the words of the training text for one;
        by default those of the texts themselves.
    replicates: Distorted copies a text and level, 10 by default.
    seed: Seed of the noise, 0 by default.

Returns:
    bits_per_word, nats_per_word, bits_per_sentence, nats_per_sentence and ratio, each a
    dictionary level -> number. Beside each, its standard errors over sentences
    (`_stderr`) and over replicates (`_replicate_stderr`), the draws' part in both; None
    where one is all there is, or the draws' part is not known. The ratio, its errors
    and the verdict are None where the baseline's entropy is not positive. verdict, if
    there is another model to compare with: superior, scaling, indeterminate or
    inferior. num_sentences, num_words, replicates and baseline; of texts also
    vocabulary_size and seed.

Examples:
    >>> import evaluate, lm_latent_eval
    >>> metric = evaluate.load(lm_latent_eval.metric_path("contrastive_entropy"))
    >>> result = metric.compute(
    ...     log_scores=[-20.0, -30.0],
    ...     num_words=[4, 6],
    ...     distorted={0.1: [-24.0, -36.0], 0.3: [-32.0, -44.0]},
    ... )
    >>> result["nats_per_word"], result["ratio"]
    ({0.1: 1.0, 0.3: 2.6}, {0.1: 1.0, 0.3: 2.6})
"""


@evaluate.utils.file_utils.add_start_docstrings(_DESCRIPTION, _KWARGS_DESCRIPTION)
class ContrastiveEntropy(Rows, evaluate.Metric):
    """Contrastive entropies and ratios, from scores or from texts."""

    columns = COLUMNS
    prepare = staticmethod(prepare)

    def _info(self):
        number = datasets.Value("float64")
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_KWARGS_DESCRIPTION,
            features=datasets.Features(
                {
                    "log_scores": number,
                    "distorted": datasets.Sequence(datasets.Sequence(number)),
                    "num_words": number,
                    "stderrs": number,
                    "distorted_levels": datasets.Sequence(number),
                }
            ),
            reference_urls=["https://arxiv.org/abs/1601.00248"],
        )

    def _compute(self, **columns):
        return compute(**columns)
