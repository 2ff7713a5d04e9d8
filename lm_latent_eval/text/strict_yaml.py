"""Strict reading of YAML files: ambiguous content is refused.

Plain values alone: no tags that make objects, no name that stands twice, no aliases, by
which a few lines stand for millions.
"""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from lm_latent_eval.files import one_line
from lm_latent_eval.text import strict_json
from lm_latent_eval.text.files import read_text


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """A safe loader without aliases and double names."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Refuse an alias.

        Raises:
            YAMLError: If there is one.
        """
        if self.check_event(yaml.events.AliasEvent):
            line = self.peek_event().start_mark.line + 1
            raise yaml.YAMLError(f"line {line} has an alias (*): write it out")
        return super().compose_node(parent, index)

    def construct_mapping(
        self, node: yaml.MappingNode, deep: bool = False
    ) -> dict[Hashable, Any]:
        """Refuse a name that stands twice.

        Raises:
            YAMLError: If one does.
        """
        names = [self.construct_object(name, deep=True) for name, _ in node.value]
        for place, name in enumerate(names):
            if name in names[:place]:
                line = node.value[place][0].start_mark.line + 1
                raise yaml.YAMLError(f"line {line}: {name!r:.60} stands twice")
        found: dict[Hashable, Any] = super().construct_mapping(node, deep=deep)
        return found


def read(path: Path) -> Any:
    """Read a file of one YAML value, or of one JSON value where its name says so.

    Raises:
        ValueError: If it is none, or not UTF-8.
    """
    path = Path(path)
    try:
        if path.suffix == ".json":
            return strict_json.read(path)
        loader = _Loader(read_text(path))
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as err:
        if str(path) in str(err):
            raise
        why = "nested too deeply" if isinstance(err, RecursionError) else one_line(err)
        raise ValueError(f"{path} cannot be read ({why})") from err
