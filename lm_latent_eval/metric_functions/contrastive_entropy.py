"""Contrastive entropy as a metric function."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from lm_latent_eval.contrastive import check_levels, contrastive_levels, verdict
from lm_latent_eval.metric_functions.columns import (
    complete,
    finite,
    known,
    present,
    whole_counts,
)
from lm_latent_eval.options import whole

_LEVELS = (0.1, 0.3, 0.5)
_NEEDED = ("log_scores", "distorted")
COLUMNS = (*_NEEDED, "num_words", "stderrs", "distorted_levels")
"""Columns of rows; ``distorted_levels`` are the keys of ``distorted``, row by row."""
_PARTS = {"": "value", "_stderr": "stderr", "_replicate_stderr": "replicate_stderr"}
"""Suffix of a number's name -> the part of it."""


def contrastive_entropy(**inputs: Any) -> dict[str, Any]:
    """Compute what the ``evaluate`` module of that name does; see its card.

    Args:
        inputs: Those of the module's ``compute``.

    Example:
        >>> result = contrastive_entropy(
        ...     log_scores=[-20.0, -30.0],
        ...     num_words=[4, 6],
        ...     distorted={0.1: [-24.0, -36.0], 0.3: [-32.0, -44.0]},
        ... )
        >>> result["nats_per_word"]
        {0.1: 1.0, 0.3: 2.6}
    """
    columns, facts = prepare(inputs)
    return {**compute(**columns), **facts}


