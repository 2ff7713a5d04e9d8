"""Builds the page on PyPI from README.md, part of which needs a checkout."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(!?)\[([^\]]+)\]\((?!https?:|#)([^)]+)\)")
"""A relative link or picture of Markdown: its text, and a path."""

SOURCE_ONLY = re.compile(r"(?s)<!-- source only -->.*?<!-- end -->\n")
"""The commands of a checkout."""


def readme(text: str, address: str | None) -> str:
    """Return README.md for readers of PyPI, who have no checkout.

    Relative links are made absolute, or written out, and pip gets the project's name.

    Args:
        text: The file.
        address: Of the source, below which its paths lie; None where there is none.
    """
    text = SOURCE_ONLY.sub("", text).replace("'.[report]'", "'lm-latent-eval[report]'")
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
