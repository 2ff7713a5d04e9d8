"""What is imported is declared; what is declared, and all it needs, is locked."""

from __future__ import annotations

import ast
import sys
from importlib.metadata import packages_distributions

from packaging.utils import canonicalize_name

from tests.constraints import FILE, NOT_LOCKED, PROJECT, closure, declared, locked


def test_every_line_locks_one_version_in_order():
    lines = FILE.read_text().splitlines()
    names = [line.split("==")[0] for line in lines if not line.startswith("#")]
    assert names == sorted(set(names)) == [*locked()]


def test_every_requirement_is_locked_to_a_version_that_it_allows():
    for each in (e for listed in declared().values() for e in listed):
        name = canonicalize_name(each.name)
        if name in NOT_LOCKED:
            continue
        (pin,) = locked()[name].specifier
        assert pin.operator == "=="
        assert each.specifier.contains(pin.version), f"{each} but {locked()[name]}"


def test_everything_that_they_need_is_locked_as_it_is_installed():
    installed = closure([each for listed in declared().values() for each in listed])
    assert len(installed) > len(declared()[""]), "premise: others need others"
    for name, version in installed.items():
        if name not in NOT_LOCKED:
            assert name in locked(), f"{name}=={version} is missing in constraints.txt"
            assert locked()[name].specifier.contains(
                version.public, prereleases=True
            ), f"{locked()[name]} in constraints.txt, but {version} is installed"


def test_local_versions_are_not_locked():
    """torch==2.13.0 is what every index has, 2.13.0+cpu what one of them has."""
    assert not [line for line in locked().values() if "+" in str(line)]


def imported(folder: str) -> dict[str, str]:
    """Top-level modules of others -> a file that imports them."""
    found = {}
    for path in (PROJECT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [str(node.module)]
            else:
                continue
            found |= {name.partition(".")[0]: str(path) for name in names}
    known = {*sys.stdlib_module_names, "lm_latent_eval", "metrics"}
    return {name: path for name, path in found.items() if name not in known}


def test_what_is_imported_is_declared():
    distributions = packages_distributions()
    wanted = {
        canonicalize_name(each.name)
        for extra, listed in declared().items()
        for each in listed
        if extra != "dev"
    }
    for module, path in {**imported("lm_latent_eval"), **imported("metrics")}.items():
        of = {canonicalize_name(name) for name in distributions.get(module, [module])}
        assert of & wanted, f"{path} imports {module}, which pyproject.toml lacks"


def test_torch_keeps_code_out_of_weights():
    """CVE-2025-32434: before 2.6, weights_only=True did not."""
    torches = [e for listed in declared().values() for e in listed if e.name == "torch"]
    assert len(torches) == 1, "said once, of all installations"
    assert not torches[0].specifier.contains("2.5.1")
