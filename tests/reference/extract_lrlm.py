"""Extract the numbers of the original LRLM and NKLM that the tests compare with.

    python tests/reference/extract_lrlm.py GOLDEN_DIR/lrlm

writes ``lrlm/`` beside this file: weights as they are, everything else as ids and
numbers. Word ids are this package's: padding before unknown, and words that are in no
vocabulary after it.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent / "lrlm"
MODELS = ("lrlm", "lrlm_txl", "nklm")
LRLM = (
    *("id", "selector", "word", "relation", "alias", "spans"),
    *("unk_term_char", "unk_term_upp"),
    *(f"logp_{v}" for v in ("none", "char", "upp", "oracle")),
    *(f"logp_without_end_{v}" for v in ("none", "char", "upp", "oracle")),
    *(f"alpha_{v}" for v in ("none", "oracle")),
    *("viterbi_none", "posterior_word_none", "log_prefix_none", "log_prefix_char"),
)
NKLM = (
    *("id", "annotation", "rel", "pos", "surface", "logp_none", "logp_char"),
    *("fact", "copy_prob", "word", "position", "alias"),
)
TXL = (
    *("id", "states", "selector", "word", "alpha_none", "alpha_char"),
    *("chunks_bptt6", "chunks_bptt6_clean_memory"),
)
KEPT = ("long0", "long1", "long3", "short0", "short2", "short3")
SCORED = ("long0", "short0", "short2")


def extract(folder: Path) -> dict[str, Any]:
    """Return ids and numbers of one configuration."""

    def read(name: str) -> Any:
        return json.loads((folder / f"{name}.json").read_text())

    vocab, documents = read("vocab"), read("docs")
    words = [vocab[1], vocab[0], *vocab[2:]]
    strings = [w for d in documents for w in d["sentence"]]
    strings += [
        w
        for d in documents
        for r in d["relations"]
        for a in r["aliases"]
        for w in a.split()
    ]
    words += sorted(set(strings) - set(words))
    number = {word: i for i, word in enumerate(words)}
    documents = [d for d in documents if d["id"] in KEPT]
    unknown = read("unk")
    tables = read("lrlm_cases")

    def case(record: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
        return {name: record[name] for name in names if name in record}

    return {
        "config": read("config"),
        "num_words": len(words),
        "documents": [
            {
                "id": d["id"],
                "words": [number[w] for w in d["sentence"]],
                "facts": [
                    {
                        "rel_typ": r["rel_typ"],
                        "obj_id": r["obj_id"],
                        "rows": r["alias_vec_rows"],
                        "aliases": [
                            [number[w] for w in a.split()] for a in r["aliases"]
                        ],
                    }
                    for r in d["relations"]
                ],
            }
            for d in documents
        ],
        "unknown_char": {
            number[w]: p for w, p in unknown["unk_probs_char"].items() if w in number
        },
        "upp": unknown["upp"],
        "lrlm": [case(c, LRLM) for c in tables if c["id"] in SCORED],
        "lrlm_txl": [
            case(c, TXL)
            for c in read("lrlm_txl_cases")
            if c["id"] in ("long1", "short2")
        ],
        "lrlm_exact": [
            c for c in read("lrlm_exact") if c["id"] in ("short0", "short2")
        ],
        "next_token_upp": _next_token(tables, number),
        "nklm": [
            case(c, NKLM)
            for c in read("nklm_cases")
            if c["id"] in ("short0", "short2", "long3")
        ],
        "nklm_exact": [
            c for c in read("nklm_exact") if c["id"] in ("short0", "short3")
        ],
    }


def _next_token(cases: list[dict[str, Any]], number: dict[str, int]) -> list[Any]:
    """Return the table of next strings of the one document that has it, by id."""
    (table,) = (
        c.get("next_token_upp") or c["tables"]["next_token_upp"]
        for c in cases
        if c["id"] == "short0" and ("next_token_upp" in c or "tables" in c)
    )
    return [
        {
            "log_prefix": row["log_prefix"],
            "logp": {number[w]: p for w, p in row["logp"].items() if w in number},
        }
        for row in table
    ]


if __name__ == "__main__":
    source = Path(sys.argv[1])
    HERE.mkdir(exist_ok=True)
    for name in "AB":
        found = extract(source / name)
        (HERE / f"{name}.json").write_text(json.dumps(found, separators=(",", ":")))
        for model in MODELS:
            shutil.copyfile(
                source / name / f"{model}.safetensors",
                HERE / f"{model}_{name}.safetensors",
            )
