"""What the tests of figures share: a page to draw on, and data whose errors grow."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

TRUE = -torch.arange(1, 41, dtype=torch.float64)
MODEL = 1.25 * TRUE - torch.arange(40).remainder(3)


def axes() -> Axes:
    return Figure().subplots()


def written(path: Path) -> str:
    """Return the SVG of a figure whose PNG and PDF are there as well."""
    assert path.with_name(path.name + ".png").read_bytes()[1:4] == b"PNG"
    assert path.with_name(path.name + ".pdf").read_bytes()[:4] == b"%PDF"
    return path.with_name(path.name + ".svg").read_text(encoding="utf-8")


def says(folder: Path, draw, texts: tuple[str, ...]) -> str:
    """Expect a figure with texts in some hundred kilobytes; return its SVG."""
    draw(folder / "figure")
    svg = written(folder / "figure")
    assert [text for text in texts if text not in svg] == []
    assert len(svg) < 300_000
    return svg


def refused(folder: Path, message: str, draw) -> None:
    """Expect an error, and no file."""
    with pytest.raises(ValueError, match=message):
        draw(folder / "figure")
    assert not list(folder.iterdir())


def points(line) -> list[tuple[float, float]]:
    return [tuple(each) for each in line.get_xydata().tolist()]


def corners(band) -> set[tuple[float, float]]:
    return {tuple(each) for each in band.get_paths()[0].vertices.tolist()}
