"""The names that other packages import: which they are, and that they are enough."""

from __future__ import annotations

import ast
import doctest
import subprocess
import sys

import pytest

from lm_latent_eval import extend
from tests.conftest import PROJECT

NAMES = [
    "Answer",
    "Beam",
    "Bound",
    "ByteEncoder",
    "Case",
    "CheckedConfig",
    "Draws",
    "END",
    "Encoder",
    "Estimate",
    "Estimator",
    "GenerationOptions",
    "LatentLM",
    "LawError",
    "LeftToRight",
    "NoLatents",
    "NormalProposal",
    "Normalization",
    "PADDING",
    "Pretrained",
    "Proposal",
    "Query",
    "RealStep",
    "RealStepLM",
    "START",
    "Step",
    "StepLM",
    "SubwordEncoder",
    "TextModel",
    "TextScorer",
    "TokenBatch",
    "UNKNOWN",
    "Uniforms",
    "Whole",
    "WordTokenizer",
    "WordsConfig",
    "estimator_named",
    "laws",
    "save_checkpoint",
    "sent",
    "sent_uniforms",
    "value",
    "verify_manifest",
    "wide_zeros",
    "widened",
    "write_manifest",
]
PUBLIC = {"lm_latent_eval", "lm_latent_eval.extend"}


def test_the_names_stay():
    """What leaves this list breaks somebody's package: CHANGELOG says so."""
    assert sorted(extend.__all__) == sorted(NAMES)


def test_nothing_else_of_ours_lists_names():
    kept = {"__init__.py", "extend.py"}
    files = (PROJECT / "lm_latent_eval").rglob("*.py")
    listing = {p for p in files if "\n__all__ = " in p.read_text()}
    assert {str(p.relative_to(PROJECT / "lm_latent_eval")) for p in listing} == kept


IN_WORDS = {"END", "PADDING", "START", "UNKNOWN", "Uniforms"}
"""Have no docstring of their own: the page describes them."""


@pytest.mark.parametrize("name", NAMES)
def test_each_is_documented(name):
    page = (PROJECT / "docs" / "api" / "extend.md").read_text()
    if name in IN_WORDS:
        assert f"`{name}`" in page
    else:
        assert (getattr(extend, name).__doc__ or "").strip()


def imported(code: str) -> set[str]:
    """Modules of ours that some code imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name for name in found if name.split(".")[0] == "lm_latent_eval"}


PACKAGES = sorted(path.parent for path in PROJECT.glob("examples/*/pyproject.toml"))


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_examples_need_no_inner_module(package):
    modules = set().union(*(imported(p.read_text()) for p in package.rglob("*.py")))
    assert "lm_latent_eval.extend" in modules <= PUBLIC


def test_the_page_needs_no_inner_module():
    page = (PROJECT / "docs" / "adding_a_model.md").read_text()
    code = "".join(e.source for e in doctest.DocTestParser().get_examples(page))
    assert "lm_latent_eval.extend" in imported(code) <= PUBLIC


@pytest.mark.parametrize(
    ("module", "heavy"),
    [("", ("torch", "numpy")), (".extend", ("lm_eval", "evaluate", "matplotlib"))],
)
def test_importing_is_cheap(module, heavy):
    code = (
        f"import sys, lm_latent_eval{module}; "
        f"assert not {{*{heavy}}} & set(sys.modules), sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=PROJECT)
