"""Writes what follows from the tables of options: docs/options.md and docstrings.

python -m tests.option_tables
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

from lm_latent_eval import models
from lm_latent_eval.options import Option, table
from lm_latent_eval.scoring.interface import TextModel
from lm_latent_eval.scoring.options import OpeningOptions, ScoringOptions
from tests.conftest import PROJECT

PAGE = PROJECT / "docs" / "options.md"
WIDTH = 88

DOCUMENTED = (("lm_latent_eval/scoring/model.py", "load"),)
"""Files, and the class or function whose docstring lists options."""

HEAD = """\
# Options

An option has one name everywhere:

```bash
lm_eval --model latent --model_args pretrained=DIR,num_samples=1e3,seed=1
lm-latent-eval estimate DIR --num-samples 1e3 --seed 1
```

A warning names options without effect. This page is made by
`python -m tests.option_tables`.
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
            *_list(OpeningOptions),
            "## Models with latents\n",
            *_list(ScoringOptions),
            "[Estimators](harness.md#estimators), the default first:\n",
            "| Model | Estimators |\n|---|---|",
            *(f"| `latent_{name}` | {_has(name)} |" for name in sorted(models.MODELS)),
            "",
            *_own(),
        ]
    )


def _list(kind: type) -> Iterator[str]:
    """List options with their defaults, or their types and what holds without them."""
    for row in table(kind):
        default = (
            f"{row.kind}; default: {row.unset}" if row.unset else f"`{row.default}`"
        )
        yield f"`{row.name}` ({default})".replace("\n", "\\n").replace("``", "`")
        yield f": {row.sentences}\n".replace("``", "`")


def _has(name: str) -> str:
    return ", ".join(f"`{each}`" for each in models.model_class(name).estimators)


def _own() -> Iterator[str]:
    for name in sorted(models.MODELS | models.WRAPPERS):
        kind = models.model_class(name)
        if issubclass(kind, TextModel) and kind.options():
            yield f"## `latent_{name}`\n"
            yield from _list(kind.options())


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
