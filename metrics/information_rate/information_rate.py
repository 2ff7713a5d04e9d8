"""Information rates: one log-likelihood in every unit, and what a text alone says."""

import math
from dataclasses import asdict
from numbers import Real

import datasets
import evaluate

from lm_latent_eval.estimators import InformationRate as Rate
from lm_latent_eval.metric import complete, known, present, whole_counts
from lm_latent_eval.text.counts import Counts
from lm_latent_eval.text.ngrams import gamble, letters, ngram_entropies

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
    num_tokens, num_words, num_characters, num_bytes, num_sentences: Of each text, or of
        all together; as many of the five as are known.
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

_UNITS = {
    "token": "num_tokens",
    "word": "num_words",
    "character": "num_characters",
    "byte": "num_bytes",
    "sentence": "num_sentences",
}
_READ = {
    name: (unit, read)
    for unit in _UNITS
    for name, read in (
        (f"nats_per_{unit}", Rate),
        (f"bits_per_{unit}", Rate.of_bits),
        (f"{unit}_perplexity", Rate.of_perplexity),
    )
}
"""Published rate -> its unit, and what reads it."""


@evaluate.utils.file_utils.add_start_docstrings(_DESCRIPTION, _KWARGS_DESCRIPTION)
class InformationRate(evaluate.Metric):
    """Rates and perplexities per unit."""

    def _info(self):
        number = datasets.Value("float64")
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_KWARGS_DESCRIPTION,
            features=datasets.Features(
                dict.fromkeys(("log_likelihoods", *_UNITS.values()), number)
            ),
            reference_urls=[
                "https://doi.org/10.1002/j.1538-7305.1951.tb01366.x",
                "https://doi.org/10.1109/TIT.1978.1055912",
            ],
        )

    def compute(self, **inputs):
        """Compute every rate that the counts allow."""
        facts = {}
        known(inputs, _of_texts, self._compute, others=_READ)
        if inputs.get("texts") is not None:
            inputs, facts = _of_texts(**inputs)
        inputs = {
            name: [float(value)]
            if name in self.features and _is_total(value)
            else value
            for name, value in inputs.items()
        }
        for name in sorted(_READ.keys() & inputs.keys()):
            inputs = _of_published(name, **inputs)
        needed = [] if facts else ["log_likelihoods"]
        optional = [name for name in self.features if name not in needed]
        columns = complete(inputs, needed, optional, stored=len(self))
        result = super().compute(**columns)
        return result if result is None else {**result, **facts}

    def _compute(
        self,
        log_likelihoods,
        num_tokens,
        num_words,
        num_characters,
        num_bytes,
        num_sentences,
        stderr=0.0,
    ):
        columns = (num_tokens, num_words, num_characters, num_bytes, num_sentences)
        counts = dict(zip(_UNITS.values(), columns, strict=True))
        result = {
            name: sum(whole_counts(column, name))
            for name, column in counts.items()
            if any(count is not None for count in column)
        }
        if empty := [name for name, count in result.items() if count < 1]:
            raise ValueError(
                f"{empty[0]} must be at least 1 in all; got {result[empty[0]]}"
            )
        if all(log_p is None for log_p in log_likelihoods):  # texts without a model
            return result
        log_likelihood = math.fsum(present(log_likelihoods, "log_likelihoods"))
        stderr = float(stderr)
        if not result:
            raise ValueError(f"missing: one of {', '.join(counts)}")
        rates = {
            unit: Rate.of(log_likelihood, result[name], stderr=stderr)
            for unit, name in _UNITS.items()
            if name in result
        }
        result["log_likelihood"] = log_likelihood
        for unit, rate in rates.items():
            result |= _named(unit, rate, error=stderr > 0)
        return result


def _of_texts(texts, max_order=5, language="en", **inputs):
    """Count texts: what `compute` takes then, and what they say by themselves."""
    counts = asdict(Counts.of(texts, language=language))
    columns = {
        name: counts[f"{unit}s"] for unit, name in _UNITS.items() if unit != "token"
    }
    if given := columns.keys() & inputs.keys():
        raise ValueError(
            f"texts are counted here: leave out {', '.join(sorted(given))}"
        )
    for name in ("log_likelihoods", "num_tokens"):
        value = inputs.get(name)
        if value is not None and not _is_total(value):
            if len(value) != len(texts):
                raise ValueError(f"{len(texts)} texts, but {len(value)} {name}")
            check = whole_counts if name == "num_tokens" else present
            columns[name] = math.fsum(check(value, name))
    symbols = letters(" ".join(texts))
    max_order = min(max_order, len(symbols))
    facts = {"ngram_entropies": [], "gambling": None}
    if max_order > 0:
        facts["ngram_entropies"] = [
            {
                "order": found.order,
                "nats_per_symbol": found.rate.nats,
                "bits_per_symbol": found.rate.bits,
                "share_unique": found.share_unique,
            }
            for found in ngram_entropies(symbols, max_order)
        ]
        won = gamble(symbols, max_order=max_order)
        facts["gambling"] = {
            "nats_per_symbol": won.rate.nats,
            "bits_per_symbol": won.rate.bits,
            **asdict(won),
        }
    return {**inputs, **columns}, facts


def _of_published(name, **inputs):
    """Turn a published rate into the log-likelihood of text so long."""
    unit, read = _READ[name]
    count = inputs.get(_UNITS[unit])
    if count is None:
        raise ValueError(f"missing: {_UNITS[unit]} ({name} is a rate of so many)")
    if "log_likelihoods" in inputs:
        raise ValueError(f"log_likelihoods and {name} say the same twice: give one")
    rate = read(float(inputs.pop(name)))
    return {**inputs, "log_likelihoods": [-rate.nats * each for each in count]}


def _is_total(value):
    """Whether it is one number, also that of an array without dimensions."""
    return isinstance(value, Real) or getattr(value, "ndim", None) == 0


def _named(unit, rate, *, error):
    """Name a rate in nats, in bits and as a perplexity, and the errors if wanted."""
    found = {
        f"nats_per_{unit}": (rate.nats, rate.nats_stderr),
        f"bits_per_{unit}": (rate.bits, rate.bits_stderr),
        f"{unit}_perplexity": (rate.perplexity, rate.perplexity_stderr),
    }
    values = {name: value for name, (value, _) in found.items()}
    errors = {f"{name}_stderr": stderr for name, (_, stderr) in found.items()}
    return {**values, **errors} if error else values
