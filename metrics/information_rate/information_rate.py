"""Information rates: one log-likelihood in every unit, and what a text alone says."""

import datasets
import evaluate

from lm_latent_eval.metric_functions.information_rate import COLUMNS, compute, prepare
from lm_latent_eval.metric_functions.rows import Rows

_DESCRIPTION = """\
The same log-likelihood is a perplexity per token, per word or per byte, and bits per
character or nats per sentence. This metric gives all of them, each with its count, and
turns a published rate into the others. From a text alone it computes Shannon's n-gram
entropies F_N and Cover and King's bound of the entropy by the capital of a gambler.
"""

_CITATION = """\
@article{shannon1951prediction,
    title = {Prediction and entropy of printed {English}},
    author = {Shannon, Claude E.},
    journal = {Bell System Technical Journal},
    volume = {30},
    number = {1},
    pages = {50--64},
    year = {1951},
}
@article{cover1978convergent,
    title = {A convergent gambling estimate of the entropy of {English}},
    author = {Cover, Thomas M. and King, Roger C.},
    journal = {IEEE Transactions on Information Theory},
    volume = {24},
    number = {4},
    pages = {413--421},
    year = {1978},
}
"""

_KWARGS_DESCRIPTION = """
Args:
    log_likelihoods: Log-likelihood of each text in nats, or of all together.
    num_tokens, num_words, num_characters, num_bytes, num_sentences: Counts of
        each text, or of all together; as many of the five as are known.
    stderr: Standard error of the total log-likelihood in nats, 0 by default.
    texts: In place of all counts but num_tokens: words are counted at white space,
        characters as code points with white space, bytes in UTF-8, and sentences as
        sentencex splits them.
    max_order: With texts, the longest n-grams that are counted, at most as long as the
        text; 5 by default, 0 for none.
    language: With texts, for the ends of sentences; "en" by default.
    bits_per_UNIT, nats_per_UNIT or UNIT_perplexity, for UNIT one of token, word,
        character, byte and sentence: A published rate, in place of log_likelihoods.

Returns:
    Of every unit counted: nats_per_UNIT, bits_per_UNIT and UNIT_perplexity (inf above
        what a float can hold), with standard errors (`_stderr`) if there is one of the
        total; the counts themselves; log_likelihood (nats).
    With texts, all written in the 27 symbols a to z and space: ngram_entropies, for
        each order N from 0 the F_N in nats and bits per symbol and the share of symbols
        whose context occurs once (not small: F_N is far too low); gambling, with
        nats_per_symbol and bits_per_symbol, bounds of the entropy from above,
        log_capital (nats), num_symbols and alphabet_size. No letter a to z, no such
        numbers: an empty list, and None.

Examples:
    >>> import evaluate, lm_latent_eval
    >>> metric = evaluate.load(lm_latent_eval.metric_path("information_rate"))
    >>> result = metric.compute(
    ...     log_likelihoods=-100.0, num_words=25, num_characters=125
    ... )
    >>> round(result["word_perplexity"], 4), round(result["bits_per_character"], 4)
    (54.5982, 1.1542)
    >>> result = metric.compute(bits_per_character=1.0, num_characters=5, num_words=1)
    >>> round(result["word_perplexity"], 4)
    32.0
"""


@evaluate.utils.file_utils.add_start_docstrings(_DESCRIPTION, _KWARGS_DESCRIPTION)
class InformationRate(Rows, evaluate.Metric):
    """Rates and perplexities per unit."""

    columns = COLUMNS
    prepare = staticmethod(prepare)

    def _info(self):
        number = datasets.Value("float64")
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_KWARGS_DESCRIPTION,
            features=datasets.Features(dict.fromkeys(COLUMNS, number)),
            reference_urls=[
                "https://doi.org/10.1002/j.1538-7305.1951.tb01366.x",
                "https://doi.org/10.1109/TIT.1978.1055912",
            ],
        )

    def _compute(self, **columns):
        return compute(**columns)
