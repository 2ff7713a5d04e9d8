"""``compare`` and ``report``: paired comparison of runs, as text or on a page."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from lm_latent_eval.cli.arguments import (
    Commands,
    add_format,
    not_read,
    output_file,
    read_format,
    warn_of_idle,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lm_latent_eval.report.units import Run

TABLE = ".csv"
SUFFIXES = (".json", ".jsonl", ".parquet")
"""Endings of results, which no name of a side needs."""


def add_compare(commands: Commands, summary: str) -> None:
    compare = commands.add_parser(
        "compare",
        help=summary,
        description="A side is a run of lm_eval (other models than ours with "
        "--log_samples), of inspect_ai (JSON) or of Every Eval Ever, or a file of "
        "`estimate`. Several runs of a model, joined by commas, are one side. A CSV "
        "has a column a side (--columns).",
        example="lm-latent-eval compare A B --power 1",
    )
    compare.add_argument(
        "sides", nargs="+", metavar="SIDE", help="two or more, or one table (.csv)"
    )
    add_comparing(compare)
    add_format(compare)
    compare.set_defaults(run=_compare)


def add_comparing(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("comparing")
    group.add_argument(
        "--cluster",
        metavar="FIELD",
        help="what texts or questions are part of, a field of the data set; by itself "
        "a passage that several share; none: nothing",
    )
    group.add_argument(
        "--metric",
        help="of questions, where a run has several (default: accuracy, or the first)",
    )
    group.add_argument(
        "--columns",
        metavar="A,B",
        help="of a table (.csv): which columns are models",
    )
    group.add_argument(
        "--better",
        metavar="NAME",
        help="of a table without a column of bytes: which scores are better, higher or "
        "lower",
    )
    group.add_argument(
        "--power",
        type=float,
        metavar="POINTS",
        help="say how many texts or questions decide a difference of so many points, "
        "of texts hundredths of bits a byte, at 80 %%",
    )


def read_sides(
    paths: Sequence[str], args: argparse.Namespace
) -> tuple[dict[str, str], dict[str, list[list[Run]]]]:
    """Read runs: name -> where it is from, and name -> its runs.

    Raises:
        ValueError: If there are too many, one stands twice, or one cannot be read.
    """
    from lm_latent_eval.options import one_of, positive
    from lm_latent_eval.report.csv_file import BETTER, MOST_SIDES, read_table
    from lm_latent_eval.report.runs import read

    if args.power is not None:
        positive("--power", args.power)
    if len(paths) == 1 and paths[0].endswith(TABLE):
        better = args.better and one_of("--better", args.better, BETTER)
        columns = tuple(args.columns.split(",")) if args.columns else ()
        tables = read_table(Path(paths[0]), columns, better)
        labels = {name: f"{paths[0]}, column {name}" for name in tables}
        return labels, {name: [tasks] for name, tasks in tables.items()}
    warn_of_idle(args, ("columns", "better"), f"no side is a table ({TABLE})")
    if len(paths) > MOST_SIDES:
        raise ValueError(f"{len(paths)} given: at most {MOST_SIDES} results")
    every = [run for path in paths for run in runs(path)]
    places = [str(Path(run).resolve()) if Path(run).exists() else run for run in every]
    twice = [run for run, at in zip(every, places, strict=True) if places.count(at) > 1]
    if twice:
        raise ValueError(f"{twice[0]} was given twice: give each side once")
    labels = dict(zip(_names(paths), paths, strict=True))
    return labels, {
        name: [read(run, args.metric) for run in runs(path)]
        for name, path in labels.items()
    }


def _names(paths: Sequence[str]) -> list[str]:
    """Name sides by the shortest ends of their paths that tell them apart.

    Example:
        >>> _names(["out/kglm", "out/lstm.jsonl"]), _names(["a/out", "b/out"])
        (['kglm', 'lstm'], ['a/out', 'b/out'])
    """
    whole = [runs(path)[0].resolve() for path in paths]
    plain = [p.with_suffix("") if p.suffix in SUFFIXES else p for p in whole]
    ends = plain if len({*plain}) == len(plain) else whole
    depth = 1
    while len({end.parts[-depth:] for end in ends}) < len(ends):
        depth += 1
    more = [len(runs(path)) - 1 for path in paths]
    return [
        "/".join(end.parts[-depth:]) + f" and {others} more" * bool(others)
        for end, others in zip(ends, more, strict=True)
    ]


def _compare(args: argparse.Namespace) -> None:
    from lm_latent_eval.report.compare import ERRORS, as_text, compare, power, rows
    from lm_latent_eval.report.tables import frame, one_line, rendered

    if len(args.sides) == 1 and not args.sides[0].endswith(TABLE):
        raise ValueError(
            "1 given: a comparison takes 2 results and more, or a table "
            f"({TABLE}) with a column a side"
        )
    kind = read_format(args)
    labels, sides = read_sides(args.sides, args)
    every = [run for several in sides.values() for some in several for run in some]
    if all(run.is_of_texts for run in every):
        warn_of_idle(args, ("metric",), "there are no questions")
    elif args.sides[0].endswith(TABLE):
        warn_of_idle(args, ("metric",), f"a table ({TABLE}) has one number a side")
    compared = compare(sides, args.cluster)
    points = args.power
    powers = [] if points is None else [power(each, points) for each in compared]
    if kind != "text":
        print(rendered(frame(rows(compared, powers)), kind, ERRORS))
    else:
        names = [f"{name}: {side}\n" for name, side in labels.items() if name != side]
        print("".join([*names, "\n" * bool(names), as_text(compared)]))
        for each in powers:
            print(f"\n{one_line(each.sentence)}")


def runs(side: str) -> list[Path]:
    return [Path(side)] if Path(side).exists() else [*map(Path, side.split(","))]


def add_report(commands: Commands, summary: str) -> None:
    report = commands.add_parser(
        "report",
        help=summary,
        description="The page needs nothing else, and no network.",
        example="lm-latent-eval report A.jsonl B.jsonl --output report.html",
    )
    report.add_argument("results", nargs="+", help="as `compare` takes them")
    report.add_argument(
        "--output",
        type=output_file,
        default=Path("report.html"),
        help="default: report.html",
    )
    add_comparing(report)
    report.set_defaults(run=_report)


def _report(args: argparse.Namespace) -> None:
    from lm_latent_eval.report import page

    not_read(args.output, [run for side in args.results for run in runs(side)])
    labels, sides = read_sides(args.results, args)
    page.write(sides, labels, args.output, cluster=args.cluster, points=args.power)
    print(f"wrote {args.output}")
