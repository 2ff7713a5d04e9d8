"""Commands about files: convert, text, manifest and tasks."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

from lm_latent_eval.cli.arguments import (
    Commands,
    not_read,
    output_folder,
)
from lm_latent_eval.folders import task_path


def add_convert(commands: Commands, summary: str) -> None:
    convert = commands.add_parser("convert", help=summary)
    originals = convert.add_subparsers(required=True, metavar="MODEL")
    kglm = originals.add_parser(
        "kglm",
        help="an AllenNLP archive of a KGLM",
        example="lm-latent-eval convert kglm --archive model.tar.gz --output DIR",
    )
    _add_archives(kglm, "kglm-disc")
    for name, holds in (
        ("knowledge-graph", "entity -> [(relation, tail), ...]"),
        ("aliases", "entity -> [name, ...]"),
    ):
        kglm.add_argument(
            f"--{name}",
            type=Path,
            help=f"pickle or JSON of {holds} (default: what the archive names)",
        )
    _add_output(kglm, _kglm)

    entitynlm = originals.add_parser(
        "entitynlm",
        help="an archive of an EntityNLM",
        example="lm-latent-eval convert entitynlm --archive model.tar.gz --output DIR",
    )
    _add_archives(entitynlm, "EntityDisc")
    _add_output(entitynlm, _entitynlm)

    rnng = originals.add_parser(
        "rnng",
        help="a checkpoint of the URNNG program",
        example="lm-latent-eval convert rnng --model rnng.pt --output DIR",
    )
    rnng.add_argument("--model", type=Path, required=True, help="the .pt file")
    rnng.add_argument(
        "--no-sentence-ends",
        action="store_true",
        help="score no ends, as published: no distribution over lengths",
    )
    _add_output(rnng, _rnng)

    lda = originals.add_parser(
        "lda",
        help="a topic model of another library",
        example="lm-latent-eval convert lda --tables topics.npz --output DIR",
    )
    lda.add_argument(
        "--tables",
        type=Path,
        required=True,
        help="words, phi and alpha, by numpy.savez (docs/lda.md has the line)",
    )
    _add_output(lda, _lda)

    for name, what in (
        ("lrlm", "a checkpoint of the LRLM program"),
        ("nklm", "an NKLM of the same program"),
    ):
        files = " ".join(f"--{file} {file.upper()}" for file in _RELATION_FILES)
        example = f"lm-latent-eval convert {name} {files} --texts TEXTS --output DIR"
        _add_relation_files(originals.add_parser(name, help=what, example=example))


def _add_output(
    parser: argparse.ArgumentParser, run: Callable[[argparse.Namespace], None]
) -> None:
    parser.add_argument(
        "--output", type=output_folder, required=True, help="checkpoint directory"
    )
    parser.set_defaults(run=run)


_RELATION_FILES = {
    "model": "the checkpoint, a torch file with 'model'",
    "options": "JSON of the training command's options",
    "vocabulary": "JSON list of the words in the order of their ids",
    "entities": "entity_vec.pt",
    "relations": "relation_vec.pt",
    "aliases": "JSON list of alias strings in the order of their vectors",
    "alias-vectors": "those vectors, a torch file",
}


def _add_relation_files(parser: argparse.ArgumentParser) -> None:
    for name, what in _RELATION_FILES.items():
        parser.add_argument(f"--{name}", type=Path, required=True, help=what)
    parser.add_argument(
        "--texts",
        type=Path,
        action="append",
        required=True,
        help="pickle of texts with their relations; may be given again",
    )
    _add_output(parser, _relations)


def _relations(args: argparse.Namespace) -> None:
    from lm_latent_eval.convert.relation_models import Files, convert

    names = [name.replace("-", "_") for name in (*_RELATION_FILES, "texts")]
    model = convert(Files(**{name: getattr(args, name) for name in names}), args.output)
    config = model.config
    print(
        f"wrote {args.output}: {config.vocab_size} words to utter, "
        f"{config.num_words - config.vocab_size} more to copy; {config.num_topics} "
        f"topics with {config.num_facts} facts; {model.normalization}"
    )


def _add_archives(parser: argparse.ArgumentParser, proposal: str) -> None:
    parser.add_argument(
        "--archive", type=Path, required=True, help="the model: tar.gz or directory"
    )
    parser.add_argument(
        "--proposal",
        type=Path,
        action="append",
        default=[],
        help=f"archive of one {proposal}; once peeking, once not (default: none)",
    )


def _entitynlm(args: argparse.Namespace) -> None:
    from lm_latent_eval.convert.entitynlm import convert

    model = convert(args.archive, args.output, proposals=args.proposal)
    print(
        f"wrote {args.output}: {model.config.vocab_size} words to utter; "
        f"proposals: {', '.join(model.proposal_names)}"
    )


def _kglm(args: argparse.Namespace) -> None:
    from lm_latent_eval.convert.kglm import convert

    model = convert(
        args.archive,
        args.output,
        knowledge_graph=args.knowledge_graph,
        aliases=args.aliases,
        proposals=args.proposal,
    )
    config, graph = model.config, model.knowledge
    print(
        f"wrote {args.output}: {config.vocab_size} words to utter, "
        f"{config.num_words - config.vocab_size} more to copy; "
        f"{graph.num_nodes} nodes, {graph.num_edges} edges; "
        f"proposals: {', '.join(model.proposal_names)}"
    )


def _lda(args: argparse.Namespace) -> None:
    from lm_latent_eval.convert.lda import convert
    from lm_latent_eval.text.words import WordTokenizer, split

    model = convert(args.tables, args.output)
    config = model.config
    case = "looked up in lower case" if config.lowercase else "as they are"
    print(
        f"wrote {args.output}: {config.num_topics} topics of "
        f"{config.vocab_size - len(config.never_uttered)} words, {case}"
    )
    words = WordTokenizer.load(args.output, config.vocab_size).vocabulary
    if apart := [word for word in words if split(word) != [word]]:
        print(
            f"texts are cut by our rule, not by the other library's: {len(apart)} "
            f"words such as {apart[0]!r} are in none"
        )


def _rnng(args: argparse.Namespace) -> None:
    from lm_latent_eval.convert.rnng import convert

    model = convert(args.model, args.output, sentence_ends=not args.no_sentence_ends)
    print(f"wrote {args.output}: {model.config.vocab_size} words")


def add_text(commands: Commands, summary: str) -> None:
    text = commands.add_parser(
        "text",
        help=summary,
        example="lm-latent-eval text trees.mrg --output texts.jsonl",
    )
    text.add_argument(
        "data", type=Path, help="trees in brackets or CoNLL: a file or a folder"
    )
    text.add_argument("--output", type=Path, required=True, help="JSON lines with text")
    text.set_defaults(run=_text)


def _text(args: argparse.Namespace) -> None:
    from lm_latent_eval.files import write_text
    from lm_latent_eval.models.texts import read_texts

    not_read(args.output, [args.data])
    texts = read_texts(args.data)
    lines = (json.dumps({"text": text}, ensure_ascii=False) for text in texts)
    write_text(args.output, "".join(f"{line}\n" for line in lines))
    print(f"wrote {len(texts):,} texts to {args.output}")


def add_manifest(commands: Commands, summary: str) -> None:
    manifest = commands.add_parser(
        "manifest", help=summary, example="lm-latent-eval manifest DIR"
    )
    manifest.add_argument("checkpoint", type=Path, help="the directory")
    manifest.set_defaults(run=_rewrite)


def _rewrite(args: argparse.Namespace) -> None:
    from lm_latent_eval.models.checkpoint import rewrite_manifest

    loaded = rewrite_manifest(args.checkpoint)
    print(
        f"wrote the manifest of {args.checkpoint}: a {loaded.name} model, checkpoint "
        f"{loaded.digest}"
    )


def add_tasks(commands: Commands, summary: str) -> None:
    tasks = commands.add_parser(
        "tasks",
        help=summary,
        example="lm-latent-eval tasks",
    )
    tasks.set_defaults(run=_tasks)


def _tasks(args: argparse.Namespace) -> None:
    print(task_path())
