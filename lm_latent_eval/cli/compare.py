"""``lm-latent-eval compare``: paired comparison of models on the same texts."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path
from string import ascii_uppercase
from typing import TYPE_CHECKING

from lm_latent_eval.cli.arguments import Commands, add_format, read_format, say_idle
from lm_latent_eval.cli.estimate import add_scoring, scoring
from lm_latent_eval.scoring.options import (
    OpeningOptions,
    ScoringOptions,
    parse_device,
    parse_dtype,
)

if TYPE_CHECKING:
    from lm_latent_eval.scoring.records import Record


def add_to(commands: Commands, said: str) -> None:
    """Add the command."""
    compare = commands.add_parser(
        "compare",
        help=said,
        description="A side is a folder of lm_eval --output_path (other models than "
        "ours with --log_samples), a file of `estimate`, or, with --data, a "
        "checkpoint. Several runs of a model, joined by commas, are one side.",
        example="lm-latent-eval compare A.jsonl B.jsonl",
    )
    compare.add_argument("sides", nargs="+", metavar="SIDE", help="two or more")
    compare.add_argument("--data", type=Path, help="texts that checkpoints score")
    add_format(compare)
    add_scoring(compare)
    compare.set_defaults(run=_compare)


def _compare(args: argparse.Namespace) -> None:
    from lm_latent_eval.report.compare import as_text, compare, rows
    from lm_latent_eval.report.tabular import Table, rendered

    if not 2 <= len(args.sides) <= len(ascii_uppercase):
        raise ValueError(
            f"{len(args.sides)} given: a comparison takes 2 to {len(ascii_uppercase)} "
            "results or checkpoints"
        )
    if twice := [side for side in args.sides if args.sides.count(side) > 1]:
        raise ValueError(f"{twice[0]} was given twice: give each side once")
    kind = read_format(args)
    if not any(_is_checkpoint(run) for side in args.sides for run in runs(side)):
        scored = (field.name for field in fields(ScoringOptions))
        opened = (field.name for field in fields(OpeningOptions))
        idle = ("data", "option", *opened, *scored)
        say_idle(args, idle, "no side is a checkpoint that is scored now")
    names = dict(zip(ascii_uppercase, args.sides, strict=False))
    sides = {n: [_read(args, run) for run in runs(s)] for n, s in names.items()}
    found = compare(sides)
    if kind != "text":
        print(rendered(Table.of(rows(found)), kind))
        return
    print("\n".join(f"{name} = {side}" for name, side in names.items()), end="\n\n")
    print(as_text(found))


def runs(side: str) -> list[Path]:
    """Return the results that are one side: of a path, or of several with commas."""
    return [Path(side)] if Path(side).exists() else [*map(Path, side.split(","))]


def _is_checkpoint(run: Path) -> bool:
    return (run / "config.json").exists()


def _read(args: argparse.Namespace, run: Path) -> list[Record]:
    from lm_latent_eval.report.results import read

    if not _is_checkpoint(run):
        return read(run)
    if args.data is None:
        raise ValueError(f"{run} is a checkpoint: say with --data what it is to score")
    return [_scored(args, run)]


def _scored(args: argparse.Namespace, directory: Path) -> Record:
    from lm_latent_eval.models.checkpoint import Checkpoint
    from lm_latent_eval.scoring.files import score
    from lm_latent_eval.scoring.interface import open_model, scorer_of
    from lm_latent_eval.text.corpora import read_texts

    given = scoring(args)
    opened = open_model(
        directory,
        model=args.model,
        options=given,
        dtype=parse_dtype(args.dtype),
        device=parse_device(args.device),
    )
    if isinstance(opened, Checkpoint) and opened.model.estimators[0] == "exact":
        given = {name: value for name, value in given.items() if name == "unk"}
    scorer = scorer_of(
        opened, given, batch_size=args.batch_size, max_batch_size=args.max_batch_size
    )
    return score(scorer, read_texts(args.data))
