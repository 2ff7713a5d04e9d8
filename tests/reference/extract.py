"""Extract the numbers of the original programs that the tests compare with.

    python tests/reference/extract.py GOLDEN_DIR

writes ``entitynlm/``, ``kglm/``, ``kglm_archive/``, ``lrlm/`` and ``rnng/`` beside this
file: weights as they are, everything else as ids and numbers, without the words. Of
KGLM words become ids of the extended vocabulary, where alias-only words come last, and
w0, w1, ... in its archives. Of LRLM and NKLM, padding stands before unknown, and words
that are in no vocabulary after it.
"""

from __future__ import annotations

import json
import shutil
import sys
import tarfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
KGLM_FACTORS = (
    *("mention_type", "new_entity_unmasked", "parent", "relation"),
    *("word_gen", "word_copy", "word", "word_penalized"),
)


def read(source: Path, name: str, **options: Any) -> Any:
    """Read a file of golden numbers."""
    return json.loads((source / f"{name}.json").read_text(), **options)


def write(path: Path, content: Any, end: str = "\n") -> None:
    """Write an extract."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content, separators=(",", ":")) + end)


def kept(entry: dict[str, Any], names: Any) -> dict[str, Any]:
    """Return some items of an entry, those that it has."""
    return {name: entry[name] for name in names if name in entry}


def without(entry: dict[str, Any], *names: str) -> dict[str, Any]:
    """Return the other items of an entry."""
    return {name: value for name, value in entry.items() if name not in names}


def entitynlm(source: Path) -> None:
    """Configurations A and B."""
    checks = read(source, "checks")
    found = {
        "config": read(source, "config"),
        "cases": [
            {**case, "p": without(case["p"], "penalized_logp")}
            for case in read(source, "cases")
        ],
        "nonpeeking": read(source, "q_nonpeeking"),
        "exact": read(source, "exact"),
        "sampler_support": read(source, "sampler_support_exact"),
        "beam": [without(entry, "z", "logp") for entry in read(source, "beam")],
        "chunks": checks["chunk_check"],
        "padding": checks["padding_check"],
        "total_without_padding": checks["sum_over_x_nonpad_T3_B"],
    }
    write(HERE / "entitynlm" / "entitynlm.json", found)
    for path in source.glob("entity*.safetensors"):
        shutil.copy(path, HERE / "entitynlm")


def kglm(source: Path) -> None:
    """Configurations A, B and C."""
    vocab, forms = read(source, "vocab"), read(source, "aliases")["tokenized"]
    words = list(vocab["tokens"])
    for name in sorted(forms):
        for form in forms[name]:
            words += [w for w in form if w not in words]
    word_id = {w: i for i, w in enumerate(words)}

    def ids(tokens: list[str]) -> list[int]:
        return [word_id.get(token, 1) for token in tokens]

    cases = read(source, "cases")
    documents = {(c["model"], c["doc"], c["annotation"]): c for c in cases}
    q_cases = []
    for c in read(source, "q_cases"):
        document = documents[c["model"], c["doc"], c["annotation"]]
        q_cases.append(
            {
                **kept(c, ("model", "annotation")),
                "tokens": ids(document["tokens"]),
                "z": document["z"],
                **{
                    which: kept(c[which], ("logq_clean", "factors"))
                    for which in ("peeking", "nonpeeking")
                },
            }
        )
    found = {
        "config": read(source, "config"),
        "num_words": len(words),
        "vocab_size": len(vocab["tokens"]),
        "num_unknown_types": len(vocab["tokens_unk"]),
        "nodes": vocab["raw_entity_ids"],
        "entities": vocab["entity_ids"],
        "relations": vocab["relations"],
        "edges": read(source, "knowledge_graph"),
        "aliases": {name: [ids(form) for form in forms[name]] for name in forms},
        "cases": [
            {
                **kept(c, ("model", "annotation")),
                "tokens": ids(c["tokens"]),
                **kept(c, ("z", "shortlist")),
                **kept(c["p"], ("logp_clean", "penalized_logp_clean")),
                "factors": kept(c["p"]["factors"], KGLM_FACTORS),
                "tables": c.get("tables", c["p"].get("tables")),
            }
            for c in cases
        ],
        "q_cases": q_cases,
        "exact": [
            {**without(e, "top5_clean"), "tokens": ids(e["tokens"])}
            for e in read(source, "exact")
        ],
    }
    write(HERE / "kglm" / "kglm.json", found)
    for path in source.glob("kglm*.safetensors"):
        shutil.copy(path, HERE / "kglm")


def kglm_archive(source: Path) -> None:
    """Archives of two branches and their documents; special words as they are."""
    special = ("@@PADDING@@", "@@UNKNOWN@@", "@@START@@", "@@END@@")
    number = {word: word for word in special}

    def w(word: str) -> str:
        return number.setdefault(word, f"w{len(number)}")

    vocab, cases = read(source, "vocab"), read(source, "cases")
    for namespace in ("tokens", "tokens_unk"):
        vocab[namespace] = [w(word) for word in vocab[namespace]]
    aliases = {
        name: [[w(word) for word in form] for form in forms]
        for name, forms in sorted(read(source, "aliases")["tokenized"].items())
    }
    for case in cases:
        del case["title"]
        case["tokens"] = [w(token) for token in case["tokens"]]
        case["p"]["factors"] = kept(case["p"]["factors"], KGLM_FACTORS)
    branches, config = ("acl2020", "master"), {}
    for branch in branches:
        with tarfile.open(source / f"kglm.model.{branch}_branch.tar.gz") as tar:
            file = tar.extractfile("config.json")
            assert file is not None
            everything = json.load(file)
        config[branch] = {n: everything[n] for n in ("dataset_reader", "model")}
    found = {"config": config, "vocabulary": vocab}
    found |= {"edges": read(source, "knowledge_graph"), "aliases": aliases}
    write(HERE / "kglm_archive" / "archive.json", found | {"cases": cases})
    for branch in branches:
        weights = source / f"weights_{branch}_branch.safetensors"
        shutil.copyfile(weights, HERE / "kglm_archive" / f"{branch}.safetensors")


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
DOCUMENTS = ("long0", "long1", "long3", "short0", "short2", "short3")


def relation_models(source: Path) -> None:
    """Configurations A and B of LRLM, also with Transformer-XL, and of NKLM."""
    for name in "AB":
        write(HERE / "lrlm" / f"{name}.json", _relation_models(source / name), "")
        for model in ("lrlm", "lrlm_txl", "nklm"):
            weights = source / name / f"{model}.safetensors"
            shutil.copyfile(weights, HERE / "lrlm" / f"{model}_{name}.safetensors")


def _relation_models(folder: Path) -> dict[str, Any]:
    vocab, documents = read(folder, "vocab"), read(folder, "docs")
    words = [vocab[1], vocab[0], *vocab[2:]]
    strings = {w for d in documents for w in d["sentence"]}
    for relation in (r for d in documents for r in d["relations"]):
        strings |= {w for alias in relation["aliases"] for w in alias.split()}
    words += sorted(strings - {*words})
    number = {word: i for i, word in enumerate(words)}
    unknown, tables = read(folder, "unk"), read(folder, "lrlm_cases")

    def cases(name: str, of: tuple[str, ...], names: Any = None) -> list[Any]:
        found = [c for c in read(folder, name) if c["id"] in of]
        return [kept(c, names or c) for c in found]

    (next_token,) = (
        c.get("next_token_upp") or c["tables"]["next_token_upp"]
        for c in tables
        if c["id"] == "short0" and ("next_token_upp" in c or "tables" in c)
    )
    return {
        "config": read(folder, "config"),
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
            if d["id"] in DOCUMENTS
        ],
        "unknown_char": {
            number[w]: p for w, p in unknown["unk_probs_char"].items() if w in number
        },
        "upp": unknown["upp"],
        "lrlm": cases("lrlm_cases", ("long0", "short0", "short2"), LRLM),
        "lrlm_txl": cases("lrlm_txl_cases", ("long1", "short2"), TXL),
        "lrlm_exact": cases("lrlm_exact", ("short0", "short2")),
        "next_token_upp": [
            {
                "log_prefix": row["log_prefix"],
                "logp": {number[w]: p for w, p in row["logp"].items() if w in number},
            }
            for row in next_token
        ],
        "nklm": cases("nklm_cases", ("short0", "short2", "long3"), NKLM),
        "nklm_exact": cases("nklm_exact", ("short0", "short3")),
    }


def rnng(source: Path) -> None:
    """Configurations A, B and C, rounded to twelve decimals."""
    joint = ("actions", "word_log_probs", "action_log_probs")
    joint += ("log_p_words", "log_p_actions", "log_joint")

    def extract(sentence: dict[str, Any]) -> dict[str, Any]:
        found = kept(sentence, ("n", "ids", "q", "replay"))
        found["trees"] = [
            kept(tree, ("actions", "spans", "score", "log_q"))
            | {ends: kept(tree[ends], joint) for ends in ("no_eos", "eos")}
            for tree in sentence["trees"]
        ]
        return found | kept(sentence, ("exact", "exact_logp_only"))

    def rounded(number: str) -> float:
        return round(float(number), 12)

    for model in "ABC":
        found = read(source / model, "golden", parse_float=rounded)
        write(HERE / "rnng" / f"{model}.json", [*map(extract, found["sentences"])])
        weights = source / model / "weights.safetensors"
        shutil.copyfile(weights, HERE / "rnng" / f"{model}.safetensors")


if __name__ == "__main__":
    golden = Path(sys.argv[1])
    entitynlm(golden / "entitynlm")
    kglm(golden / "kglm")
    kglm_archive(golden / "kglm" / "archive")
    relation_models(golden / "lrlm")
    rnng(golden / "rnng")
