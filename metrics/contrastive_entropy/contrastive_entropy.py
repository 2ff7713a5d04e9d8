"""Contrastive entropy: how much worse a model likes a text once it is distorted."""

import math
from collections.abc import Mapping
from dataclasses import asdict

import datasets
import evaluate
import torch

from lm_latent_eval.contrastive import check_levels, contrastive_levels, verdict
from lm_latent_eval.contrastive.copies import score_copies
from lm_latent_eval.metric import complete, known, present, whole_counts
from lm_latent_eval.scoring.score_functions import score_function

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
        replicate of the noise. As a column, for `add_batch`: a sentence's log-scores, a
        list a level.
    num_words: Words of each sentence, at least one; without them rates are per sentence
        alone.
    stderrs: Monte Carlo errors of `log_scores`, nats, where latents were drawn, 0 by
        default; inf where that of a sentence, or of one of its copies, is not known.
        With texts, a latent LM tells its own.
    levels: Which levels a column `distorted` holds, 0.1 for 10 %; with texts, at which
        levels to distort them. 0.1, 0.3 and 0.5 by default.
    baseline: The level that ratios are over; the lowest by default.
    against: What `compute` returned for another model on the same text, also read back
        from JSON; adds a verdict.
    texts: Sentences, in place of all scores; each has a word.
    scorer: A function from a list of texts to their log-scores in nats; a causal LM of
        transformers or its path; a latent LM of this package or its path.
    tokenizer: Of a causal LM; by default the one saved beside it.
    settings: Of the scorer, such as {"num_samples": 1000} for a latent LM.
    vocabulary: What words are substituted by, the words of the training text for one;
        by default those of the texts themselves.
    replicates: Distorted copies a text and level, 10 by default.
    seed: Of the noise, 0 by default.

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

_LEVELS = (0.1, 0.3, 0.5)
_PARTS = {"": "value", "_stderr": "stderr", "_replicate_stderr": "replicate_stderr"}
"""What is added to a number's name -> the part of it."""


@evaluate.utils.file_utils.add_start_docstrings(_DESCRIPTION, _KWARGS_DESCRIPTION)
class ContrastiveEntropy(evaluate.Metric):
    """Contrastive entropies and ratios, from scores or from texts."""

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
                }
            ),
            reference_urls=["https://arxiv.org/abs/1601.00248"],
        )

    def compute(self, **inputs):
        """Compute contrastive entropies; of texts, after scoring them."""
        facts = {}
        known(inputs, _scored, self._compute)
        if inputs.get("texts") is not None:
            inputs, facts = _scored(**inputs)
        if isinstance(inputs.get("distorted"), Mapping):
            inputs = {**inputs, **_columns(inputs["distorted"])}
        columns = complete(
            inputs, ["log_scores", "distorted"], ["num_words"], stored=len(self)
        )
        result = super().compute(**columns)
        return result if result is None else {**result, **facts}

    def _compute(
        self,
        log_scores,
        distorted,
        num_words,
        stderrs=None,
        levels=_LEVELS,
        baseline=None,
        against=None,
    ):
        scores = torch.tensor(present(log_scores, "log_scores"), dtype=torch.float64)
        copies = _by_level(distorted, levels)
        drawn = None
        if stderrs is not None:
            drawn = torch.tensor(present(stderrs, "stderrs"), dtype=torch.float64)
        how = {"baseline": baseline, "stderrs": drawn}
        found = contrastive_levels(scores, copies, len(log_scores), **how)
        result = _entropies(found, "sentence")
        words = None
        if any(count is not None for count in num_words):
            words = torch.tensor(whole_counts(num_words, "num_words", least=1))
            per_word = contrastive_levels(scores, copies, words, **how)
            result = {**_entropies(per_word, "word"), **result}
        result |= _named("ratio", {each.level: each.ratio for each in found})
        result |= {
            "num_sentences": len(log_scores),
            "num_words": None if words is None else int(words.sum()),
            "replicates": len(distorted[0][0]),
            "baseline": min(levels) if baseline is None else baseline,
        }
        if against is not None:
            result["verdict"] = _verdicts(result, against)
        return result


