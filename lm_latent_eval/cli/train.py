"""``lm-latent-eval train``: train a model, or the spelling model of a checkpoint."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from lm_latent_eval.cli.arguments import (
    Commands,
    add_fields,
    fields,
    output_folder,
    warn_of_idle,
)
from lm_latent_eval.scoring.options import parse_device
from lm_latent_eval.training.options import (
    EntityNLMSize,
    KGLMSize,
    LDAFit,
    LRLMSize,
    LSTMSize,
    MarginObjective,
    NKLMSize,
    Options,
    RNNGSize,
    SRNNSize,
)

_TEXTS = (
    "texts: JSON lines with tokens or text, or one text a line; or the trees or CoNLL "
    "files of other models",
    "models.texts:read_texts",
)
_ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    "min_count": {
        "type": int,
        "default": 2,
        "help": "rarer words are unknown; topic models leave them out",
    },
    "knowledge": {"type": Path, "help": "JSON of further triples and names"},
    "vocabulary": {"type": Path, "help": "checkpoint whose vocabulary to take over"},
    "already_cut": {
        "action": "store_true",
        "help": "words stand between white space, cut by another program",
    },
    "lowercase": {"action": "store_true", "help": "write every word in lower case"},
    "objective": {
        "choices": ("supervised", "unsupervised"),
        "default": "supervised",
        "help": "learn from trees, or from sentences alone",
    },
    "init": {"type": Path, "help": "checkpoint to go on from"},
    "num_samples": {"type": int, "default": 4, "help": "trees a sentence"},
}
"""Arguments of ``add_argument`` for some options."""
_TITLES = {"size": "size", "margin": "task"}
"""Titles of groups of options, other than ``training``."""


@dataclasses.dataclass(frozen=True)
class Trainable:
    """A model that can be trained."""

    summary: str
    """Line in the list of models."""
    data: str
    """Description of its training text."""
    reads: str
    """Module and name of the function that reads the data."""
    ending: str
    """Ending of such a file, for the example."""
    tables: Mapping[str, Any]
    """Options that training takes together: dataclasses, or instances of them whose
    values are the defaults, by the argument's name."""
    arguments: tuple[str, ...] = ("min_count",)
    """Further options, of ``_ARGUMENTS``."""
    where: str = "models.{name}.training"
    """Module of its function ``train_NAME``."""
    dev: bool = True
    """Whether there is development text."""


_ANNOTATED = (
    "annotated texts, JSON lines",
    "models.kglm.data:read_annotated",
    "jsonl",
)
_WITH_FACTS = ("min_count", "knowledge")
_WITH_WORDS = ("min_count", "vocabulary", "already_cut")
TRAINABLE = {
    "kglm": Trainable(
        "a knowledge graph LM and its proposals",
        *_ANNOTATED,
        {"size": KGLMSize, "options": Options},
        _WITH_FACTS,
    ),
    "lrlm": Trainable(
        "a latent relation LM, whose sum is exact",
        *_ANNOTATED,
        {"size": LRLMSize, "options": Options},
        _WITH_FACTS,
    ),
    "nklm": Trainable(
        "a neural knowledge LM, which copies words",
        *_ANNOTATED,
        {"size": NKLMSize, "options": Options},
        _WITH_FACTS,
    ),
    "entitynlm": Trainable(
        "an entity LM and its proposals",
        "documents with coreference, a CoNLL file or a folder of them",
        "models.entitynlm.data:read_conll",
        "conll",
        {"size": EntityNLMSize, "options": Options(batch_size=4)},  # long documents
    ),
    "lda": Trainable(
        "a topic model, by the sampler of tomotopy",
        *_TEXTS,
        "jsonl",
        {"fit": LDAFit},
        ("min_count", "lowercase"),
        dev=False,
    ),
    "lstm": Trainable(
        "a plain recurrent LM: LSTM, or Elman's network",
        *_TEXTS,
        "jsonl",
        {"size": LSTMSize, "options": Options},
        _WITH_WORDS,
        where="models.recurrent_training",
    ),
    "srnn": Trainable(
        "a sentence-level RNN, unnormalised",
        f"{_TEXTS[0]}; every line of a text is a sentence",
        _TEXTS[1],
        "txt",
        {
            "size": SRNNSize,
            "margin": MarginObjective,
            "options": Options(batch_size=64, epochs=10),
        },
        _WITH_WORDS,
        where="models.srnn",
    ),
    "rnng": Trainable(
        "a recurrent neural network grammar",
        "sentences: trees in brackets, or (unsupervised) one a line",
        "models.rnng.data:read_sentences",
        "mrg",
        {"size": RNNGSize, "options": Options},
        ("min_count", "objective", "init", "num_samples"),
    ),
}


