"""Rows that ``evaluate`` stores by ``add`` and ``add_batch``, for ``compute``.

Nothing of ``evaluate`` is imported: it takes the first class of its own that a module
has for the metric.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np

from lm_latent_eval.options import one_of


class Rows:
    """Mixin of a metric's module: columns are complete before they are stored."""

    columns: ClassVar[tuple[str, ...]]
    """Names of the stored columns."""
    prepare: ClassVar[Callable[..., tuple[dict[str, Any], dict[str, Any]]]]
    """Function of the metric that turns the user's arguments into columns and facts."""

    def compute(self, **inputs: Any) -> Any:
        """Compute the metric; of stored rows, of all processes' together."""
        stored = len(self)  # type: ignore[arg-type]  # evaluate counts them
        columns, facts = type(self).prepare(inputs, stored=stored)
        host: Any = super()
        result = host.compute(**columns)
        return result if result is None else {**result, **facts}

    def add_batch(self, **inputs: Any) -> None:
        """Store some rows; optional columns may be left out.

        Raises:
            ValueError: If something is no column: ``compute`` takes options and texts.
        """
        for name in inputs:
            one_of("column", name, self.columns)
        columns, _ = type(self).prepare(inputs)
        host: Any = super()
        host.add_batch(**columns)

    def add(self, **row: Any) -> None:
        """Store one row, in which each column has one value.

        Raises:
            ValueError: As :meth:`add_batch`.
        """
        self.add_batch(**{name: _one(value) for name, value in row.items()})


def _one(value: Any) -> Any:
    """Return the column of one value; scores by level become columns of scores."""
    if not isinstance(value, Mapping):
        return [value]
    return {
        level: [[copy] for copy in scores] if np.ndim(scores) else [scores]
        for level, scores in value.items()
    }
