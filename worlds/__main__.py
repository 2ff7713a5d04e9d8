"""Draw again what ``lm_latent_eval.demo`` ships: ``python -m worlds``."""

import argparse
import bz2
import json
from collections.abc import Iterable, Sequence

from lm_latent_eval.demo import DATA, SPLITS, Document
from worlds.facts import facts
from worlds.graph import forward
from worlds.world import generate


def main(argv: Sequence[str] | None = None) -> None:
    """Write the files, in which nothing tells when that was."""
    argparse.ArgumentParser(description=__doc__).parse_args(argv)
    DATA.mkdir(exist_ok=True)
    for name, content in contents().items():
        path, plain = DATA / f"{name}.bz2", content.encode()
        path.write_bytes(bz2.compress(plain))
        print(f"{path}: {path.stat().st_size:,} bytes of {len(plain):,}")


def contents() -> dict[str, str]:
    """Return what each file holds: all of one world, and the texts of another."""
    world, other = generate(seed=0), generate(seed=1)
    others = [each["text"] for split in SPLITS for each in other.documents(split)]
    told = sorted({forward(triple) for triple in world.triples})
    knowledge = {"triples": told, "aliases": world.aliases}
    return {
        f"{split}.jsonl": _lines(map(_without_tokens, world.documents(split)))
        for split in SPLITS
    } | {
        "knowledge.json": _lines([knowledge]),
        "questions.jsonl": _lines(facts(world)),
        "other_texts.jsonl": _lines(others),
    }


def _without_tokens(document: Document) -> dict[str, object]:
    """Leave out what follows from the text."""
    return {name: value for name, value in document.items() if name != "tokens"}


def _lines(values: Iterable[object]) -> str:
    return "".join(
        json.dumps(each, ensure_ascii=False, separators=(",", ":")) + "\n"
        for each in values
    )


if __name__ == "__main__":
    main()
