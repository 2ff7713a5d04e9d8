"""``lm-latent-eval distort``: errors of models on languages of known probabilities."""

from __future__ import annotations

import argparse
from pathlib import Path

from lm_latent_eval.cli.arguments import Commands, add_options, warn_of_idle
from lm_latent_eval.scoring.options import (
    OpeningOptions,
    ScoringOptions,
    parse_device,
    parse_dtype,
)


def add_distort(commands: Commands, summary: str) -> None:
    distort = commands.add_parser(
        "distort",
        help=summary,
        description="Draw sequences of a language, and measure the errors of models on "
        "them, as LeBrun et al. (2022) do.",
    )
    steps = distort.add_subparsers(required=True, metavar="STEP")
    _add_sample(steps)
    _add_measure(steps)


def _add_sample(steps: Commands) -> None:
    sample = steps.add_parser(
        "sample",
        help="draw sequences with their log-probabilities",
        description="Writes an Arrow file of token ids with their log-probabilities in "
        "nats.",
        example="lm-latent-eval distort sample --language agreement "
        "--num-sequences 1000 --output corpus",
    )
    sample.add_argument(
        "--language",
        required=True,
        help="agreement, a grammar in a JSON file, a causal LM, or one of our models "
        "(rnng, lstm): a directory or a repository of the hub",
    )
    sample.add_argument("--output", type=Path, required=True, help="folder, made anew")
    sample.add_argument("--num-sequences", type=int, required=True, metavar="N")
    sample.add_argument(
        "--first",
        type=int,
        default=0,
        metavar="I",
        help="number of the first sequence: corpora of one seed that share no number "
        "are independent (default: 0)",
    )
    sample.add_argument("--seed", type=int, default=0, help="default: 0")
    sample.add_argument(
        "--max-length",
        type=int,
        default=128,
        metavar="TOKENS",
        help="cut longer sequences; the end counts as a token (default: 128)",
    )
    causal = sample.add_argument_group("causal and latent LMs")
    causal.add_argument(
        "--temperature", type=float, help="of a causal LM's softmax (default: 1)"
    )
    causal.add_argument(
        "--begin-id", type=int, help="token before a sequence (default: the model's)"
    )
    causal.add_argument(
        "--end-id", type=int, help="token that ends one (default: the model's)"
    )
    causal.add_argument("--batch-size", type=int, help="sequences computed together")
    add_options(causal, OpeningOptions, ("device",))
    causal.add_argument("--dtype", help="float32 (default) or float64")
    sample.set_defaults(run=_sample)


def _add_measure(steps: Commands) -> None:
    measure = steps.add_parser(
        "measure",
        help="score models on a corpus; a table and a page of figures",
        description="Scores the sequences of a corpus with each model, prints a table, "
        "and writes it with all scores (CSV), all numbers (numbers.json) and a page of "
        "figures (figures.png, .svg and .pdf).",
        example="lm-latent-eval distort measure small=gpt2 large=gpt2-large "
        "--corpus corpus --output measured",
    )
    measure.add_argument(
        "models",
        nargs="+",
        metavar="NAME=MODEL",
        help="a causal LM or one of our latent LMs, a directory or a repository of the "
        "hub, and what to call it",
    )
    measure.add_argument(
        "--corpus", type=Path, required=True, help="folder of `distort sample`"
    )
    measure.add_argument("--output", type=Path, required=True, help="folder of results")
    measure.add_argument(
        "--num-sequences",
        type=int,
        metavar="N",
        help="only the first N sequences (default: all)",
    )
    measure.add_argument("--num-bins", type=int, default=50, help="default: 50")
    measure.add_argument(
        "--perturb",
        type=int,
        default=0,
        metavar="S",
        help="each sequence after 1, 2, .. S perturbations, too",
    )
    measure.add_argument(
        "--random", action="store_true", help="as many random sequences, too"
    )
    measure.add_argument(
        "--language",
        help="where the language is now, if it was moved (--perturb, --random)",
    )
    measure.add_argument(
        "--seed",
        type=int,
        default=0,
        help="of perturbed and random sequences, and of a latent model's samples "
        "(default: 0)",
    )
    measure.add_argument("--batch-size", type=int, help="sequences computed together")
    add_options(measure, OpeningOptions, ("device",))
    latent = measure.add_argument_group("latent models")
    add_options(latent, ScoringOptions, ("estimator", "num_samples", "proposal"))
    measure.set_defaults(run=_measure)


def _sample(args: argparse.Namespace) -> None:
    from lm_latent_eval.distortion.corpus import Corpus
    from lm_latent_eval.distortion.languages.loading import load_language

    given = {
        "temperature": args.temperature,
        "begin_id": args.begin_id,
        "end_id": args.end_id,
        "batch_size": args.batch_size,
        "device": args.device and parse_device(args.device),
        "dtype": parse_dtype(args.dtype),
    }
    options = {name: value for name, value in given.items() if value is not None}
    corpus = Corpus.draw(
        load_language(args.language, **options),
        args.output,
        args.num_sequences,
        seed=args.seed,
        first=args.first,
        max_length=args.max_length,
    )
    print(f"wrote {corpus.directory}")


def _measure(args: argparse.Namespace) -> None:
    from lm_latent_eval.distortion import measure
    from lm_latent_eval.distortion.corpus import Corpus
    from lm_latent_eval.distortion.edits import Altered
    from lm_latent_eval.distortion.figures import draw_page
    from lm_latent_eval.distortion.languages.loading import language_of
    from lm_latent_eval.distortion.learners import load_learner
    from lm_latent_eval.networks.network import is_latent
    from lm_latent_eval.registry import require

    require("matplotlib", extra="plots")  # missing is an error now, not after scoring
    corpus = Corpus.open(args.corpus)
    device = args.device and parse_device(args.device)
    paths = _named(args.models)
    latent = {name for name, path in paths.items() if is_latent(path)}
    if not latent:
        why = "causal LMs have exact log-probabilities"
        warn_of_idle(args, ["estimator", "num_samples", "proposal"], why)
    altered = None
    if args.perturb or args.random:
        where = {} if device is None else {"device": device}
        language = language_of(corpus, args.language, **where)
        altered = Altered(corpus, language, args.perturb, args.random, args.seed)
    else:
        warn_of_idle(args, ["language"], "it is for --perturb and --random")
    given = {
        "estimator": args.estimator,
        "num_samples": args.num_samples,
        "proposal": args.proposal,
        "seed": args.seed,
    }
    options = {name: value for name, value in given.items() if value is not None}
    scores, measured = {}, {}
    for name, path in paths.items():
        how = options if name in latent else {}
        learner = load_learner(
            path, corpus, device=device, batch_size=args.batch_size, **how
        )
        scores[name] = measure.score(
            learner,
            corpus,
            num_sequences=args.num_sequences,
            altered=altered,
            quiet=False,
        )
        measured[name] = measure.Measured.of(learner, scores[name], args.num_bins)
    measure.write(args.output, scores, measured)
    draw_page(args.output / "figures", measured)
    print(measure.shown(measure.table(measured)))
    print(f"wrote {args.output}")


def _named(given: list[str]) -> dict[str, str]:
    paths: dict[str, str] = {}
    for each in given:
        name, equals, path = each.partition("=")
        if not (name and equals and path):
            raise ValueError(f"{each!r}: expected NAME=MODEL")
        if name in paths:
            raise ValueError(f"{name} names two models")
        paths[name] = path
    return paths