def _scored(
    texts,
    scorer=None,
    tokenizer=None,
    settings=None,
    vocabulary=None,
    levels=_LEVELS,
    replicates=10,
    seed=0,
    **inputs,
):
    """Score texts and distorted copies: what `compute` takes, and how it was made."""
    if scorer is None:
        raise ValueError("missing: scorer (compute needs one to score texts)")
    if given := {"log_scores", "distorted", "num_words", "stderrs"} & set(inputs):
        raise ValueError(f"texts are scored here: leave out {', '.join(sorted(given))}")
    if inputs.get("baseline") not in (None, *levels):  # known before all is scored
        raise ValueError(
            f"the baseline {inputs['baseline']} is no level; there is {sorted(levels)}"
        )
    check_levels(levels)
    scored = score_copies(
        texts,
        score_function(scorer, tokenizer=tokenizer, **(settings or {})),
        levels=levels,
        replicates=replicates,
        vocabulary=vocabulary,
        seed=seed,
    )
    columns = asdict(scored)
    facts = {"seed": seed, "vocabulary_size": columns.pop("vocabulary_size")}
    return {**columns, **inputs}, facts


def _columns(distorted):
    """Turn level -> scores into a row a sentence, (levels, replicates) in it."""
    levels = sorted(distorted)
    rows = [
        torch.as_tensor(
            present(distorted[level], f"distorted[{level}]"), dtype=torch.float64
        )
        for level in levels
    ]
    shapes = {tuple(row.shape) for row in rows}
    if len(shapes) != 1 or rows[0].ndim not in (1, 2):
        raise ValueError(
            "distorted: every level needs as many scores as there are sentences, or so "
            f"many a replicate and equally many replicates; got shapes {sorted(shapes)}"
        )
    stacked = torch.stack([row.reshape(-1, row.shape[-1]) for row in rows])
    return {"levels": levels, "distorted": stacked.permute(2, 0, 1).tolist()}


def _by_level(distorted, levels):
    """Turn rows into level -> (replicates, sentences)."""
    shapes = {(len(row), *{len(copies) for copies in row}) for row in distorted}
    if len(shapes) != 1 or len(shape := shapes.pop()) != 2 or shape[0] != len(levels):
        raise ValueError(
            f"distorted: every sentence needs {len(levels)} lists, one for each of the "
            f"levels {list(levels)}, of one length, the replicates"
        )
    check_levels(levels)
    copies = torch.tensor(present(distorted, "distorted"), dtype=torch.float64)
    return {level: copies[:, index].T for index, level in enumerate(levels)}


def _entropies(found, unit):
    """Name entropies and their errors, in bits and in nats."""
    nats = {each.level: each.entropy for each in found}
    bits = {level: entropy.bits() for level, entropy in nats.items()}
    return _named(f"bits_per_{unit}", bits) | _named(f"nats_per_{unit}", nats)


def _named(name, numbers):
    """Name numbers of several levels and their errors; None stays None."""
    return {
        f"{name}{suffix}": {
            level: None if number is None else _known(getattr(number, part))
            for level, number in numbers.items()
        }
        for suffix, part in _PARTS.items()
    }


def _known(number):
    return number if math.isfinite(number) else None


def _verdicts(result, against):
    """Judge against another model at every level above the baseline."""
    names = ("nats_per_sentence", "ratio")
    same = ("baseline", "num_sentences", "num_words")
    ours, theirs = (
        [_by_number(each, name) for name in names] for each in (result, against)
    )
    if [set(each) for each in ours] != [set(each) for each in theirs] or any(
        against.get(name) != result[name] for name in same
    ):
        raise ValueError(
            "against: expected what compute returned for another model on the same "
            "text, levels and baseline"
        )
    found = {}
    for level in sorted(ours[0].keys() - {result["baseline"]}):
        numbers = [each[level] for each in (*ours, *theirs)]
        # Without a ratio there is nothing to judge.
        found[level] = None if None in numbers else str(verdict(*numbers))
    return found


def _by_number(result, name):
    """Return level -> number; in JSON, levels have become strings."""
    try:
        return {float(level): number for level, number in result[name].items()}
    except (KeyError, ValueError):
        return {}
