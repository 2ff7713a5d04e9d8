"""Writes what follows from the tables of options: docs/options.md and docstrings.

python -m tests.option_tables
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from lm_latent_eval import models
from lm_latent_eval.cli.arguments import Parser
from lm_latent_eval.cli.compare import add_compare
from lm_latent_eval.cli.estimate import add_calibrate, add_estimate
from lm_latent_eval.harness.backends import Latent
from lm_latent_eval.options import Option, table
from lm_latent_eval.scoring.interface import TextModel
from lm_latent_eval.scoring.model import LatentModel, load
from lm_latent_eval.scoring.options import OpeningOptions, ScoringOptions
from tests.conftest import PROJECT

PAGE = PROJECT / "docs" / "options.md"
WIDTH = 88

DOCUMENTED = (
    ("lm_latent_eval/harness/backends.py", "Latent"),
    ("lm_latent_eval/scoring/model.py", "log_likelihood"),
    ("lm_latent_eval/scoring/model.py", "load"),
)
"""Files, and the class or function whose docstring lists options."""

HEAD = """\
# Options

Made by `python -m tests.option_tables` from the tables that the program itself reads.

An option has one name everywhere:

| | |
|---|---|
| `lm_eval` | `--model_args pretrained=DIR,num_samples=1000,target_stderr=0.01` |
| `lm-latent-eval estimate`, `compare` | `--num-samples 1000 --target-stderr 0.01` |
| Python | `model.log_likelihood(texts, num_samples=1000, target_stderr=0.01)` |

Integers may be written `1e3`. An option that has no effect is named in a warning.
Those of training are in `lm-latent-eval train MODEL --help`.
"""


def rows() -> dict[str, Option]:
    """Every option of opening and scoring, by name."""
    return {r.name: r for kind in (OpeningOptions, ScoringOptions) for r in table(kind)}


def page() -> str:
    """Return docs/options.md."""
    return "\n".join(
        [
            HEAD,
            "## Every model\n",
            *_opening(),
            "\n`--model_args` go before `lm_eval --batch_size` and `--device`. "
            "lm-eval passes on the whole\nnumber 1 where nobody gives a batch size, "
            "which counts as none.\n",
            "## Models with latents\n",
            *_table(ScoringOptions),
            "\nThe first estimator and the first proposal are the defaults; what they "
            "are is in\n[running models](harness.md#estimators).\n",
            "| model | estimators | proposals |\n|---|---|---|",
            *(f"| `latent_{name}` | {_has(name)} |" for name in sorted(models.MODELS)),
            *_own(),
            "",
        ]
    )


def _cells(row: Option) -> tuple[str, str]:
    """Return an option's name and its default, or its type and when it has none."""
    default = f"`{row.default}`".replace("\n", "\\n")
    return f"`{row.name}`", f"{row.kind}: {row.unset}" if row.unset else default


def _line(*cells: str) -> str:
    return f"| {' | '.join(c.replace('|', '/') for c in cells)} |".replace("``", "`")


def _table(*kinds: type) -> Iterator[str]:
    yield "| option | default | |\n|---|---|---|"
    for row in (row for kind in kinds for row in table(kind)):
        yield _line(*_cells(row), row.sentences)


def _opening() -> Iterator[str]:
    """List the options of opening, and which commands and functions take them."""
    takers = {
        "`lm_eval`": {*inspect.signature(Latent.__init__).parameters},
        "`estimate`": _flags(add_estimate),
        "`calibrate`": _flags(add_calibrate),
        "`compare`": _flags(add_compare),
        "`load`": {*inspect.signature(load).parameters},
        "`log_likelihood`": {*inspect.signature(LatentModel.log_likelihood).parameters},
    }
    yield "| option | default | of | |\n|---|---|---|---|"
    for row in table(OpeningOptions):
        of = [taker for taker, names in takers.items() if row.name in names]
        yield _line(*_cells(row), ", ".join(of), row.sentences)


def _flags(add: Callable[[Any, str], None]) -> set[str]:
    """Return the names of what a command can be given."""
    commands = Parser().add_subparsers()
    add(commands, "")
    [parser] = commands.choices.values()
    return {action.dest for action in parser._actions}


def _has(name: str) -> str:
    """Return the estimators and proposals of a model that has been trained on all."""
    kind = models.model_class(name)
    trained = getattr(inspect.getmodule(kind), "READING_MOST", None)
    config = kind.config_class(**({"proposals": [*trained]} if trained else {}))
    with torch.device("meta"):
        names = kind(config).proposal_names
    listed = [f"`{name}`" for name in names if name != "none"]
    return f"{', '.join(f'`{e}`' for e in kind.estimators)} | {', '.join(listed)}"


def _own() -> Iterator[str]:
    for name in sorted(models.MODELS | models.WRAPPERS):
        kind = models.model_class(name)
        if issubclass(kind, TextModel) and kind.options():
            yield f"\n## `latent_{name}`\n"
            yield from _table(kind.options())


def entry(row: Option, indent: int) -> list[str]:
    """Return what a docstring says of an option."""
    said = row.sentences
    if row.unset is not None:
        said = f"{said} None: {row.unset}."
    elif row.default is not None:
        said = f"{said} Default: {row.default}."
    lines = textwrap.wrap(
        f"{row.name}: {said}",
        WIDTH - indent,
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [" " * indent + line for line in lines]


def documented(path: Path, name: str) -> str:
    """Return a file with the options in one of its docstrings as the tables say."""
    source = path.read_text(encoding="utf-8")
    [node] = [
        each
        for each in ast.walk(ast.parse(source))
        if isinstance(each, ast.ClassDef | ast.FunctionDef) and each.name == name
    ]
    lines, known = source.splitlines(), rows()
    first, last = node.body[0].lineno, node.body[0].end_lineno
    indent, kept, skipping = node.body[0].col_offset + 4, [], False
    for line in lines[first - 1 : last]:
        found = re.match(rf" {{{indent}}}(\w+): ", line)
        if found or not line.startswith(" " * (indent + 1)):
            skipping = bool(found) and found[1] in known
            kept += entry(known[found[1]], indent) if skipping else []
        kept += [] if skipping else [line]
    return "\n".join([*lines[: first - 1], *kept, *lines[last:]]) + "\n"


def main() -> None:
    """Write them."""
    PAGE.write_text(page(), encoding="utf-8")
    for file, name in DOCUMENTED:
        path = PROJECT / file
        path.write_text(documented(path, name), encoding="utf-8")


if __name__ == "__main__":
    main()