def add_train(commands: Commands, summary: str) -> None:
    train = commands.add_parser("train", help=summary)
    models = train.add_subparsers(required=True, metavar="MODEL")
    for name, model in TRAINABLE.items():
        _add_model(models, name, model)
    spelling = models.add_parser(
        "spelling",
        help="spelling and spacing for a checkpoint that lacks them",
        example="lm-latent-eval train spelling DIR --data train.jsonl",
    )
    spelling.add_argument("checkpoint", type=Path, help="the checkpoint to complete")
    spelling.add_argument(
        "--data", type=Path, required=True, help="the text it was trained on"
    )
    spelling.set_defaults(run=_spelling)


def _add_model(models: Commands, name: str, model: Trainable) -> None:
    dev = f"--dev dev.{model.ending} " if model.dev else ""
    parser = models.add_parser(
        name,
        help=model.summary,
        example=f"lm-latent-eval train {name} --data train.{model.ending} {dev}"
        "--output DIR",
    )
    files = {"data": f"training {model.data}", "dev": "development text"}
    for file, summary in files.items():
        if file != "dev" or model.dev:
            parser.add_argument(f"--{file}", type=Path, required=True, help=summary)
    parser.add_argument(
        "--output", type=output_folder, required=True, help="checkpoint directory"
    )
    for argument in model.arguments:
        about = dict(_ARGUMENTS[argument])
        if "default" in about:
            about["help"] += f" (default: {about['default']})"
        parser.add_argument(f"--{argument.replace('_', '-')}", **about)
    for argument, table in model.tables.items():
        add_fields(parser, _TITLES.get(argument, "training"), table)
    parser.set_defaults(run=partial(_train, name, model))


def _train(name: str, model: Trainable, args: argparse.Namespace) -> None:
    _warn_of_idle(args)
    read = _function(model.reads)
    files = [args.data, args.dev] if model.dev else [args.data]
    train = _function(f"{model.where.format(name=name)}:train_{name}")
    tables = {argument: fields(kind, args) for argument, kind in model.tables.items()}
    if options := tables.get("options"):
        device = str(parse_device(options.device))
        tables["options"] = dataclasses.replace(options, device=device)
    trained = train(
        *map(read, files),
        args.output,
        **dict(_opened(argument, args) for argument in model.arguments),
        **tables,
    )
    more = ""
    if name == "lda":
        words = trained.config.vocab_size - len(trained.config.never_uttered)
        more = f": {trained.config.num_topics} topics of {words} words"
    print(f"wrote {args.output}{more}")


def _function(path: str) -> Callable[..., Any]:
    module, _, name = path.partition(":")
    function: Callable[..., Any] = getattr(
        import_module(f"lm_latent_eval.{module}"), name
    )
    return function


def _warn_of_idle(args: argparse.Namespace) -> None:
    if source := getattr(args, "vocabulary", None):
        warn_of_idle(args, ["min_count"], f"the vocabulary is that of {source}")
    if start := getattr(args, "init", None):
        taken = ["min_count", *(field.name for field in dataclasses.fields(RNNGSize))]
        warn_of_idle(args, taken, f"{start} has its own vocabulary and sizes")
    if getattr(args, "objective", None) == "supervised":
        warn_of_idle(
            args, ["num_samples"], "trees are drawn by --objective unsupervised"
        )


def _opened(argument: str, args: argparse.Namespace) -> tuple[str, Any]:
    given = getattr(args, argument)
    if argument == "knowledge":
        from lm_latent_eval.models.kglm.data import Knowledge

        return "knowledge", given and Knowledge.read(given)
    if argument == "vocabulary":
        from lm_latent_eval.models.checkpoint import load_tokenizer

        return "tokenizer", given and load_tokenizer(given)
    if argument == "init":
        from lm_latent_eval.models.checkpoint import load_checkpoint

        return "start", given and load_checkpoint(given, expected="rnng")
    return argument, given


def _spelling(args: argparse.Namespace) -> None:
    from lm_latent_eval.models.checkpoint import load_tokenizer, rewrite_manifest
    from lm_latent_eval.models.learning import learn_orthography
    from lm_latent_eval.text.corpora import read_texts

    tokenizer = load_tokenizer(args.checkpoint)
    learn_orthography(read_texts(args.data), tokenizer).save(args.checkpoint)
    rewrite_manifest(args.checkpoint)
    print(f"wrote spelling and spacing into {args.checkpoint}")
