"""``lm-latent-eval train``: fit a model, or the spelling of one, to text."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

from lm_latent_eval.cli.arguments import Commands, add_fields, fields, say_idle
from lm_latent_eval.training.options import (
    EntityNLMSize,
    KGLMSize,
    LDAFit,
    LRLMSize,
    LSTMSize,
    MarginObjective,
    MDMSize,
    NKLMSize,
    Options,
    RNNGSize,
    RNNSize,
    SRNNSize,
)


def add_to(commands: Commands) -> None:
    """Add the command."""
    train = commands.add_parser("train", help="train a model and write a checkpoint")
    models = train.add_subparsers(required=True, metavar="MODEL")

    kglm = models.add_parser(
        "kglm",
        help="a knowledge graph LM and its proposals",
        example=_example("kglm", "jsonl"),
    )
    _add_annotated(kglm)
    add_fields(kglm, "size", KGLMSize)
    add_fields(kglm, "training", Options)
    kglm.set_defaults(run=_kglm)

    lrlm = models.add_parser(
        "lrlm",
        help="a latent relation LM, whose sum is exact",
        example=_example("lrlm", "jsonl"),
    )
    _add_annotated(lrlm)
    add_fields(lrlm, "size", LRLMSize)
    add_fields(lrlm, "training", Options)
    lrlm.set_defaults(run=_lrlm)

    nklm = models.add_parser(
        "nklm",
        help="a neural knowledge LM, which copies words",
        example=_example("nklm", "jsonl"),
    )
    _add_annotated(nklm)
    add_fields(nklm, "size", NKLMSize)
    add_fields(nklm, "training", Options)
    nklm.set_defaults(run=_nklm)

    entitynlm = models.add_parser(
        "entitynlm",
        help="an entity LM and its proposals",
        example=_example("entitynlm", "conll"),
    )
    _add_data(entitynlm, "documents with coreference, a CoNLL file or a folder of them")
    add_fields(entitynlm, "size", EntityNLMSize)
    add_fields(entitynlm, "training", Options(batch_size=4))  # documents are long
    entitynlm.set_defaults(run=_entitynlm)

    lda = models.add_parser(
        "lda",
        help="a topic model, by the sampler of tomotopy",
        example="lm-latent-eval train lda --data train.jsonl --output DIR",
    )
    lda.add_argument("--data", type=Path, required=True, help=f"training {_TEXTS}")
    lda.add_argument("--output", type=Path, required=True, help="checkpoint directory")
    lda.add_argument(
        "--min-count", type=int, default=2, help="rarer words are left out (default: 2)"
    )
    lda.add_argument(
        "--lowercase", action="store_true", help="write every word in lower case"
    )
    add_fields(lda, "training", LDAFit)
    lda.set_defaults(run=_lda)

    lstm = models.add_parser(
        "lstm",
        help="a plain LSTM LM",
        example=_example("lstm", "jsonl"),
    )
    _add_data(lstm, _TEXTS)
    _add_words(lstm)
    add_fields(lstm, "size", LSTMSize)
    add_fields(lstm, "training", Options)
    lstm.set_defaults(run=_lstm)

    rnn = models.add_parser(
        "rnn",
        help="a simple recurrent (Elman) LM",
        example=_example("rnn", "txt"),
    )
    _add_data(rnn, _TEXTS)
    _add_words(rnn)
    add_fields(rnn, "size", RNNSize)
    add_fields(rnn, "training", Options)
    rnn.set_defaults(run=_rnn)

    srnn = models.add_parser(
        "srnn",
        help="a sentence-level RNN, unnormalised",
        example=_example("srnn", "txt"),
    )
    _add_data(srnn, f"{_TEXTS}; every line of a text is a sentence")
    _add_words(srnn)
    add_fields(srnn, "size", SRNNSize)
    add_fields(srnn, "task", MarginObjective)
    add_fields(srnn, "training", Options(batch_size=64, epochs=10))
    srnn.set_defaults(run=_srnn)

    rnng = models.add_parser(
        "rnng",
        help="a recurrent neural network grammar",
        example=_example("rnng", "mrg"),
    )
    _add_data(rnng, "sentences: trees in brackets, or (unsupervised) one a line")
    rnng.add_argument(
        "--objective",
        choices=("supervised", "unsupervised"),
        default="supervised",
        help="learn from trees, or from sentences alone (default: supervised)",
    )
    rnng.add_argument("--init", type=Path, help="checkpoint to go on from")
    rnng.add_argument(
        "--num-samples", type=int, default=4, help="trees a sentence (default: 4)"
    )
    add_fields(rnng, "size", RNNGSize)
    add_fields(rnng, "training", Options)
    rnng.set_defaults(run=_rnng)

    mdm = models.add_parser(
        "mdm",
        help="a masked diffusion transformer",
        example=_example("mdm", "jsonl"),
    )
    _add_data(mdm, _TEXTS, min_count=False)
    add_fields(mdm, "size", MDMSize)
    add_fields(mdm, "training", Options)
    mdm.set_defaults(run=_mdm)

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


def _example(model: str, kind: str) -> str:
    return (
        f"lm-latent-eval train {model} --data train.{kind} --dev dev.{kind} "
        "--output DIR"
    )


_TEXTS = (
    "texts: JSON lines with tokens or text, or one text a line; or the trees or CoNLL "
    "files of other models"
)


def _add_words(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--vocabulary", type=Path, help="checkpoint whose vocabulary to take over"
    )
    parser.add_argument(
        "--already-cut",
        action="store_true",
        help="words stand between white space, cut by another program",
    )


def _add_data(
    parser: argparse.ArgumentParser, what: str, *, min_count: bool = True
) -> None:
    parser.add_argument("--data", type=Path, required=True, help=f"training {what}")
    parser.add_argument("--dev", type=Path, required=True, help="development text")
    parser.add_argument(
        "--output", type=Path, required=True, help="checkpoint directory"
    )
    if min_count:
        parser.add_argument(
            "--min-count",
            type=int,
            default=2,
            help="rarer words are unknown (default: 2)",
        )


def _add_annotated(parser: argparse.ArgumentParser) -> None:
    _add_data(parser, "annotated texts, JSON lines")
    parser.add_argument(
        "--knowledge", type=Path, help="JSON of further triples and names"
    )


def _kglm(args: argparse.Namespace) -> None:
    from lm_latent_eval.models.kglm.training import train_kglm

    train_kglm(
        **_annotated(args), size=fields(KGLMSize, args), options=fields(Options, args)
    )
    print(f"wrote {args.output}")


def _lrlm(args: argparse.Namespace) -> None:
    from lm_latent_eval.models.lrlm.training import train_lrlm

    train_lrlm(
        **_annotated(args), size=fields(LRLMSize, args), options=fields(Options, args)
    )
    print(f"wrote {args.output}")


def _nklm(args: argparse.Namespace) -> None:
    from lm_latent_eval.models.nklm.training import train_nklm

    train_nklm(
        **_annotated(args), size=fields(NKLMSize, args), options=fields(Options, args)
    )
    print(f"wrote {args.output}")


def _annotated(args: argparse.Namespace) -> dict[str, Any]:
    """Read what every model of annotated texts is trained on."""
    from lm_latent_eval.models.kglm.data import Knowledge, read_annotated

    return {
        "texts": read_annotated(args.data),
        "dev": read_annotated(args.dev),
        "directory": args.output,
        "knowledge": Knowledge.read(args.knowledge) if args.knowledge else None,
        "min_count": args.min_count,
    }


def _entitynlm(args: argparse.Namespace) -> None:
    from lm_latent_eval.models.entitynlm.conll import read_conll
    from lm_latent_eval.models.entitynlm.training import train_entitynlm

    train_entitynlm(
        read_conll(args.data),
        read_conll(args.dev),
        args.output,
        min_count=args.min_count,
        size=fields(EntityNLMSize, args),
        options=fields(Options, args),
    )
    print(f"wrote {args.output}")


def _lda(args: argparse.Namespace) -> None:
    from lm_latent_eval.models.lda.training import train_lda
    from lm_latent_eval.models.texts import read_texts

    model = train_lda(
        read_texts(args.data),
        args.output,
        min_count=args.min_count,
        lowercase=args.lowercase,
        fit=fields(LDAFit, args),
    )
    words = model.config.vocab_size - len(model.config.never_uttered)
    print(f"wrote {args.output}: {model.config.num_topics} topics of {words} words")


def _lstm(args: argparse.Namespace) -> None:
    from lm_latent_eval.models.lstm.training import train_lstm

    train_lstm(
        **_texts(args), size=fields(LSTMSize, args), options=fields(Options, args)
    )
    print(f"wrote {args.output}")


def _rnn(args: argparse.Namespace) -> None:
    from lm_latent_eval.models.rnn.training import train_rnn

    train_rnn(**_texts(args), size=fields(RNNSize, args), options=fields(Options, args))
    print(f"wrote {args.output}")


def _srnn(args: argparse.Namespace) -> None:
    from lm_latent_eval.models.srnn.training import train_srnn

    train_srnn(
        **_texts(args),
        size=fields(SRNNSize, args),
        margin=fields(MarginObjective, args),
        options=fields(Options, args),
    )
    print(f"wrote {args.output}")


def _texts(args: argparse.Namespace) -> dict[str, Any]:
    """Read what every model of plain texts is trained on."""
    from lm_latent_eval.models.checkpoint import load_tokenizer
    from lm_latent_eval.models.texts import read_texts

    if args.vocabulary:
        say_idle(args, ["min_count"], f"the vocabulary is that of {args.vocabulary}")
    return {
        "texts": read_texts(args.data),
        "dev": read_texts(args.dev),
        "directory": args.output,
        "tokenizer": load_tokenizer(args.vocabulary) if args.vocabulary else None,
        "min_count": args.min_count,
        "already_cut": args.already_cut,
    }


def _rnng(args: argparse.Namespace) -> None:
    from lm_latent_eval.models.checkpoint import load_checkpoint
    from lm_latent_eval.models.rnng.data import read_sentences
    from lm_latent_eval.models.rnng.training import train_rnng

    if args.init:
        taken = ["min_count", *(field.name for field in dataclasses.fields(RNNGSize))]
        say_idle(args, taken, f"{args.init} has its own vocabulary and sizes")
    if args.objective == "supervised":
        say_idle(args, ["num_samples"], "trees are drawn by --objective unsupervised")
    train_rnng(
        read_sentences(args.data),
        read_sentences(args.dev),
        args.output,
        objective=args.objective,
        start=load_checkpoint(args.init, expected="rnng") if args.init else None,
        min_count=args.min_count,
        num_samples=args.num_samples,
        size=fields(RNNGSize, args),
        options=fields(Options, args),
    )
    print(f"wrote {args.output}")


def _mdm(args: argparse.Namespace) -> None:
    from lm_latent_eval.models.texts import read_texts
    from lm_latent_eval.wrappers.mdm.training import train_mdm

    train_mdm(
        read_texts(args.data),
        read_texts(args.dev),
        args.output,
        size=fields(MDMSize, args),
        options=fields(Options, args),
    )
    print(f"wrote {args.output}")


def _spelling(args: argparse.Namespace) -> None:
    from lm_latent_eval.models.checkpoint import load_tokenizer, seal
    from lm_latent_eval.text.corpora import read_texts
    from lm_latent_eval.training.orthography import learn_orthography

    tokenizer = load_tokenizer(args.checkpoint)
    learn_orthography(read_texts(args.data), tokenizer).save(args.checkpoint)
    seal(args.checkpoint)
    print(f"wrote spelling and spacing into {args.checkpoint}")
