"""Writes ``constraints.txt``: what this environment has of all that we need.

python -m tests.constraints > constraints.txt
"""

from __future__ import annotations

import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

PROJECT = Path(__file__).parents[1]
FILE = PROJECT / "constraints.txt"
NOT_LOCKED = frozenset({"lm-latent-eval", "pip"})
"""Ourselves, and what does the installing."""
COMMENT = """\
# The versions that development and continuous integration run, what our requirements
# require included; pip is not locked. Users get the open ranges of pyproject.toml.
# Made by `python -m tests.constraints` in an environment of `make test` on Linux
# without a GPU; of a requirement that is not installed there the line is kept.
"""


def declared() -> dict[str, list[Requirement]]:
    """Every requirement of pyproject.toml, by extra; those of all are under ''."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    groups = {"": project["dependencies"], **project["optional-dependencies"]}
    return {extra: [*map(Requirement, listed)] for extra, listed in groups.items()}


def closure(requirements: list[Requirement]) -> dict[str, Version]:
    """Installed versions of what is required, and of what that requires."""
    found: dict[str, Version] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [*requirements]
    while waiting:
        each = waiting.pop()
        name, extras = canonicalize_name(each.name), frozenset(each.extras)
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        try:
            installed = distribution(name)
        except PackageNotFoundError:
            continue  # KenLM does not build everywhere
        found[name] = Version(installed.version)
        for other in map(Requirement, installed.requires or ()):
            asked = ({"extra": extra} for extra in (*extras, ""))
            if other.marker is None or any(map(other.marker.evaluate, asked)):
                waiting.append(other)
    return found


def locked() -> dict[str, Requirement]:
    """The lines of the file by name."""
    lines = FILE.read_text().splitlines()
    found = [Requirement(line) for line in lines if not line.startswith("#")]
    return {canonicalize_name(each.name): each for each in found}


def main() -> None:
    """Write the file."""
    every = [each for listed in declared().values() for each in listed]
    names = {canonicalize_name(each.name) for each in every}
    lines = {name: str(line) for name, line in locked().items() if name in names}
    lines |= {n: f"{n}=={version.public}" for n, version in closure(every).items()}
    kept = [lines[name] for name in sorted(lines.keys() - NOT_LOCKED)]
    FILE.write_text(COMMENT + "\n".join(kept) + "\n")


if __name__ == "__main__":
    main()
