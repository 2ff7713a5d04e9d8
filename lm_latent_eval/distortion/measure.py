"""Errors of learners on sequences of a language: scores, statistics and a table.

Scores are one data frame, a row a sequence:

    model        name of the learner
    kind         language, perturbed or random
    index        number of the sequence in its corpus, or of the random one
    edits        perturbations
    num_tokens   tokens, the end included
    ended        whether there is an end; else both are of a beginning
    true_log_p   nats under the language; -inf is a probability of zero
    model_log_p  nats under the learner, exact or estimated
    stderr       Monte Carlo standard error of model_log_p; 0 is exact
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from tqdm import tqdm

from lm_latent_eval.distortion.corpus import Corpus
from lm_latent_eval.distortion.edits import LANGUAGE, PERTURBED, RANDOM, Altered
from lm_latent_eval.distortion.learners import Learner
from lm_latent_eval.distortion.statistics import ErrorCurve, JointHistogram
from lm_latent_eval.distortion.statistics.bins import FEWEST, Bins
from lm_latent_eval.estimators import Bound, bootstrap_interval, perplexity
from lm_latent_eval.files import replacing, write_text
from lm_latent_eval.ledger.settings import plain
from lm_latent_eval.options import whole

TENTHS = 10
MAP_COLUMNS = 60
"""Approximate number of ranges of true log-probability in a map."""
_ROWS_AT_ONCE = 4096
"""Sequences scored together; moves no number."""


def score(
    learner: Learner,
    corpus: Corpus,
    *,
    num_sequences: int | None = None,
    altered: Altered | None = None,
    quiet: bool = True,
) -> pd.DataFrame:
    """Score sequences of a corpus, and others made from them.

    Args:
        learner: Model of the corpus' tokens.
        corpus: Sequences of a language.
        num_sequences: Number of sequences, from the first on; None is all of them.
        altered: Perturbed and random sequences that are scored too.
        quiet: Show no progress bar.

    Returns:
        Scores without the column ``model``.

    Raises:
        ValueError: If the corpus has fewer sequences, one cannot be scored, or its
            estimate has no standard error.
    """
    total = corpus.num_sequences if num_sequences is None else num_sequences
    if not 1 <= total <= corpus.num_sequences:
        raise ValueError(
            f"num_sequences={total}: {corpus.directory} has {corpus.num_sequences}"
        )
    indices = corpus.indices[:total]
    pieces = [indices[i : i + _ROWS_AT_ONCE] for i in range(0, total, _ROWS_AT_ONCE)]
    kinds = [(LANGUAGE, 0), *(altered.kinds if altered else [])]
    frames = []
    with tqdm(
        total=total * len(kinds), unit=" sequences", leave=False, disable=quiet
    ) as bar:
        for (kind, edits), numbers in product(kinds, pieces):
            sample = (
                altered.read(kind, edits, numbers)
                if altered and kind != LANGUAGE
                else corpus.read(numbers)
            )
            # A learner that draws random numbers draws others for each sequence.
            own = "text" if kind == LANGUAGE else f"{kind} {edits}"
            names = [f"{own}/{index}" for index in numbers]
            scores = learner.score(sample.sequences, names)
            if (unknown := ~scores.stderr.isfinite()).any():
                raise ValueError(
                    f"{names[int(unknown.nonzero()[0])]}: its estimate has no standard "
                    "error: give more samples (num_samples), 2 at least"
                )
            columns = {
                "kind": kind,
                "index": numbers,
                "edits": edits,
                "num_tokens": [len(ids) for ids in sample.sequences],
                "ended": [ids[-1] == corpus.end_id for ids in sample.sequences],
                "true_log_p": sample.log_p.numpy(),
                "model_log_p": scores.log_p.numpy(),
                "stderr": scores.stderr.numpy(),
            }
            frames.append(pd.DataFrame(columns))
            bar.update(len(numbers))
    return pd.concat(frames, ignore_index=True)


@dataclass(frozen=True)
class Errors:
    """Sequences of one kind, those whose errors are finite, and how many are not.

    An error is a difference of logarithms: it has no value where the language never
    utters a sequence, or the model rules it out. Such sequences are counted here and
    stand in no mean.
    """

    rows: pd.DataFrame
    """Sequences with a finite error."""
    impossible: int
    """Sequences of probability zero under the language."""
    ruled_out: int
    """Possible sequences of probability zero under the model."""

    @classmethod
    def of(cls, scores: pd.DataFrame) -> Errors:
        impossible = scores.true_log_p == -math.inf
        ruled_out = ~impossible & (scores.model_log_p == -math.inf)
        rows = scores[~impossible & ~ruled_out]
        return cls(rows, int(impossible.sum()), int(ruled_out.sum()))

    @property
    def errors(self) -> pd.Series:
        """Error of each sequence, nats; below 0 the model underestimates it."""
        return self.rows.model_log_p - self.rows.true_log_p

    @property
    def both(self) -> tuple[Tensor, Tensor]:
        return column(self.rows, "true_log_p"), column(self.rows, "model_log_p")

    def curve(self, num_bins: int, bins: Bins = Bins.WIDTH) -> ErrorCurve | None:
        """Return the mean error by true log-probability, in at most so many bins.

        Fewer where sequences are few, so that a bin has more than ten; None for ten
        sequences or fewer.
        """
        if len(self.rows) < FEWEST:
            return None
        return ErrorCurve.of(
            *self.both,
            stderr=column(self.rows, "stderr"),
            bins=bins,
            num_bins=min(num_bins, len(self.rows) // FEWEST),
        )

    def summary(self, bound: Bound) -> dict[str, Any]:
        """Return a row of the table: numbers by name; NaN is unknown."""
        rows = self.rows
        row: dict[str, Any] = {"num_sequences": len(rows)}
        whole, tenths = self.curve(1, Bins.COUNT), self.curve(TENTHS, Bins.COUNT)
        if whole and tenths:
            has_bias = (
                bound is not Bound.STRICT_LOWER
            )  # how far off a beam's are is not
            row |= {
                "mean_error": whole.mean_error,
                "lower": whole.bins.lower[0],
                "upper": whole.bins.upper[0],
                "estimator_bias": whole.estimator_bias if has_bias else math.nan,
                "share_underestimated": whole.share_underestimated,
                "rarest_tenth": tenths.bins.mean_error.iloc[0],
                "most_probable_tenth": tenths.bins.mean_error.iloc[-1],
            }
        if len(rows):
            tokens = int(rows.num_tokens.sum())
            row |= {
                "perplexity": perplexity(rows.model_log_p.sum(), tokens),
                "language_perplexity": perplexity(rows.true_log_p.sum(), tokens),
            }
        return row | {
            "impossible": self.impossible,
            "ruled_out": self.ruled_out,
            "cut": int((~rows.ended).sum()),
        }


def column(rows: pd.DataFrame, name: str) -> Tensor:
    return torch.from_numpy(rows[name].to_numpy(copy=True))


@dataclass(frozen=True)
class Measured:
    """Statistics of the errors of one learner."""

    settings: dict[str, Any]
    """Settings that its numbers depend on."""
    bound: Bound
    """Side of log p_M on which the numbers lie."""
    curve: ErrorCurve | None
    """Mean error by true log-probability, of sequences of the language; None for ten
    sequences or fewer."""
    tenths: ErrorCurve | None
    """Mean error in bins of equal count: ten, or fewer of few sequences."""
    random: ErrorCurve | None
    """Mean error of random sequences by true log-probability."""
    histogram: JointHistogram | None
    lengths: pd.DataFrame
    """Mean error by length; see :func:`errors_by_length`."""
    map: pd.DataFrame | None
    """Mean error by rarity and perturbations; see :func:`error_map`. None if none were
    perturbed."""
    summaries: tuple[dict[str, Any], ...]
    """Row of the table for each kind of sequences."""

    @classmethod
    def of(cls, learner: Learner, scores: pd.DataFrame, num_bins: int = 50) -> Measured:
        whole("num_bins", num_bins, 1)
        groups = {
            key: Errors.of(some)
            for key, some in scores.groupby(["kind", "edits"], sort=False)
        }
        language, random = groups[LANGUAGE, 0], groups.get((RANDOM, 0))
        return cls(
            settings=learner.settings(),
            bound=learner.bound,
            curve=language.curve(num_bins),
            tenths=language.curve(TENTHS, Bins.COUNT),
            random=random.curve(num_bins) if random else None,
            histogram=JointHistogram.of(*language.both, num_bins=num_bins)
            if len(language.rows)
            else None,
            lengths=errors_by_length(language),
            map=error_map(scores[scores.kind != RANDOM])
            if (scores.kind == PERTURBED).any()
            else None,
            summaries=tuple(
                {"kind": kind, "edits": edits, **errors.summary(learner.bound)}
                for (kind, edits), errors in groups.items()
            ),
        )


def errors_by_length(group: Errors) -> pd.DataFrame:
    r"""Return mean errors by length, observed and expected from errors a token.

    .. math::
        \mathrm{observed}(n) = \mathrm{mean}_{|x| = n}\, \mathrm{error}(x), \qquad
        \mathrm{expected}(n) = n\, \mathrm{mean}_x\, \mathrm{error}(x) / |x|

    Only of lengths that more than ten sequences have. The comparison is a fair test of
    errors that grow in proportion to length, and no decomposition where they do not: a
    token of a short sequence counts for more than one of a long sequence, so that the
    two need not agree even in total. The length is ``num_tokens``, the end included.

    Source: LeBrun, Sordoni and O'Donnell (2022), appendix A.1.5 and figure 12.

    Returns:
        ``num_tokens``, ``count``, ``mean_error`` with the ends ``lower`` and ``upper``
        of its bootstrap interval, and ``expected``; nats.
    """
    length, lines = group.rows.num_tokens, []
    token_error = (group.errors / length).mean()
    for num_tokens, errors in group.errors.groupby(length):
        if len(errors) >= FEWEST:
            values = torch.from_numpy(errors.to_numpy(copy=True))
            ends = bootstrap_interval(values, seed=(0, num_tokens))
            expected = num_tokens * token_error
            lines.append((num_tokens, len(errors), errors.mean(), *ends, expected))
    columns = ["num_tokens", "count", "mean_error", "lower", "upper", "expected"]
    return pd.DataFrame(lines, columns=columns)


def error_map(scores: pd.DataFrame) -> pd.DataFrame:
    r"""Return mean errors by true log-probability and number of perturbations.

    Of the finite errors, in ranges of one width w:
    :math:`k w \le \log p_L(x) < (k + 1) w`. The width is round, and makes 60 ranges or
    somewhat fewer.

    Source: LeBrun, Sordoni and O'Donnell (2022), section 4.4 and figure 5.

    Returns:
        ``edits``, ``lowest`` and ``highest`` (the range), ``count``, ``mean_error``;
        nats.
    """
    group = Errors.of(scores)
    true_log_p, edits = group.rows.true_log_p, group.rows.edits
    width = _round_width(np.ptp(true_log_p) / MAP_COLUMNS if len(true_log_p) else 1)
    k = np.floor(true_log_p / width).rename("k")
    cells = group.errors.groupby([edits, k]).agg(["size", "mean"]).reset_index()
    return pd.DataFrame(
        {
            "edits": cells.edits,
            "lowest": cells.k * width,
            "highest": (cells.k + 1) * width,
            "count": cells["size"],
            "mean_error": cells["mean"],
        }
    )


def _round_width(width: float) -> float:
    """Return the least of 1, 2 or 5 times a power of ten that is as wide."""
    return next(
        w
        for exponent in range(-6, 9)
        for digit in (1, 2, 5)
        if (w := digit * 10.0**exponent) >= width
    )


def table(models: Mapping[str, Measured]) -> pd.DataFrame:
    """Return the summaries of all models, a row a model and kind of sequences."""
    rows = [
        {"model": name, **summary}
        for name, measured in models.items()
        for summary in measured.summaries
    ]
    return pd.DataFrame(rows)


def shown(rows: pd.DataFrame) -> str:
    """Write a table for people: decimals come from the interval of each number."""
    lines = []
    for row in rows.to_dict("records"):
        kind = f"{row['edits']} perturbed" if row["edits"] else row["kind"]
        line = {"model": row["model"], "sequences": f"{row['num_sequences']:,} {kind}"}
        if math.isfinite(row.get("mean_error", math.nan)):
            half = (row["upper"] - row["lower"]) / 2
            digits = max(0, 1 - math.floor(math.log10(half))) if half > 0 else 3
            numbers = (f"{row[n]:.{digits}f}" for n in ("mean_error", "lower", "upper"))
            line["mean error, nats (95 %)"] = "{} ({} .. {})".format(*numbers)
            bias = row["estimator_bias"]
            line["estimator's"] = f"{bias:.2g}" if math.isfinite(bias) else "unknown"
            line["underestimated"] = f"{row['share_underestimated']:.1%}"
            for name in ("rarest_tenth", "most_probable_tenth"):
                line[name.replace("_", " ")] = f"{row[name]:.{digits}f}"
        for name in ("impossible", "ruled_out", "cut"):
            if rows[name].any():
                line[name.replace("_", " ")] = f"{row[name]:,}"
        lines.append(line)
    return str(pd.DataFrame(lines).fillna("").to_string(index=False))


def write(
    output: Path, scores: Mapping[str, pd.DataFrame], models: Mapping[str, Measured]
) -> None:
    """Write ``scores.csv``, ``table.csv`` and ``numbers.json`` into a folder.

    Numbers that are infinite or none are strings in the JSON file, which has neither.
    """
    output.mkdir(parents=True, exist_ok=True)
    every = pd.concat([rows.assign(model=name) for name, rows in scores.items()])
    every = every[["model", *every.columns.drop("model")]]
    for name, rows in (("scores", every), ("table", table(models))):
        with replacing(output / f"{name}.csv") as partial:
            rows.to_csv(partial, index=False)
    numbers = plain(
        {name: asdict(each, dict_factory=_records) for name, each in models.items()}
    )
    text = json.dumps(numbers, indent=1, allow_nan=False)
    write_text(output / "numbers.json", text + "\n")


def _records(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    return {
        name: value.to_dict("records") if isinstance(value, pd.DataFrame) else value
        for name, value in fields
    }
