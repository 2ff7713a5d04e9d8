"""The components of every answer in a file: a Parquet row an answer.

``log_likelihood`` is that of the mixture, ``components`` name the variants of every
factor, one component after the other, and the variance of p over them stands beside
what moves it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from lm_latent_eval import parquet
from lm_latent_eval.wrappers.mixtures.worth import Question

METADATA = b"lm_latent_eval_components"
_NUMBERS, _NAMES = pa.list_(pa.float64()), pa.list_(pa.string())
SCHEMA = pa.schema(
    {
        "document": pa.int64(),
        "option": pa.int64(),
        "text": pa.string(),
        "right": pa.float64(),
        "log_likelihood": pa.float64(),
        "at_least": pa.float64(),
        "at_most": pa.float64(),
        "factors": _NAMES,
        "components": pa.list_(_NAMES),
        "log_weights": _NUMBERS,
        "log_p": _NUMBERS,
        "variance_of": _NAMES,
        "variance": _NUMBERS,
    }
)


def write(path: Path, settings: dict[str, Any], questions: Sequence[Question]) -> None:
    """Write the components of a task's answers, whole or not at all.

    Args:
        path: A Parquet file.
        settings: What the numbers depend on, ``task`` among it.
        questions: Of the task.
    """
    columns: dict[str, list[Any]] = {name: [] for name in SCHEMA.names}
    for question in questions:
        for number, option in enumerate(question.options):
            variance = option.variance()
            row = {
                "document": question.document,
                "option": number,
                "text": option.text,
                "right": None if question.right is None else question.right[number],
                "log_likelihood": option.log_p,
                "at_least": option.at_least,
                "at_most": option.at_most,
                "factors": option.parts.factors,
                "components": option.parts.names,
                "log_weights": option.parts.log_weights,
                "log_p": [*option.parts.log_p],
                "variance_of": [*variance],
                "variance": [*variance.values()],
            }
            for name, value in row.items():
                columns[name].append(value)
    parquet.write(path, pa.table(columns, schema=SCHEMA), METADATA, settings)
