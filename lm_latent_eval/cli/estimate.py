"""Commands that open a model: estimate, surprisal, latents and calibrate."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from lm_latent_eval.cli.arguments import (
    Commands,
    add_options,
    given,
    not_read,
    output_file,
)
from lm_latent_eval.scoring.options import OpeningOptions, ScoringOptions

if TYPE_CHECKING:
    from lm_latent_eval.ledger.settings import Settings
    from lm_latent_eval.scoring.answer import Answer, MissedTextsError
    from lm_latent_eval.scoring.files import Shard
    from lm_latent_eval.scoring.opening import Opening

OPENING = ("model", "batch_size", "max_batch_size", "device", "dtype")
"""Options of a command of their own."""


def add_estimate(commands: Commands, summary: str) -> None:
    estimate = _add(
        commands,
        "estimate",
        summary,
        "estimate DIR --data texts.jsonl --output scores.jsonl",
        data="texts: JSON lines with tokens or text, or one text a line",
    )
    estimate.add_argument(
        "--output",
        type=Path,
        help="JSON lines, an estimate a text; an interrupted run goes on from there",
    )
    estimate.add_argument(
        "--workers",
        type=int,
        help="of Ray, each with the model, on this machine or the cluster of "
        "RAY_ADDRESS; they need an --output (extra ray)",
    )
    estimate.add_argument(
        "--gpus-per-worker",
        type=float,
        metavar="X",
        help="GPUs of a worker, or its share of one, such as 0.125 (default: 1 with "
        "--device cuda)",
    )
    estimate.add_argument(
        "--shard",
        metavar="I/N",
        help="score every N-th text, from the I-th: N commands, on any machines, score "
        "all of them, and `recompute` puts their files together",
    )
    estimate.set_defaults(run=_estimate)


def _add(
    commands: Commands, name: str, summary: str, example: str, data: str | None = None
) -> argparse.ArgumentParser:
    example = f"lm-latent-eval {example}"
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=summary, example=example
    )
    parser.add_argument("checkpoint", help="directory or hub repository")
    if data:
        parser.add_argument("--data", type=Path, required=True, help=data)
    add_scoring(parser, "revision")
    return parser


def add_scoring(parser: argparse.ArgumentParser, *others: str) -> None:
    """Add the options of scoring, and those of opening a model that are named."""
    add_options(parser.add_argument_group("models with latents"), ScoringOptions)
    own = parser.add_argument_group("models that score strings their own way")
    own.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="one of the model's own options; may be given again",
    )
    computing = parser.add_argument_group("computing")
    add_options(computing, OpeningOptions, (*OPENING, *others))


def scoring(args: argparse.Namespace) -> dict[str, str]:
    """Read the options that were given, by name.

    Raises:
        ValueError: If one has no name, or is given twice.
    """
    options = given(args, ScoringOptions)
    for text in args.option:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise ValueError(f"--option {text!r}: expected NAME=VALUE")
        if name in OPENING:
            raise ValueError(
                f"--option {name}: give --{name.replace('_', '-')} {value}"
            )
        if name in options:
            raise ValueError(f"{name} is given twice: {options[name]} and {value}")
        options[name] = value
    return options


def opening_of(args: argparse.Namespace) -> Opening:
    from lm_latent_eval.scoring.opening import Opening

    return Opening(
        args.checkpoint,
        scoring(args),
        model=args.model,
        revision=args.revision,
        batch_size=args.batch_size,
        max_batch_size=args.max_batch_size,
        device=args.device,
        dtype=args.dtype,
    )


def _estimate(args: argparse.Namespace) -> None:
    from lm_latent_eval.scoring.files import (
        Shard,
        answers_of,
        score_into,
        settings_of,
    )
    from lm_latent_eval.text.corpora import TextFile

    opening, shard = opening_of(args), Shard.parse(args.shard)
    if args.workers is not None:
        _by_workers(args, opening, shard)
        return
    if args.gpus_per_worker is not None:
        raise ValueError("--gpus-per-worker: no effect without --workers")
    texts = TextFile(args.data)
    scorer = opening.scorer(quiet=False)
    if args.output is not None:
        with _printing(args.output):
            score_into(scorer, texts, args.output, shard)
        return
    settings = settings_of(scorer, texts, shard)
    _print(settings, answers_of(scorer, texts, settings))


def _by_workers(args: argparse.Namespace, opening: Opening, shard: Shard) -> None:
    from lm_latent_eval.scoring.workers import score_corpus

    gpus = args.gpus_per_worker
    if args.output is None:
        raise ValueError("--workers need an --output")
    if gpus is not None and not opening.needs_gpu:
        raise ValueError("--gpus-per-worker: no effect without --device cuda")
    with _printing(args.output):
        score_corpus(
            opening,
            args.data,
            args.output,
            workers=args.workers,
            gpus_per_worker=1.0 if gpus is None else gpus,
            shard=shard,
        )


@contextmanager
def _printing(output: Path) -> Iterator[None]:
    """Print the numbers of a file of estimates when it is written."""
    from lm_latent_eval.scoring.answer import MissedTextsError
    from lm_latent_eval.scoring.files import read_answers

    missed = None
    try:
        yield
    except MissedTextsError as err:
        missed = err
    _print(*read_answers(output), missed)


def _print(
    settings: Settings,
    answers: Iterable[Answer],
    missed: MissedTextsError | None = None,
) -> None:
    """Print the numbers of answers, of which memory holds columns alone.

    Raises:
        MissedTextsError: After that, if texts have no number.
    """
    from lm_latent_eval.report.numbers import table_of
    from lm_latent_eval.scoring.answer import MissedTextsError
    from lm_latent_eval.scoring.totals import Totals

    totals = Totals()
    try:
        for answer in answers:
            totals.add(answer)
    except MissedTextsError as err:
        missed = err
    if len(totals):
        print(table_of(settings, totals, finished=missed is None))
    if missed is not None:
        raise missed


_STIMULI = "texts: a table (.csv, .tsv), JSON lines, or one text a line"


def _add_column(parser: argparse.ArgumentParser, more: str = "") -> None:
    parser.add_argument(
        "--column",
        default="text",
        help=f"column of a table with the texts (default: text){more}",
    )


def add_surprisal(commands: Commands, summary: str) -> None:
    parser = _add(
        commands,
        "surprisal",
        summary,
        "surprisal DIR --data texts.csv --output surprisal.csv",
        data=_STIMULI,
    )
    _add_column(parser, "; all others stand in the output, too")
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
    parser = _add(
        commands,
        "latents",
        summary,
        "latents DIR --data texts.txt --top 3",
        data=_STIMULI,
    )
    _add_column(parser)
    parser.add_argument(
        "--top", type=int, default=3, help="latents of a text to show (default: 3)"
    )
    parser.add_argument(
        "--output",
        type=output_file,
        help="JSON lines (.jsonl), one page (.html) or plain text; default: print",
    )
    parser.set_defaults(run=_latents)


def _latents(args: argparse.Namespace) -> None:
    from lm_latent_eval.files import write_text
    from lm_latent_eval.options import whole
    from lm_latent_eval.report import latents
    from lm_latent_eval.scoring.inside.surprisal import Stimuli
    from lm_latent_eval.scoring.texts import Query

    top = whole("top", args.top, 1)
    texts = Stimuli.read(args.data, args.column).texts
    if args.output is not None:
        not_read(args.output, [args.data])
    scorer = opening_of(args).scorer(quiet=False)
    queries = [Query(n, f"text/{n}", text) for n, text in enumerate(texts)]
    best = scorer.best_latents(queries, top)
    suffix = "" if args.output is None else args.output.suffix.lower()
    writer = {".jsonl": latents.json_lines, ".html": latents.page}
    written = writer.get(suffix, latents.plain)(best)
    if args.output is None:
        print(written, end="")
    else:
        write_text(args.output, written)
        print(f"wrote {args.output}")


def add_calibrate(commands: Commands, summary: str) -> None:
    calibrate = _add(
        commands, "calibrate", summary, "calibrate DIR --texts 100 --num-samples 100"
    )
    calibrate.add_argument(
        "--texts", type=int, default=100, help="to draw (default: 100)"
    )
    calibrate.add_argument(
        "--max-words",
        type=int,
        default=64,
        help="of a text, its end included; longer ones are left out (default: 64)",
    )
    calibrate.set_defaults(run=_calibrate)


def _calibrate(args: argparse.Namespace) -> None:
    from lm_latent_eval.options import whole
    from lm_latent_eval.report.numbers import calibration_table
    from lm_latent_eval.scoring.calibration import calibrate
    from lm_latent_eval.scoring.scorer import Scorer

    num_texts = whole("texts", args.texts, 2)
    most = whole("max_words", args.max_words, 1)
    scorer = opening_of(args).scorer(quiet=False)
    if not isinstance(scorer, Scorer):
        raise ValueError(
            f"{args.checkpoint}: its model scores strings its own way, without latents "
            "that could be drawn with its texts"
        )
    calibration = calibrate(scorer, num_texts, most=most)
    print(calibration_table(calibration, scorer.fingerprint, num_texts))
