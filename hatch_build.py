"""Builds what PyPI shows: README.md, whose relative links would lead nowhere there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(!?)\[([^\]]+)\]\((?!https?:|#)([^)]+)\)")
"""A relative link or picture of Markdown: what it says, and a path."""


def readme(text: str, address: str | None) -> str:
    """Return README.md with its relative links made absolute, or written out.

    Args:
        text: The file.
        address: Of the source, below which its paths lie; None where there is none.
    """
    if address is not None:
        return LINK.sub(rf"\1[\2]({address.rstrip('/')}/\3)", text)
    return (
        LINK.sub(r"\2 (`\3`)", text)
        + "\nPaths are those of the source archive "
        + "(`pip download --no-deps --no-binary lm-latent-eval lm-latent-eval`).\n"
    )


class Readme(MetadataHookInterface):
    """Gives the project's metadata its long description."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set it."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        address = metadata.get("urls", {}).get("Source")
        shown = {"content-type": "text/markdown", "text": readme(text, address)}
        metadata["readme"] = shown
