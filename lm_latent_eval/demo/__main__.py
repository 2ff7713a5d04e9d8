"""Write the demonstration corpus: ``python -m lm_latent_eval.demo --out DIR``."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from lm_latent_eval.demo import CHECKPOINT
from lm_latent_eval.demo.document import raw_text
from lm_latent_eval.demo.graph import forward
from lm_latent_eval.demo.world import SIZES, generate


def main(argv: Sequence[str] | None = None) -> None:
    """Write ``train.jsonl``, ``dev.jsonl``, ``test.jsonl`` and ``knowledge.json``."""
    parser = argparse.ArgumentParser(
        prog="python -m lm_latent_eval.demo",
        description="Write the demonstration corpus, one JSON document a line, or say "
        "where the embedded model is.",
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--out", type=Path, help="folder to write the corpus to")
    what.add_argument(
        "--checkpoint", action="store_true", help="print the folder of the model"
    )
    parser.add_argument("--seed", type=int, default=0, help="which world (default 0)")
    arguments = parser.parse_args(argv)
    if arguments.checkpoint:
        print(CHECKPOINT)
        return

    world = generate(arguments.seed)
    arguments.out.mkdir(parents=True, exist_ok=True)
    for split in SIZES:
        documents = world.documents(split)
        records = [{"text": raw_text(d), **d} for d in documents]
        lines = [json.dumps(x, ensure_ascii=False) + "\n" for x in records]
        path = arguments.out / f"{split}.jsonl"
        path.write_text("".join(lines), encoding="utf-8", newline="\n")
        print(f"{path}: {len(documents)} documents")
    facts = sorted({forward(triple) for triple in world.triples})
    knowledge = {"triples": facts, "aliases": world.aliases}
    path = arguments.out / "knowledge.json"
    path.write_text(json.dumps(knowledge, ensure_ascii=False), encoding="utf-8")
    print(f"{path}: {len(facts)} facts about {len(world.entities)} entities")


if __name__ == "__main__":
    main()
