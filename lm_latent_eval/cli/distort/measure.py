"""``distort score`` and ``distort measure``: log-probabilities, error statistics."""

from __future__ import annotations

import argparse
from pathlib import Path

from lm_latent_eval.cli.arguments import (
    Commands,
    add_format,
    add_options,
    read_format,
    warn_of_idle,
)
from lm_latent_eval.scoring.options import (
    OpeningOptions,
    ScoringOptions,
    parse_device,
)


def add_score(steps: Commands) -> None:
    """Add ``score``."""
    score = steps.add_parser(
        "score",
        help="score sequences under their language and a model",
        description="Writes Arrow shards of columns: of each sequence its "
        "log-probability under the language and under the model, in nats. All "
        "measurements read these files alone. An interrupted run goes on.",
        example="lm-latent-eval distort score --learner model --corpus corpus "
        "--output columns",
    )
    score.add_argument(
        "--learner",
        required=True,
        help="a causal LM or one of our latent LMs: a directory or a hub repository",
    )
    score.add_argument(
        "--corpus", type=Path, required=True, help="folder of `distort sample`"
    )
    score.add_argument("--output", type=Path, required=True, help="folder of columns")
    score.add_argument(
        "--num-sequences",
        type=int,
        metavar="N",
        help="only the first N (default: all); with --random: how many",
    )
    what = score.add_mutually_exclusive_group()
    what.add_argument(
        "--perturb",
        type=int,
        metavar="S",
        help="each sequence after 0, 1, .. S perturbations",
    )
    what.add_argument(
        "--random",
        action="store_true",
        help="random sequences of the language's tokens instead",
    )
    score.add_argument(
        "--mean-length", type=float, help="of random sequences (default: 10)"
    )
    score.add_argument(
        "--language",
        help="where the language is now, if it was moved (--perturb, --random)",
    )
    score.add_argument(
        "--seed",
        type=int,
        default=0,
        help="of perturbed and random sequences, and of a latent learner's samples "
        "(default: 0)",
    )
    score.add_argument("--batch-size", type=int, help="sequences computed together")
    add_options(score, OpeningOptions, ("device",))
    latent = score.add_argument_group("latent learners")
    add_options(latent, ScoringOptions, ("estimator", "num_samples", "proposal"))
    score.set_defaults(run=_score)


def add_measure(steps: Commands) -> None:
    """Add ``measure``."""
    measure = steps.add_parser(
        "measure",
        help="numbers and figures from columns",
        description="Reads folders of columns, prints a table, and writes it as "
        "MEASURE.csv and .tex, numbers as MEASURE.json, a figure as .png, .svg, .pdf.",
        example="lm-latent-eval distort measure errors lstm=columns --output measured",
    )
    measure.add_argument(
        "measure",
        choices=(
            "errors",
            "perturbed",
            "random",
            "lengths",
        ),
    )
    measure.add_argument(
        "folders", nargs="+", metavar="NAME=DIR", help="columns, and what to call them"
    )
    measure.add_argument("--output", type=Path, required=True, help="folder of results")
    measure.add_argument("--num-bins", type=int, default=50, help="default: 50")
    add_format(measure)
    measure.set_defaults(run=_measure)


def _score(args: argparse.Namespace) -> None:
    from lm_latent_eval.distortion import sources
    from lm_latent_eval.distortion.catalog import language_of, load_learner
    from lm_latent_eval.distortion.languages.corpus import Corpus
    from lm_latent_eval.distortion.learners.scores import score_sequences
    from lm_latent_eval.scoring.string_scorers import is_latent

    device = args.device and parse_device(args.device)
    corpus = Corpus.open(args.corpus)
    given = {
        "batch_size": args.batch_size,
        "device": device,
        "estimator": args.estimator,
        "num_samples": args.num_samples,
        "proposal": args.proposal,
    }
    altered = args.perturb is not None or args.random
    if not altered:
        warn_of_idle(args, ["language"], "it is for --perturb and --random")
    if is_latent(args.learner):
        given["seed"] = args.seed
    elif not altered:
        warn_of_idle(args, ["seed"], "nothing is drawn")
    if args.mean_length is not None and not args.random:
        raise ValueError("--mean-length: only --random sequences have one")
    settings = {name: value for name, value in given.items() if value is not None}
    learner = load_learner(args.learner, corpus, **settings)
    how = {"num_sequences": args.num_sequences}
    source: sources.Source = sources.Unchanged(corpus, **how)
    if altered:
        where = {} if device is None else {"device": device}
        language = language_of(corpus, args.language, **where)
        if args.random:
            length = args.mean_length
            length = sources.MEAN_LENGTH if length is None else length
            source = sources.Random(corpus, language, length, args.seed, **how)
        else:
            perturb = args.perturb
            source = sources.Perturbed(corpus, language, perturb, args.seed, **how)
    scores = score_sequences(learner, source, args.output)
    print(f"wrote {scores.directory}")


def _measure(args: argparse.Namespace) -> None:
    from lm_latent_eval.distortion.report.measures import MEASURES, UNBINNED
    from lm_latent_eval.report.tabular import rendered, write

    kind = read_format(args)
    folders = {}
    for given in args.folders:
        name, equals, path = given.partition("=")
        if not (name and equals and path):
            raise ValueError(f"{given!r}: expected NAME=DIR")
        if name in folders:
            raise ValueError(f"{name} names two folders")
        folders[name] = Path(path)
    if args.measure in UNBINNED:
        warn_of_idle(args, ["num_bins"], f"{args.measure} needs none")
    stem = args.output / args.measure
    table = MEASURES[args.measure](folders, stem, args.num_bins)
    write(table, stem)
    print(rendered(table, kind))
