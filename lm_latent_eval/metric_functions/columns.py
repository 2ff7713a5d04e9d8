"""Columns of the metric functions: required, optional, complete, whole numbers."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from lm_latent_eval.options import one_of


def complete(
    inputs: Mapping[str, Any],
    needed: Sequence[str],
    optional: Sequence[str] = (),
    *,
    stored: int = 0,
) -> dict[str, Any]:
    """Check the columns given to a metric and fill the optional ones with None.

    ``evaluate`` itself takes all columns or none, and of a missing one says only that
    it has no length.

    Args:
        inputs: Keyword arguments of ``compute``.
        needed: Columns without which there is no result.
        optional: Columns that may be missing.
        stored: Rows that came by ``add`` before; then no column is needed.

    Raises:
        ValueError: If a needed column is missing, one is empty or no list, or they
            differ in length.

    Example:
        >>> complete({"a": [1, 2]}, ["a"], ["b"])
        {'a': [1, 2], 'b': [None, None]}
        >>> complete({"a": [1, 2]}, ["a", "b"])
        Traceback (most recent call last):
        ...
        ValueError: missing: b (compute needs a and b)
    """
    columns = (*needed, *optional)
    given = [name for name in columns if inputs.get(name) is not None]
    if not given and stored:
        return dict(inputs)
    missing = [name for name in needed if name not in given]
    if missing:
        raise ValueError(
            f"missing: {', '.join(missing)} (compute needs {' and '.join(needed)})"
        )
    lengths = {name: _length(name, inputs[name]) for name in given}
    if empty := next((name for name, length in lengths.items() if not length), None):
        raise ValueError(f"{empty} is empty: there is nothing to compute")
    if len({*lengths.values()}) > 1:
        lengths_of = ", ".join(f"{length} {name}" for name, length in lengths.items())
        raise ValueError(f"columns of different lengths: {lengths_of}")
    rows = lengths[given[0]]
    return {**inputs, **{c: [None] * rows for c in columns if c not in given}}


def _length(name: str, column: Any) -> int:
    try:
        return len(column)
    except TypeError as err:
        raise ValueError(f"{name}={column!r}: expected a list, one an input") from err


def known(
    inputs: Mapping[str, Any],
    *functions: Callable[..., Any],
    others: Iterable[str] = (),
) -> dict[str, Any]:
    """Return the arguments of a metric that are not None, or refuse unknown ones.

    Args:
        inputs: Keyword arguments of ``compute``.
        functions: Functions that take them; of classes' constructors, such as
            ``Rate.of``, the options after their columns alone.
        others: Further names.

    Raises:
        ValueError: If none takes one of them; near names are suggested.

    Example:
        >>> def compute(log_scores, levels=(0.1,)):
        ...     pass
        >>> known({"level": [0.1]}, compute)
        Traceback (most recent call last):
        ...
        ValueError: input='level': expected one of ... (did you mean levels?)
    """
    names = [*others]
    for function in functions:
        kinds: list[Any] = [inspect.Parameter.KEYWORD_ONLY]
        if not isinstance(getattr(function, "__self__", None), type):
            kinds.append(inspect.Parameter.POSITIONAL_OR_KEYWORD)
        parameters = inspect.signature(function).parameters.values()
        names += [p.name for p in parameters if p.kind in kinds]
    for name in inputs:
        one_of("input", name, list(dict.fromkeys(names)))
    return {name: value for name, value in inputs.items() if value is not None}


def finite(number: float | None) -> float | None:
    """Return a number that strict JSON holds; None for one that is infinite."""
    return None if number is None or math.isinf(number) else number


def present(values: Sequence[Any], name: str) -> Sequence[Any]:
    """Return a column, a list or lists of lists, in which nothing is missing.

    Raises:
        ValueError: If there is a None in it.

    Example:
        >>> present([[-1.0], [-2.0, None]], "log_weights")
        Traceback (most recent call last):
        ...
        ValueError: log_weights[1][1] is missing
    """
    for index, value in enumerate(values):
        place = f"{name}[{index}]"
        if value is None:
            raise ValueError(f"{place} is missing")
        if isinstance(value, list | tuple):
            present(value, place)
    return values


def whole_counts(counts: Sequence[float], name: str, *, least: int = 0) -> list[int]:
    """Return a column of counts as integers.

    ``evaluate`` would cut off what is behind the point of a column of integers, so
    columns of counts are floating point, and checked here.

    Args:
        counts: One an input.
        name: Name of the column.
        least: Least value of each.

    Raises:
        ValueError: If one is missing, too small or no whole number.

    Example:
        >>> whole_counts([2.0, 1.0], "num_tokens")
        [2, 1]
        >>> whole_counts([2.0, 1.5], "num_tokens")
        Traceback (most recent call last):
        ...
        ValueError: num_tokens[1] is 1.5; expected a whole number, at least 0
    """
    for index, count in enumerate(present(counts, name)):
        if not (count >= least and float(count).is_integer()):
            raise ValueError(
                f"{name}[{index}] is {count:g}; expected a whole number, at least "
                f"{least}"
            )
    return [int(count) for count in counts]
