"""Imports go up one ladder: who knows whom can be read off the order of folders."""

from __future__ import annotations

import ast
from pathlib import Path

import lm_latent_eval

ROOT = Path(lm_latent_eval.__file__).parent
LADDER = (
    "arguments",
    "options",
    "extras",
    "durable",
    "settings",
    "uniforms",
    "values",
    "manifest",
    "registry",
    "weights",
    "estimators",
    "latent",
    "text",
    "inference",
    "training",
    "models",
    "convert",
    "demo",
    "scoring",
    "wrappers",
    "testing",
    "metric",
    "task",
    "report",
    "contrastive",
    "study",
    "distortion",
    "harness",
    "cli",
    "__main__",
)
"""A room may import from itself and from the rooms before it."""


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def rooms() -> dict[Path, str]:
    files = [p for p in ROOT.rglob("*.py") if p != ROOT / "__init__.py"]
    return {p: p.relative_to(ROOT).with_suffix("").parts[0] for p in files}


def test_every_room_is_on_the_ladder():
    assert set(rooms().values()) == set(LADDER)


def test_nobody_imports_from_below():
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path, room in rooms().items()
        for name in imports(path)
        if name.startswith("lm_latent_eval.")
        and LADDER.index(name.split(".")[1]) > LADDER.index(room)
    ]
    assert not wrong


def test_only_the_harness_knows_lm_eval():
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path, room in rooms().items()
        for name in imports(path)
        if name.split(".")[0] in ("lm_eval", "evaluate") and room != "harness"
    ]
    assert not wrong