def prepare(
    inputs: dict[str, Any], *, stored: int = 0
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the columns of ``compute``, and facts; see ``metric_functions``."""
    facts: dict[str, Any] = {}
    inputs = known(inputs, _scored, compute)
    if "texts" in inputs:
        inputs, facts = _scored(**inputs)
    if isinstance(inputs.get("distorted"), Mapping):
        inputs = {**inputs, **_columns(inputs["distorted"])}
    optional = [name for name in COLUMNS if name not in _NEEDED]
    return complete(inputs, _NEEDED, optional, stored=stored), facts


def compute(
    log_scores: Any,
    distorted: Any,
    num_words: Any,
    stderrs: Any,
    distorted_levels: Any,
    levels: Any = None,
    baseline: Any = None,
    against: Any = None,
) -> dict[str, Any]:
    """Compute contrastive entropies and ratios of every level."""
    scores = torch.as_tensor(present(log_scores, "log_scores"), dtype=torch.float64)
    levels = _shared(distorted_levels, levels)
    copies = _by_level(distorted, levels)
    drawn = None
    if any(error is not None for error in stderrs):
        drawn = torch.as_tensor(present(stderrs, "stderrs"), dtype=torch.float64)
    how = {"baseline": baseline, "stderrs": drawn}
    per_sentence = contrastive_levels(scores, copies, len(log_scores), **how)
    result: dict[str, Any] = _entropies(per_sentence, "sentence")
    words = None
    if any(count is not None for count in num_words):
        words = torch.tensor(whole_counts(num_words, "num_words", least=1))
        per_word = contrastive_levels(scores, copies, words, **how)
        result = {**_entropies(per_word, "word"), **result}
    result |= _named("ratio", {each.level: each.ratio for each in per_sentence})
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
    texts: Any,
    scorer: Any = None,
    tokenizer: Any = None,
    settings: Any = None,
    vocabulary: Any = None,
    levels: Any = _LEVELS,
    replicates: Any = 10,
    seed: Any = 0,
    **inputs: Any,
) -> Any:
    """Return scores of texts and, by the same call, of distorted copies; and facts."""
    # Scores that are given need none of these.
    from lm_latent_eval.contrastive.noise import (
        TextNoise,
        WhiteSpaceWords,
        distinct_words,
    )
    from lm_latent_eval.metric_functions.strings import string_scorer
    from lm_latent_eval.text.noise import NoiseChannel
    from lm_latent_eval.text.words import checked_strings

    if scorer is None:
        raise ValueError("missing: scorer (compute needs one to score texts)")
    if given := {"log_scores", "distorted", "num_words", "stderrs"} & set(inputs):
        raise ValueError(f"texts are scored here: leave out {', '.join(sorted(given))}")
    if inputs.get("baseline") not in (None, *levels):  # known before all is scored
        raise ValueError(
            f"the baseline {inputs['baseline']} is no level; there is {sorted(levels)}"
        )
    check_levels(levels)
    texts = checked_strings(texts)
    if len(texts) == 0 or len(levels) == 0:
        raise ValueError(
            f"there must be texts and levels; got {len(texts)} and {len(levels)}"
        )
    replicates = whole("replicates", replicates, 1)
    for index, text in enumerate(texts):
        if not text.split():
            raise ValueError(
                f"texts[{index}] is {text!r}: no word to distort; leave it out"
            )
    words = distinct_words(texts) if vocabulary is None else vocabulary
    batch = list(texts)
    for level in levels:
        noise = TextNoise(NoiseChannel.preset(level, words), WhiteSpaceWords(), seed)
        for replicate in range(replicates):
            batch += [noise.distort(t, n, replicate) for n, t in enumerate(texts)]
    likelihoods = string_scorer(scorer, tokenizer=tokenizer, **(settings or {}))
    scored = likelihoods(batch)
    scores, errors = scored.log_p.tolist(), scored.stderr.tolist()
    for score, text in zip(scores, batch, strict=True):
        if not math.isfinite(score):
            raise ValueError(f"the scorer gave {score} for {text[:60]!r}")
    num_texts = len(texts)
    clean, *copies = (
        scores[n : n + num_texts] for n in range(0, len(batch), num_texts)
    )
    left = iter(copies)
    columns = {
        "log_scores": clean,
        "distorted": {
            level: [next(left) for _ in range(replicates)] for level in levels
        },
        "num_words": [len(text.split()) for text in texts],
        # Not known where that of the text is not, or that of one of its copies.
        "stderrs": [
            error if all(map(math.isfinite, errors[n::num_texts])) else math.inf
            for n, error in enumerate(errors[:num_texts])
        ],
    }
    return {**columns, **inputs}, {"seed": seed, "vocabulary_size": len(words)}


def _shared(distorted_levels: Any, levels: Any) -> Any:
    """Return the levels of all rows, or of the option where rows tell none."""
    named = {None if each is None else tuple(each) for each in distorted_levels}
    if len(named) > 1:
        given = [list(each) for each in named if each]
        raise ValueError(
            f"distorted: rows have scores of different levels, {sorted(given)}"
            + (" or of none that they name" if None in named else "")
        )
    [own] = named
    if own is None:
        return _LEVELS if levels is None else levels
    if levels is not None and {*levels} != {*own}:
        raise ValueError(
            f"levels are {list(levels)}, and distorted has scores of {list(own)}: "
            "leave levels out, or give scores of each"
        )
    return own


def _columns(distorted: Any) -> Any:
    """Turn level -> scores into a row a sentence, (levels, replicates) in it."""
    try:  # in JSON, levels have become strings
        distorted = {float(level): scores for level, scores in distorted.items()}
    except (TypeError, ValueError) as err:
        raise ValueError(
            f"distorted: expected levels as 0.1 and scores ({err})"
        ) from err
    levels = sorted(distorted)
    rows = [
        torch.as_tensor(
            present(distorted[level], f"distorted[{level}]"), dtype=torch.float64
        )
        for level in levels
    ]
    shapes = {tuple(row.shape) for row in rows}
    if len(shapes) != 1 or rows[0].ndim not in (1, 2) or not rows[0].numel():
        raise ValueError(
            "distorted: every level needs as many scores as there are sentences, or so "
            f"many a replicate and equally many replicates; got shapes {sorted(shapes)}"
        )
    stacked = torch.stack([row.reshape(-1, row.shape[-1]) for row in rows])
    rows = stacked.permute(2, 0, 1).tolist()
    return {"distorted": rows, "distorted_levels": [levels] * len(rows)}


def _by_level(distorted: Any, levels: Any) -> Any:
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


def _entropies(levels: Any, unit: Any) -> Any:
    """Name entropies and their errors, in bits and in nats."""
    nats = {each.level: each.entropy for each in levels}
    bits = {level: entropy.bits() for level, entropy in nats.items()}
    return _named(f"bits_per_{unit}", bits) | _named(f"nats_per_{unit}", nats)


def _named(name: Any, numbers: Any) -> dict[str, Any]:
    """Name numbers of several levels and their errors; None stays None."""
    return {
        f"{name}{suffix}": {
            level: None if number is None else finite(getattr(number, part))
            for level, number in numbers.items()
        }
        for suffix, part in _PARTS.items()
    }


def _verdicts(result: Any, against: Any) -> Any:
    """Judge against another model at every level above the baseline."""
    names = ("nats_per_sentence", "ratio")
    same = ("baseline", "num_sentences", "num_words")
    own, other = (
        [_by_number(each, name) for name in names] for each in (result, against)
    )
    if [set(each) for each in own] != [set(each) for each in other] or any(
        against.get(name) != result[name] for name in same
    ):
        raise ValueError(
            "against: expected what compute returned for another model on the same "
            "text, levels and baseline"
        )
    verdicts = {}
    for level in sorted(own[0].keys() - {result["baseline"]}):
        numbers = [each[level] for each in (*own, *other)]
        # Without a ratio there is nothing to judge.
        verdicts[level] = None if None in numbers else str(verdict(*numbers))
    return verdicts


def _by_number(result: Any, name: Any) -> Any:
    """Return level -> number; in JSON, levels have become strings."""
    try:
        return {float(level): number for level, number in result[name].items()}
    except (KeyError, ValueError):
        return {}
