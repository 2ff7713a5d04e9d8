"""Strict reading of YAML: ambiguous content is refused.

Plain values alone: no tags that make objects, no name that stands twice, no aliases, by
which a few lines stand for millions.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import yaml

from lm_latent_eval.files import one_line


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """A safe loader without aliases and double names."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.events.AliasEvent):
            line = self.peek_event().start_mark.line + 1
            raise yaml.YAMLError(f"line {line} has an alias (*): write it out")
        return super().compose_node(parent, index)

    def construct_mapping(
        self, node: yaml.MappingNode, deep: bool = False
    ) -> dict[Hashable, Any]:
        seen = set()
        for key, _ in node.value:
            name = self.construct_object(key, deep=True)
            if name in seen:
                line = key.start_mark.line + 1
                raise yaml.YAMLError(f"line {line}: {name!r:.60} stands twice")
            seen.add(name)
        found: dict[Hashable, Any] = super().construct_mapping(node, deep=deep)
        return found


def parse(text: str) -> Any:
    """Read one YAML value.

    Raises:
        ValueError: If it is none, or ambiguous.
    """
    loader = _Loader(text)
    try:
        return loader.get_single_data()
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as err:
        why = "nested too deeply" if isinstance(err, RecursionError) else one_line(err)
        raise ValueError(f"cannot be read ({why})") from err
    finally:
        loader.dispose()
