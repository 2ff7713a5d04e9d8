"""Figures as files: PNG to look at, SVG for pages, PDF for papers.

The files depend on what is drawn alone: they hold no date and no random name. Fonts are
in them (as outlines in an SVG, whole in a PDF), so they look the same on every machine.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLE: dict[str, Any] = {
    "svg.hashsalt": "lm-latent-eval",
    "svg.fonttype": "path",
    "pdf.fonttype": 42,  # TrueType: journals refuse the default, Type 3
}
"""What a figure has to be drawn with, for its files to be as is said above."""
_UNDATED: dict[str, dict[str, Any]] = {
    "png": {},
    "svg": {"Date": None},
    "pdf": {"CreationDate": None},
}
ENDINGS = tuple(_UNDATED)


def save(figure: Figure, stem: Path, *, dots: int, embedded: int | None = None) -> None:
    """Write a figure as ``STEM.png``, ``STEM.svg`` and ``STEM.pdf``.

    Args:
        figure: Drawn under ``STYLE``.
        stem: The files without their endings; the folder is made if need be.
        dots: An inch, of the PNG.
        embedded: The same of what SVG and PDF hold as pixels; None is as in the PNG.
    """
    stem.parent.mkdir(parents=True, exist_ok=True)
    for kind, metadata in _UNDATED.items():
        figure.savefig(
            stem.with_name(f"{stem.name}.{kind}"),
            dpi=dots if kind == "png" else embedded or dots,
            metadata=metadata,
        )
