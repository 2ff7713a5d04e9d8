"""Gives tensors of other code their names in a model of ours."""

from __future__ import annotations

import re
from collections.abc import Iterable


def renamed(name: str, patterns: Iterable[tuple[str, str]], kind: str) -> str:
    r"""Return our name of a tensor, by the first pattern that matches.

    Args:
        name: Its name there.
        patterns: Regular expressions and what to write for them.
        kind: Of the model, for the error.

    Raises:
        ValueError: If no pattern matches.

    Example:
        >>> renamed("rnn.0.bias", [(r"^rnn\.(\d)\.", r"trunk.rnn.\1.")], "RNNG")
        'trunk.rnn.0.bias'
    """
    for pattern, new in patterns:
        found, hits = re.subn(pattern, new, name)
        if hits:
            return found
    raise ValueError(f"{name!r} is not a tensor of an original {kind}")
