"""``lm-latent-eval distort train``: train a causal LM on an artificial language."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from lm_latent_eval.cli.arguments import (
    Commands,
    add_options,
    given,
    output_folder,
    warn_of_idle,
)
from lm_latent_eval.distortion.learners.options import TrainingOptions
from lm_latent_eval.scoring.options import OpeningOptions, parse_device

if TYPE_CHECKING:
    from lm_latent_eval.distortion.learners.architectures import Start
    from lm_latent_eval.distortion.learners.data import TrainingData


def add_train(steps: Commands) -> None:
    """Add ``train``."""
    train = steps.add_parser(
        "train",
        help="train a causal LM on a corpus, on fresh sequences, or on text",
        description="Trains with Adam; the learning rate is halved after every epoch "
        "whose validation loss is not a new lowest one, and the model of the lowest is "
        "kept. An interrupted training goes on where it was.",
        example="lm-latent-eval distort train --architecture lstm --data corpus "
        "--dev dev --epochs 10 --output model",
    )
    start = train.add_mutually_exclusive_group(required=True)
    start.add_argument(
        "--architecture", help="gpt2-small, gpt2-medium, gpt2-large or lstm"
    )
    start.add_argument(
        "--config",
        type=Path,
        metavar="JSON",
        help='sizes of another: {"model_type": "gpt2", "n_layer": 2, ...}, or of type '
        "lstm_causal",
    )
    start.add_argument("--init", metavar="MODEL", help="begin with a pretrained model")
    train.add_argument(
        "--output", type=output_folder, required=True, help="folder of the model"
    )
    _add_data(train)
    _add_options(train)
    train.set_defaults(run=_train)


def _add_data(train: argparse.ArgumentParser) -> None:
    data = train.add_argument_group(
        "data", "A corpus is a folder of `distort sample`, a text a file of lines."
    )
    data.add_argument(
        "--data", type=Path, required=True, help="corpus or text to train on"
    )
    data.add_argument(
        "--dev", type=Path, required=True, help="corpus or text to validate with"
    )
    data.add_argument("--test", type=Path, help="corpus to score after every epoch")
    data.add_argument(
        "--track",
        type=int,
        default=10_000,
        metavar="N",
        help="at most so many sequences of the training and the test corpus are scored "
        "after every epoch (default: 10000)",
    )
    data.add_argument(
        "--fresh",
        type=int,
        metavar="N",
        help="draw N new sequences every epoch, from the language of --data and its "
        "first number on",
    )
    data.add_argument("--tokenizer", type=Path, metavar="DIR", help="of a text")
    data.add_argument(
        "--max-length",
        type=int,
        default=128,
        metavar="TOKENS",
        help="cut longer texts; the end counts as a token (default: 128)",
    )


def _add_options(train: argparse.ArgumentParser) -> None:
    options = train.add_argument_group("training")
    options.add_argument("--epochs", type=int, required=True)
    options.add_argument(
        "--learning-rate",
        type=float,
        help="at the beginning (default: that of the named architecture)",
    )
    optional = ("batch_size", "micro_batch", "max_grad_norm", "seed")
    add_options(options, TrainingOptions, optional)
    options.add_argument("--bf16", action="store_true", help="mixed precision")
    add_options(options, OpeningOptions, ("device",))


def _train(args: argparse.Namespace) -> None:
    from lm_latent_eval.distortion.languages.corpus import Corpus
    from lm_latent_eval.distortion.learners.data import open_data
    from lm_latent_eval.distortion.learners.training import train_learner
    from lm_latent_eval.ledger.files import SETTINGS_FILE

    start, learning_rate = _start(args)
    chosen = given(args, TrainingOptions) | {"learning_rate": learning_rate}
    options = TrainingOptions.parse(chosen)
    if all((path / SETTINGS_FILE).is_file() for path in (args.data, args.dev)):
        warn_of_idle(args, ["tokenizer", "max_length"], "a corpus has its own")
    how = {"tokenizer": args.tokenizer, "max_length": args.max_length}
    history = train_learner(
        args.output,
        start,
        _data(args),
        open_data(args.dev, **how),
        options,
        test=args.test and Corpus.open(args.test),
        track=args.track,
        device=parse_device(args.device),
    )
    best = history.best
    print(
        f"wrote {args.output}: epoch {best.epoch} of {len(history.epochs)}, validation "
        f"perplexity {best.dev_perplexity:.4g} per token"
    )


def _start(args: argparse.Namespace) -> tuple[Start, float]:
    """Return where to start, and the learning rate."""
    from lm_latent_eval.distortion.learners.architectures import (
        Configuration,
        PretrainedStart,
        named_size,
    )

    rate: float | None = args.learning_rate
    if args.architecture:
        size = named_size(args.architecture)
        return Configuration(size.config), size.learning_rate if rate is None else rate
    if rate is None:
        raise ValueError("--learning-rate: only a named --architecture has one")
    if args.config:
        return Configuration.read(args.config), rate
    return PretrainedStart(args.init), rate


def _data(args: argparse.Namespace) -> TrainingData:
    from lm_latent_eval.distortion.catalog import language_of
    from lm_latent_eval.distortion.learners.data import CorpusData, FreshData, open_data

    data = open_data(args.data, tokenizer=args.tokenizer, max_length=args.max_length)
    if args.fresh is None:
        return data
    if not isinstance(data, CorpusData):
        raise ValueError(f"--fresh: {args.data} is a text, of no language to draw from")
    language = language_of(data.corpus, device=parse_device(args.device))
    return FreshData(data.corpus, language, args.fresh)
