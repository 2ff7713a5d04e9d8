"""Write the demonstration corpus: ``python -m lm_latent_eval.demo --out DIR``."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from lm_latent_eval.demo import CHECKPOINT, SPLITS, documents, knowledge


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
    arguments = parser.parse_args(argv)
    if arguments.checkpoint:
        print(CHECKPOINT)
        return

    if arguments.out.is_file():
        parser.error(f"--out {arguments.out} is a file: name a folder")
    arguments.out.mkdir(parents=True, exist_ok=True)
    for split in SPLITS:
        found = documents(split)
        path = arguments.out / f"{split}.jsonl"
        lines = [json.dumps(document, ensure_ascii=False) + "\n" for document in found]
        path.write_text("".join(lines), encoding="utf-8", newline="\n")
        print(f"{path}: {len(found)} documents")
    graph = knowledge()
    path = arguments.out / "knowledge.json"
    path.write_text(json.dumps(graph, ensure_ascii=False), encoding="utf-8")
    facts, entities = len(graph["triples"]), len(graph["aliases"])
    print(f"{path}: {facts} facts about {entities} entities")


if __name__ == "__main__":
    main()
