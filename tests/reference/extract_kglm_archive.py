"""Extract the archives of the original KGLM and their documents, without their text.

    python tests/reference/extract_kglm_archive.py GOLDEN_DIR/kglm/archive

writes ``kglm_archive/`` beside this file: weights as they are, entities and relations
by their Wikidata names, and w0, w1, ... for words, the special ones as they are.
"""

from __future__ import annotations

import json
import shutil
import sys
import tarfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent / "kglm_archive"
BRANCHES = ("acl2020", "master")
SPECIAL = ("@@PADDING@@", "@@UNKNOWN@@", "@@START@@", "@@END@@")
FACTORS = (
    "mention_type",
    "new_entity_unmasked",
    "parent",
    "relation",
    "word_gen",
    "word_copy",
    "word",
    "word_penalized",
)


def extract(source: Path) -> dict[str, Any]:
    """Return names and numbers; words become w0, w1, ... in the order they are met."""

    def read(name: str) -> Any:
        return json.loads((source / f"{name}.json").read_text())

    number = {word: word for word in SPECIAL}

    def w(word: str) -> str:
        return number.setdefault(word, f"w{len(number)}")

    vocab, cases = read("vocab"), read("cases")
    for namespace in ("tokens", "tokens_unk"):
        vocab[namespace] = [w(word) for word in vocab[namespace]]
    aliases = {
        name: [[w(word) for word in form] for form in forms]
        for name, forms in sorted(read("aliases")["tokenized"].items())
    }
    for case in cases:
        del case["title"]
        case["tokens"] = [w(token) for token in case["tokens"]]
        case["p"]["factors"] = {f: case["p"]["factors"][f] for f in FACTORS}
    return {
        "config": {branch: config(source, branch) for branch in BRANCHES},
        "vocabulary": vocab,
        "edges": read("knowledge_graph"),
        "aliases": aliases,
        "cases": cases,
    }


def config(source: Path, branch: str) -> dict[str, Any]:
    """Return what an archive says of reader and model."""
    with tarfile.open(source / f"kglm.model.{branch}_branch.tar.gz") as tar:
        file = tar.extractfile("config.json")
        assert file is not None
        everything = json.load(file)
    return {name: everything[name] for name in ("dataset_reader", "model")}


def main() -> None:
    """Write the extract."""
    source = Path(sys.argv[1])
    HERE.mkdir(exist_ok=True)
    for branch in BRANCHES:
        weights = source / f"weights_{branch}_branch.safetensors"
        shutil.copyfile(weights, HERE / f"{branch}.safetensors")
    text = json.dumps(extract(source), separators=(",", ":"))
    (HERE / "archive.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
