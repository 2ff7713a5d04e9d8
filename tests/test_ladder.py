"""Imports go up one ladder: who knows whom can be read off the order of folders."""

from __future__ import annotations

import ast
from pathlib import Path

import lm_latent_eval

ROOT = Path(lm_latent_eval.__file__).parent
LADDER = (
    "version",
    "options",
    "files",
    "values",
    "parquet",
    "ledger",
    "uniforms",
    "manifest",
    "registry",
    "devices",
    "estimators",
    "latent",
    "text",
    "inference",
    "training",
    "models",
    "networks",
    "convert",
    "demo",
    "scoring",
    "wrappers",
    "testing",
    "extend",
    "metric",
    "task",
    "report",
    "contrastive",
    "study",
    "distortion",
    "metric_functions",
    "metrics",
    "audit",
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


def modules() -> dict[str, set[str]]:
    """Every module of ours -> those of ours that it imports, for types as well."""
    paths = {
        ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(
            ".__init__"
        ): path
        for path in ROOT.rglob("*.py")
    }
    found = {}
    for name, path in paths.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found[name] = {
            full if (full := f"{node.module}.{alias.name}") in paths else node.module
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module in paths
            for alias in node.names
        } - {name, ROOT.name}
    return found


def test_no_modules_import_each_other_in_a_circle():
    """The package itself is left out: it imports its public names late."""
    waiting = {name: used for name, used in modules().items() if name != ROOT.name}
    assert len(waiting) > 150, "premise: they were found"
    while free := {name for name, used in waiting.items() if not used & waiting.keys()}:
        waiting = {name: used for name, used in waiting.items() if name not in free}
    assert not waiting, f"in circles, or above one: {', '.join(sorted(waiting))}"
