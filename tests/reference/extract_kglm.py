"""Extract the numbers of the original KGLM that the tests compare with.

    python tests/reference/extract_kglm.py GOLDEN_DIR/kglm

writes ``kglm/`` beside this file: weights as they are, everything else as ids and
numbers (words become ids of the extended vocabulary, alias-only words come last).
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent / "kglm"
FACTORS = [
    "mention_type",
    "new_entity_unmasked",
    "parent",
    "relation",
    "word_gen",
    "word_copy",
    "word",
    "word_penalized",
]


def extract(source: Path) -> dict[str, Any]:
    """Return ids and numbers of the cases of configurations A, B and C."""

    def read(name: str) -> Any:
        return json.loads((source / f"{name}.json").read_text())

    vocab, aliases = read("vocab"), read("aliases")
    words = list(vocab["tokens"])
    forms = aliases["tokenized"]
    for name in sorted(forms):
        for form in forms[name]:
            words += [w for w in form if w not in words]
    word_id = {w: i for i, w in enumerate(words)}

    def ids(tokens: list[str]) -> list[int]:
        return [word_id.get(token, 1) for token in tokens]

    cases = [
        {
            "model": c["model"],
            "annotation": c["annotation"],
            "tokens": ids(c["tokens"]),
            "z": c["z"],
            "shortlist": c["shortlist"],
            "logp_clean": c["p"]["logp_clean"],
            "penalized_logp_clean": c["p"]["penalized_logp_clean"],
            "factors": {name: c["p"]["factors"][name] for name in FACTORS},
            "tables": c.get("tables", c["p"].get("tables")),
        }
        for c in read("cases")
    ]
    documents = {(c["model"], c["doc"], c["annotation"]): c for c in read("cases")}
    q_cases = [
        {
            "model": c["model"],
            "annotation": c["annotation"],
            "tokens": ids(documents[c["model"], c["doc"], c["annotation"]]["tokens"]),
            "z": documents[c["model"], c["doc"], c["annotation"]]["z"],
            **{
                which: {
                    "logq_clean": c[which]["logq_clean"],
                    "factors": c[which]["factors"],
                }
                for which in ("peeking", "nonpeeking")
            },
        }
        for c in read("q_cases")
    ]
    exact = [
        {
            **{k: v for k, v in e.items() if k != "top5_clean"},
            "tokens": ids(e["tokens"]),
        }
        for e in read("exact")
    ]
    return {
        "config": read("config"),
        "num_words": len(words),
        "vocab_size": len(vocab["tokens"]),
        "num_unknown_types": len(vocab["tokens_unk"]),
        "nodes": vocab["raw_entity_ids"],
        "entities": vocab["entity_ids"],
        "relations": vocab["relations"],
        "edges": read("knowledge_graph"),
        "aliases": {name: [ids(form) for form in forms[name]] for name in forms},
        "cases": cases,
        "q_cases": q_cases,
        "exact": exact,
    }


def main() -> None:
    """Write the extract."""
    source = Path(sys.argv[1])
    HERE.mkdir(exist_ok=True)
    for path in source.glob("kglm*.safetensors"):
        shutil.copy(path, HERE / path.name)
    text = json.dumps(extract(source), separators=(",", ":"))
    (HERE / "kglm.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
