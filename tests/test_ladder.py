"""What imports what: the order of folders, what is public, and what start-up costs."""

from __future__ import annotations

import ast
import doctest
import json
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import lm_latent_eval
from lm_latent_eval import extend
from tests.conftest import PROJECT

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
    "compiled",
    "estimators",
    "text",
    "latent",
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
    "folders",
    "report",
    "contrastive",
    "distortion",
    "metric_functions",
    "metrics",
    "audit",
    "harness",
    "cli",
    "__main__",
)
"""A room may import from itself and from the rooms before it."""


@cache
def statements(code: str) -> list[ast.Import | ast.ImportFrom]:
    """Return those by which some code imports, for types as well."""
    every = ast.walk(ast.parse(code))
    return [node for node in every if isinstance(node, ast.Import | ast.ImportFrom)]


def imports(code: str) -> set[str]:
    """Return the modules that some code imports."""
    found = set()
    for node in statements(code):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif node.module:
            found.add(node.module)
    return found


ROOMS = {
    path: path.relative_to(ROOT).with_suffix("").parts[0]
    for path in ROOT.rglob("*.py")
    if path != ROOT / "__init__.py"
}

ALONE = ("estimators", "devices", "version")


def may_import(room: str, name: str) -> bool:
    """Say whether a file of a room may import a module."""
    package, _, inner = name.partition(".")
    if package in ("lm_eval", "evaluate"):
        return room == "harness"
    if package != ROOT.name or not inner:
        return True
    other = inner.split(".")[0]
    below = LADDER.index(other) > LADDER.index(room)
    return not below and (room not in ALONE or other in ALONE)


def test_nobody_imports_from_below():
    """Only the harness knows lm-eval, and estimators stand alone."""
    assert {*ROOMS.values()} == {*LADDER}
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path, room in ROOMS.items()
        for name in imports(path.read_text(encoding="utf-8"))
        if not may_import(room, name)
    ]
    assert not wrong


def modules() -> dict[str, set[str]]:
    """Every module of ours -> those of ours that it imports."""
    paths = {
        ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(
            ".__init__"
        ): path
        for path in ROOT.rglob("*.py")
    }
    found = {}
    for name, path in paths.items():
        found[name] = {
            full if (full := f"{node.module}.{alias.name}") in paths else node.module
            for node in statements(path.read_text(encoding="utf-8"))
            if isinstance(node, ast.ImportFrom) and node.module in paths
            for alias in node.names
        } - {name, ROOT.name}
    return found


def test_no_modules_import_each_other_in_a_circle():
    """The package itself is left out: it imports its public names late."""
    used = {name: used for name, used in modules().items() if name != ROOT.name}
    assert len(used) > 100, "premise: they were found"
    TopologicalSorter(used).prepare()  # else a CycleError says which


# -- what start-up costs ---------------------------------------------------------------

IMPORTED = """
import json, sys

def show(parser):
    parser.format_help()
    for action in parser._actions:
        if isinstance(action.choices, dict):
            [show(command) for command in action.choices.values()]

def done(step):
    loaded[step] = sorted({name.partition(".")[0] for name in sys.modules})

loaded = {}
import lm_latent_eval
done("the package")
from lm_latent_eval.cli import _parser, main
show(_parser())
try:
    main(["train", "kglm", "--help"])
except SystemExit:
    done("help of every command")
import lm_latent_eval.estimators
done("estimators")
print(json.dumps(loaded))
"""
HEAVY = {
    "the package": {"torch", "numpy"},
    "help of every command": {"torch", "numpy", "transformers", "tokenizers"},
    "estimators": {"lm_eval", "evaluate", "transformers", "arviz_stats"},
}
"""What is not imported by then: each step goes on where the last one ended."""


def test_what_is_heavy_is_imported_late():
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED],
        capture_output=True,
        text=True,
        check=True,
        cwd=PROJECT,
    )
    shown, loaded = done.stdout.rsplit("\n", 2)[:2]
    assert "--learning-rate" in shown
    found = {step: {*names} for step, names in json.loads(loaded).items()}
    assert found.keys() == HEAVY.keys()
    for step, names in found.items():
        assert not names & HEAVY[step], step


# -- what other packages import --------------------------------------------------------

NAMES = [
    *("Answer", "Beam", "Bound", "ByteEncoder", "Case", "CheckedConfig", "Draws"),
    *("END", "Encoder", "Estimate", "Estimator", "GenerationOptions", "LatentLM"),
    *("LawError", "NoLatents", "NormalProposal", "Normalization"),
    *("PADDING", "Pretrained", "Proposal", "Query", "RealStep", "RealStepLM", "START"),
    *("Step", "StepLM", "SubwordEncoder", "TextModel", "TextScorer", "Texts"),
    *("TokenBatch", "UNKNOWN", "Uniforms", "Whole", "WordTokenizer", "WordsConfig"),
    *("estimator_laws", "estimator_named", "laws", "save_checkpoint", "sent"),
    *(
        "sent_uniforms",
        "value",
        "verify_manifest",
        "wide_zeros",
        "widened",
        "write_manifest",
    ),
]
IN_WORDS = {"END", "PADDING", "START", "UNKNOWN", "Uniforms"}
"""Have no docstring of their own: the page describes them."""
PUBLIC = {"lm_latent_eval", "lm_latent_eval.extend"}


def test_the_names_stay_and_are_documented():
    """What leaves this list breaks somebody's package: CHANGELOG says so."""
    assert sorted(extend.__all__) == NAMES
    page = (PROJECT / "docs" / "api" / "extend.md").read_text()
    for name in NAMES:
        said = page if name in IN_WORDS else getattr(extend, name).__doc__
        assert (f"`{name}`" in said) if name in IN_WORDS else said.strip(), name


PACKAGES = sorted(path.parent for path in PROJECT.glob("examples/*/pyproject.toml"))


@pytest.mark.parametrize(
    "package", [None, *PACKAGES], ids=lambda path: path and path.name
)
def test_examples_need_no_inner_module(package):
    """Nor does the page that tells how to add a model."""
    if package is None:
        page = (PROJECT / "docs" / "adding_a_model.md").read_text()
        code = [e.source for e in doctest.DocTestParser().get_examples(page)]
    else:
        code = [path.read_text() for path in package.rglob("*.py")]
    used = imports("\n".join(code))
    ours = {name for name in used if name.split(".")[0] == "lm_latent_eval"}
    assert "lm_latent_eval.extend" in ours <= PUBLIC
