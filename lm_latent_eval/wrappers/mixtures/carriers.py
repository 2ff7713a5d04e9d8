"""Shares of an answer's probability by component, and the table of components.

The table has a row a component of every answer, or a draw of one:

    question, option, text    index of the document, index and text of the answer
    right                     score of the answer by the task; NaN without a choice
    log_likelihood            log p of the answer by the mixture, nats
    at_least, at_most         its confidence limits by draws, nats; see ``Estimate``
    log_weight, log_p         log pi_c, or -log K of K draws, and log p by the component
    accuracy                  score of the component's own choice among the answers
    carried                   whether this is the right answer, else the most probable
    prompt, order, ...        the component's variant of each factor
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import torch

from lm_latent_eval import parquet
from lm_latent_eval.estimators import Choice
from lm_latent_eval.wrappers.mixtures.scorer import MixtureAnswer, Parts

LISTED = 10
"""Largest number of variants in results; the file beside them has all."""
METADATA = b"lm_latent_eval_components"


@dataclass(frozen=True)
class Question:
    """A document of a task with its answers."""

    document: int
    texts: Sequence[str]
    answers: Sequence[MixtureAnswer]
    right: tuple[float, ...] | None
    """Score of each answer by the task; None without a choice."""

    @property
    def parts(self) -> list[Parts]:
        return [answer.parts for answer in self.answers]

    @property
    def carried(self) -> int:
        """Index of the right answer, else of the most probable one."""
        log_p = [answer.estimate.log_evidence for answer in self.answers]
        scores = self.right or log_p
        return scores.index(max(scores))

    @property
    def same(self) -> bool:
        first = self.parts[0]
        return all(
            (p.factors, p.names) == (first.factors, first.names) for p in self.parts
        )

    def accuracies(self) -> Sequence[float] | None:
        """Score of each component's own choice.

        None without a choice, if answers differ in their components, or if a component
        gives all of them probability zero.
        """
        if self.right is None or not self.same:
            return None
        log_p = np.array([parts.log_p for parts in self.parts])
        if np.isinf(log_p.max(0)).any():
            return None
        return [float(self.right[option]) for option in log_p.argmax(0)]

    def is_decided(self) -> bool | None:
        """Whether the best answer is certain at 95 %; None if it is no draw."""
        first = self.parts[0]
        is_draw = first.drawn and first.exact
        if not self.same or len(self.answers) < 2 or not is_draw:
            return None
        log_w = torch.tensor([[*parts.log_p] for parts in self.parts])
        return Choice.of(log_w.double()).decided is not None

    def rows(self) -> pd.DataFrame:
        tables = []
        for option, answer in enumerate(self.answers):
            parts, estimate = answer.parts, answer.estimate
            columns = {
                "question": self.document,
                "option": option,
                "text": self.texts[option],
                "right": np.nan if self.right is None else self.right[option],
                "log_likelihood": estimate.log_evidence,
                "at_least": np.nan if estimate.at_least is None else estimate.at_least,
                "at_most": np.nan if estimate.at_most is None else estimate.at_most,
                "log_weight": parts.log_weights,
                "log_p": np.array(parts.log_p),
                "accuracy": self.accuracies() or np.nan,
                "carried": option == self.carried,
            }
            variants = zip(*parts.names, strict=True)
            columns |= zip(parts.factors, variants, strict=True)
            tables.append(pd.DataFrame(columns))
        return pd.concat(tables)


def table(questions: Sequence[Question]) -> pd.DataFrame:
    return pd.concat([question.rows() for question in questions], ignore_index=True)


def carriers(questions: Sequence[Question], rows: pd.DataFrame) -> dict[str, Any]:
    """Shares of components in a task's answers, for results, as JSON."""
    parts = [q.parts[q.carried] for q in questions]
    sizes = [len(each.log_p) for each in parts]
    factors = {name: None for each in parts for name in each.factors}
    drawn = sum(each.drawn for each in parts)
    decided = [d for q in questions if (d := q.is_decided()) is not None]
    return {
        "questions": len(questions),
        "components": [min(sizes), max(sizes)],
        "drawn": drawn,
        **({"decided": sum(decided), "draws_asked": len(decided)} if decided else {}),
        "factors": {name: _variants(rows, name, drawn > 0) for name in factors},
    }


def _variants(rows: pd.DataFrame, factor: str, drawn: bool) -> list[dict[str, Any]]:
    """Share and accuracy of each variant, in descending order of shares.

    They are averages over the questions that have the variant or, if components are
    drawn, over all questions, since any question may have it.
    """
    rows = rows[rows.carried & rows[factor].notna()]
    weight = np.exp(rows.log_weight)
    share = np.exp(rows.log_weight + rows.log_p - rows.log_likelihood)
    parts = pd.DataFrame(
        {"weight": weight, "carries": share, "right": weight * rows.accuracy}
    )
    parts = parts.groupby([rows[factor].rename("name"), rows.question]).sum(min_count=1)
    variants = parts.assign(accuracy=parts.right / parts.weight).groupby("name")
    count, total = variants.size(), variants[["weight", "carries"]].sum()
    means = total.div(rows.question.nunique() if drawn else count, axis=0)
    means = means.assign(questions=count, accuracy=variants.accuracy.mean())
    order = (-means.carries * count).sort_values(kind="stable").index
    means = means.loc[order[:LISTED]].reset_index().astype(object)
    listed: list[dict[str, Any]] = means.where(means.notna(), None).to_dict("records")
    return listed


def write_components(path: Path, settings: dict[str, Any], rows: pd.DataFrame) -> None:
    """Write the table of components of a task, whole or not at all.

    ``settings`` are all that the numbers depend on, ``task`` included.
    """
    table = pa.Table.from_pandas(rows, preserve_index=False)
    parquet.write(path, table, METADATA, settings)
