"""Changes the code in small ways, and lists the changes that no test notices.

python -m tests.mutate --number 20 --seed 0 estimators inference scoring

A mutant has one operator, comparison, number or condition changed; what is said in
errors and annotations is left alone. Each is tried in a fork of a process that has
imported what others wrote, so that it costs no more than its tests, and no file is
changed. First come the examples and tests of its module, then those of its folder,
then the laws.
A mutant that takes ten times as long as the code, in processor time, is noticed, too.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import random
import resource
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.machinery import SourceFileLoader
from pathlib import Path

PROJECT = Path(__file__).parents[1]
WIDER = {
    "estimators": (),
    "inference": ("tests/test_laws.py",),
    "scoring": (
        "tests/harness/test_metrics.py",
        "tests/harness/test_backends.py",
        "tests/test_laws.py",
    ),
}
"""Folder of code -> tests that come after those of the folder of the same name."""
PRELOADED = ("pytest", "torch", "scipy.stats", "transformers", "lm_eval")
PAIRS: tuple[tuple[type, type], ...] = (
    *((ast.Add, ast.Sub), (ast.Mult, ast.Div), (ast.And, ast.Or)),
    *((ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot)),
)
SWAPPED = {ast.Pow: ast.Mult, ast.FloorDiv: ast.Div, **dict(PAIRS)}
SWAPPED |= {other: one for one, other in PAIRS}
NO_TESTS = 5
"""What pytest ends with where a module has no examples."""
SLOWER, ALLOWED = 10, 60
"""A mutant may take so many times the code's processor time, and seconds beside."""


@dataclass(frozen=True)
class Mutant:
    """One change of one module."""

    path: Path
    line: int
    change: str
    tree: ast.Module

    @property
    def module(self) -> str:
        parts = self.path.relative_to(PROJECT).with_suffix("").parts
        return ".".join(parts).removesuffix(".__init__")

    def __str__(self) -> str:
        return f"{self.path.relative_to(PROJECT)}:{self.line}  {self.change}"


def mutants(path: Path) -> Iterator[Mutant]:
    """Yield every mutant of a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for number, node in enumerate(_sites(tree)):
        changed = copy.deepcopy(tree)
        site = [*_sites(changed)][number]
        _change(site)
        before, after = ast.unparse(node), ast.unparse(ast.fix_missing_locations(site))
        if before != after:
            yield Mutant(path, node.lineno, f"{before}  ->  {after}", changed)


def _sites(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what can be changed, in the order of the file."""
    if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr):
        return
    number = isinstance(node, ast.Constant) and isinstance(node.value, int | float)
    if number or isinstance(node, ast.BinOp | ast.BoolOp | ast.UnaryOp | ast.Compare):
        yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _sites(child)


def _change(node: ast.AST) -> None:
    match node:
        case ast.Constant(value=bool()):
            node.value = not node.value
        case ast.Constant():
            node.value = node.value + 1
        case ast.BinOp() | ast.BoolOp():
            node.op = SWAPPED.get(type(node.op), type(node.op))()
        case ast.Compare():
            node.ops[0] = SWAPPED.get(type(node.ops[0]), type(node.ops[0]))()
        case ast.UnaryOp():
            node.op = ast.UAdd() if isinstance(node.op, ast.USub) else node.op
            if isinstance(node.op, ast.Not):
                node.operand = ast.UnaryOp(ast.Not(), node.operand)


def tests_of(path: Path) -> list[list[str]]:
    """Return the tests to run, the nearest first."""
    room = path.relative_to(PROJECT / "lm_latent_eval").parts[0]
    folder = PROJECT / "tests" / room
    nearest = folder / f"test_{path.stem}.py"
    # Apart: pytest imports a module for its examples once more, under the same name.
    own = [[str(path)], *([[str(nearest)]] if nearest.exists() else [])]
    return [*own, [str(folder)], *([test] for test in WIDER.get(room, ()))]


def passes(tests: list[str], mutant: Mutant | None, seconds: int) -> tuple[bool, float]:
    """Run tests in a fork; say whether they pass, and in what processor time."""
    before = _children()
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        silent = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):
            os.dup2(silent, stream)
        if mutant is not None:
            _put_in_place(mutant)
        import pytest

        # Plain: pytest would compile a file that it is given itself, as it stands.
        how = ("-x", "-q", "-p", "no:cacheprovider", "--assert=plain")
        os._exit(pytest.main([*how, *tests]))
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return code in (0, NO_TESTS), _children() - before


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _put_in_place(mutant: Mutant) -> None:
    read = SourceFileLoader.get_code

    def get_code(loader: SourceFileLoader, name: str) -> object:
        if name == mutant.module:
            return compile(mutant.tree, str(mutant.path), "exec")
        return read(loader, name)

    SourceFileLoader.get_code = get_code  # type: ignore[method-assign]


def main() -> int:
    """Try a sample of mutants; return how many no test has noticed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rooms", nargs="*", default=[*WIDER], metavar="ROOM")
    parser.add_argument("--number", type=int, default=60, help="of all rooms")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    for name in PRELOADED:
        import_module(name)
    assert not [name for name in sys.modules if name.startswith("lm_latent_eval.")]
    paths = [
        path
        for room in args.rooms
        for path in sorted((PROJECT / "lm_latent_eval" / room).rglob("*.py"))
    ]
    every = [mutant for path in paths for mutant in mutants(path)]
    chosen = random.Random(args.seed).sample(every, min(args.number, len(every)))
    print(f"{len(chosen)} of {len(every):,} mutants", flush=True)
    path = chosen[0].path
    broken = Mutant(path, 1, "nothing but an error", ast.parse("raise ImportError"))
    if passes(tests_of(path)[0], broken, 3600)[0]:
        raise SystemExit("mutants are not put in place")
    clean: dict[str, float] = {}
    survived = []
    for mutant in chosen:
        for tests in tests_of(mutant.path):
            if tests[0] not in clean:
                passed, clean[tests[0]] = passes(tests, None, 3600)
                if not passed:
                    raise SystemExit(f"{tests[0]} fails as it is")
            limit = int(SLOWER * clean[tests[0]]) + ALLOWED
            if not passes(tests, mutant, limit)[0]:
                print(f"noticed   {mutant}", flush=True)
                break
        else:
            survived.append(mutant)
            print(f"SURVIVED  {mutant}", flush=True)
    print(f"{len(survived)} of {len(chosen)} survived")
    return min(len(survived), 1)


if __name__ == "__main__":
    sys.exit(main())
