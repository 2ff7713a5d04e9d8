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
    parser = commands.add_parser(
        "latents",
        help=summary,
        example="lm-latent-eval latents DIR --data texts.txt --top 3",
    )
    parser.add_argument("checkpoint", help="directory or hub repository")
    parser.add_argument(
        "--data", type=Path, required=True, help="texts, as `estimate` reads them"
    )
    parser.add_argument(
        "--top", type=int, default=3, help="latents of a text to show (default: 3)"
    )
    parser.add_argument(
        "--output",
        type=output_file,
        help="JSON lines (.jsonl), one page (.html) or plain text; default: print",
    )
    add_scoring(parser, "revision")
    parser.set_defaults(run=_latents)


def _latents(args: argparse.Namespace) -> None:
    from lm_latent_eval.files import write_text
    from lm_latent_eval.options import whole
    from lm_latent_eval.report import latents
    from lm_latent_eval.scoring.texts import Query
    from lm_latent_eval.text.corpora import read_texts

    top, texts = whole("top", args.top, 1), read_texts(args.data)
    if args.output is not None:
        not_read(args.output, [args.data])
    scorer = opening_of(args).scorer(quiet=False)
    queries = [Query(n, f"text/{n}", text) for n, text in enumerate(texts)]
    found = scorer.best_latents(queries, top)
    suffix = "" if args.output is None else args.output.suffix.lower()
    writer = {".jsonl": latents.json_lines, ".html": latents.page}
    written = writer.get(suffix, latents.plain)(found)
    if args.output is None:
        print(written, end="")
    else:
        write_text(args.output, written)
        print(f"wrote {args.output}")
