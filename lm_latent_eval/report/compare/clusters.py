"""What texts and questions are part of: those of one passage are not independent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

PASSAGES = (
    *("cluster", "passage_id", "section_id", "story_id", "article_id", "context_id"),
    *("passage", "context", "article", "paragraph", "story", "background"),
)
"""Fields of data sets that say so by themselves, where several questions share one."""
NONE = "none"
"""As a field: every text stands for itself."""
SUBTASK = "subtask"
TEXT = "text"
"""Texts that stand several times in a run: its copies are one."""


@dataclass(frozen=True)
class Clusters:
    """Which cluster each unit is in."""

    field: str
    names: Sequence[str]

    @property
    def number(self) -> int:
        """Of clusters."""
        return len({*self.names})

    def __str__(self) -> str:
        """Say what errors allow for."""
        return f"{self.number:,} clusters ({self.field})"


def find(fields: Sequence[Mapping[str, str]], field: str | None) -> Clusters | None:
    """Return what units are part of, if it is known and several share one.

    Args:
        fields: What is known of each unit.
        field: Which to take; ``none`` is none, None the first of ``PASSAGES``.

    Raises:
        ValueError: If a unit lacks the field that was asked for.
    """
    if field == NONE:
        return None
    known = [name for name in fields[0] if all(name in each for each in fields)]
    if field is None:
        for name in PASSAGES:
            if name in known and len({each[name] for each in fields}) < len(fields):
                return Clusters(name, [each[name] for each in fields])
        return None
    if field not in known:
        raise ValueError(
            f"--cluster {field}: not every text or question says its {field}; they say "
            f"{', '.join(known) or 'nothing'}. Sample logs of lm_eval (--log_samples), "
            "inspect's metadata and columns of a CSV have such fields"
        )
    return Clusters(field, [each[field] for each in fields])
