"""``surprisal`` and ``latents``: what a model makes of each word of a text, and how."""

from __future__ import annotations

import argparse
from pathlib import Path

from lm_latent_eval.cli.arguments import Commands, not_read, output_file
from lm_latent_eval.cli.estimate import add_scoring, opening_of


def add_surprisal(commands: Commands, summary: str) -> None:
    """Add ``surprisal``."""
    parser = commands.add_parser(
        "surprisal",
        help=summary,
        example="lm-latent-eval surprisal DIR --data texts.csv --output surprisal.csv",
    )
    parser.add_argument("checkpoint", help="directory or hub repository")
    parser.add_argument(
        "--data",
        type=Path,
        required=True,
        help="texts: a table (.csv, .tsv), JSON lines, or one text a line",
    )
    parser.add_argument(
        "--column",
        default="text",
        help="of a table, that has the texts (default: text); all others stand in the "
        "output, too",
    )
    parser.add_argument(
        "--regions",
        action="store_true",
        help="texts are divided by | instead of white space",
    )
    parser.add_argument(
        "--output",
        type=output_file,
        help="a row a word, as .csv, .tsv or .jsonl; an interrupted run goes on",
    )
    parser.add_argument(
        "--figure",
        type=output_file,
        metavar="PATH",
        help="draw the first text with its errors, as PATH.png, .svg and .pdf (extra "
        "report)",
    )
    add_scoring(parser, "revision")
    parser.set_defaults(run=_surprisal)


def _surprisal(args: argparse.Namespace) -> None:
    from lm_latent_eval.report import charts
    from lm_latent_eval.scoring.inside import surprisal

    stimuli = surprisal.Stimuli.read(args.data, args.column)
    if args.output is not None:
        not_read(args.output, [args.data])
    scorer = opening_of(args).scorer(quiet=False)
    if args.output is None:
        table = surprisal.table(scorer, stimuli.texts, regions=args.regions)
        print(surprisal.shown(table))
    else:
        table = surprisal.write(scorer, stimuli, args.output, regions=args.regions)
        print(f"wrote {args.output}")
    if args.figure is not None:
        charts.save(charts.surprisal(table[table.text_id == 0]), args.figure)


def add_latents(commands: Commands, summary: str) -> None:
    """Add ``latents``."""
    raise NotImplementedError
