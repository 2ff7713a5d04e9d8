"""The command line: ``lm-latent-eval train``, ``lm-latent-eval explain``."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return the exit status."""
    args = _parser().parse_args(argv)
    try:
        return int(args.run(args) or 0)
    except KeyboardInterrupt:
        print("\ninterrupted; the same command resumes", file=sys.stderr)
        return 130
    except (ValueError, OSError, FloatingPointError) as err:
        print(f"lm-latent-eval: {err}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    from lm_latent_eval.training.options import KGLMSize, LSTMSize, Options

    parser = argparse.ArgumentParser(
        prog="lm-latent-eval",
        description="Latent language models: train them, explain their scores.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    train = commands.add_parser("train", help="train a model and write a checkpoint")
    models = train.add_subparsers(required=True, metavar="MODEL")

    kglm = models.add_parser("kglm", help="a knowledge graph LM and its proposals")
    _add_data(kglm, "annotated texts, JSON lines")
    kglm.add_argument(
        "--knowledge", type=Path, help="JSON of further triples and names"
    )
    _add_fields(kglm, KGLMSize)
    _add_fields(kglm, Options)
    kglm.set_defaults(run=_train_kglm)

    lstm = models.add_parser("lstm", help="a plain LSTM LM")
    _add_data(lstm, "texts: JSON lines with tokens or text, or one text a line")
    lstm.add_argument(
        "--vocabulary", type=Path, help="checkpoint whose vocabulary to take over"
    )
    _add_fields(lstm, LSTMSize)
    _add_fields(lstm, Options)
    lstm.set_defaults(run=_train_lstm)

    explain = commands.add_parser(
        "explain", help="say what the numbers of an lm_eval run mean"
    )
    explain.add_argument("results", type=Path, help="the folder of --output_path")
    explain.set_defaults(run=_explain)
    return parser


def _add_data(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--data", type=Path, required=True, help=f"training {what}")
    parser.add_argument("--dev", type=Path, required=True, help="development text")
    parser.add_argument(
        "--output", type=Path, required=True, help="checkpoint directory"
    )
    parser.add_argument(
        "--min-count", type=int, default=2, help="rarer words are unknown (default: 2)"
    )


def _add_fields(parser: argparse.ArgumentParser, options: type) -> None:
    """Add one option a field of a dataclass of numbers."""
    for field in dataclasses.fields(options):
        parser.add_argument(
            f"--{field.name.replace('_', '-')}",
            type=type(field.default),
            default=field.default,
            help=f"default: {field.default}",
        )


def _fields(options: type[T], args: argparse.Namespace) -> T:
    names = (field.name for field in dataclasses.fields(options))  # type: ignore[arg-type]
    return options(**{name: getattr(args, name) for name in names})


def _train_kglm(args: argparse.Namespace) -> None:
    from lm_latent_eval.models.kglm.data import Knowledge, read_annotated
    from lm_latent_eval.models.kglm.training import train
    from lm_latent_eval.training.options import KGLMSize, Options

    train(
        read_annotated(args.data),
        read_annotated(args.dev),
        args.output,
        knowledge=Knowledge.read(args.knowledge) if args.knowledge else None,
        min_count=args.min_count,
        size=_fields(KGLMSize, args),
        options=_fields(Options, args),
    )
    print(f"wrote {args.output}")


def _train_lstm(args: argparse.Namespace) -> None:
    from lm_latent_eval.models.checkpoint import load
    from lm_latent_eval.models.lstm.training import train
    from lm_latent_eval.text.corpora import read_texts
    from lm_latent_eval.training.options import LSTMSize, Options

    train(
        read_texts(args.data),
        read_texts(args.dev),
        args.output,
        tokenizer=load(args.vocabulary).tokenizer if args.vocabulary else None,
        min_count=args.min_count,
        size=_fields(LSTMSize, args),
        options=_fields(Options, args),
    )
    print(f"wrote {args.output}")


def _explain(args: argparse.Namespace) -> None:
    from lm_latent_eval.report.explain import explain

    print(explain(args.results))
