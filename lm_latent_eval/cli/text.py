"""``lm-latent-eval text``: plain texts of annotated files."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from lm_latent_eval.cli.arguments import Commands


def add_to(commands: Commands, said: str) -> None:
    """Add the command."""
    text = commands.add_parser(
        "text",
        help=said,
        example="lm-latent-eval text trees.mrg --output texts.jsonl",
    )
    text.add_argument(
        "data", type=Path, help="trees in brackets or CoNLL: a file or a folder"
    )
    text.add_argument("--output", type=Path, required=True, help="JSON lines with text")
    text.set_defaults(run=_text)


def _text(args: argparse.Namespace) -> None:
    from lm_latent_eval.durable import write_text
    from lm_latent_eval.models.texts import read_texts

    texts = read_texts(args.data)
    lines = (json.dumps({"text": text}, ensure_ascii=False) for text in texts)
    write_text(args.output, "".join(f"{line}\n" for line in lines))
    print(f"wrote {len(texts):,} texts to {args.output}")
