"""``distort sample``: corpora of artificial languages."""

from __future__ import annotations

import argparse
from pathlib import Path

from lm_latent_eval.cli.arguments import Commands, add_options
from lm_latent_eval.scoring.options import (
    OpeningOptions,
    parse_device,
    parse_dtype,
)


def add_sample(steps: Commands) -> None:
    """Add ``sample``."""
    sample = steps.add_parser(
        "sample",
        help="draw sequences with their log-probabilities",
        description="Writes Arrow shards of token ids with their log-probabilities in "
        "nats. An interrupted run goes on where it was.",
        example="lm-latent-eval distort sample --language agreement "
        "--num-sequences 1000 --output corpus",
    )
    sample.add_argument(
        "--language",
        required=True,
        help="agreement, a grammar in a JSON file, a causal LM, or one of our models "
        "(rnng, lstm): a directory or a repository of the hub",
    )
    sample.add_argument("--output", type=Path, required=True, help="folder of shards")
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


def _sample(args: argparse.Namespace) -> None:
    from lm_latent_eval.distortion.catalog import load_language
    from lm_latent_eval.distortion.languages.corpus import Corpus

    given = {
        "temperature": args.temperature,
        "begin_id": args.begin_id,
        "end_id": args.end_id,
        "batch_size": args.batch_size,
        "device": args.device and parse_device(args.device),
        "dtype": parse_dtype(args.dtype),
    }
    causal = {name: value for name, value in given.items() if value is not None}
    language = load_language(args.language, **causal)
    corpus = Corpus.draw(
        language,
        args.output,
        args.num_sequences,
        seed=args.seed,
        first=args.first,
        max_length=args.max_length,
    )
    print(f"wrote {corpus.directory}")
