"""The original KGLM's models as archives: golden configurations, published ones."""

from __future__ import annotations

import json
import pickle
from functools import cache
from pathlib import Path

from safetensors.torch import load_file

from tests import kglm_reference as reference
from tests.allennlp_archive import files, write_tar

FOLDER = Path(__file__).parent / "reference" / "kglm_archive"
OPTIONS = ("hidden_size", "num_layers", "cutoff", "tie_weights", "use_shortlist")
"""Of a golden configuration, as the archive of a model has them."""
SPECIAL = ["@@PADDING@@", "@@UNKNOWN@@", "@@START@@", "@@END@@"]


def write_json(path: Path, content) -> Path:
    path.write_text(json.dumps(content))
    return path


# -- the golden configurations, written as archives ---------------------------------


def word(index: int) -> str:
    return SPECIAL[index] if index < len(SPECIAL) else f"w{index}"


def golden_archive(name: str, *, proposal: bool = False, offset: bool = False):
    """Files of configuration A, B or C, or of its proposal."""
    ref = reference.numbers()
    options = ref["config"]["models"][name]
    config = {
        "dataset_reader": {"type": "enhanced-wikitext-kglm", "offset": offset},
        "model": {
            "type": "kglm-disc" if proposal else "kglm",
            **{option: options[option] for option in OPTIONS},
        },
    }
    which = "kglmdisc" if proposal else "kglm"
    weights = load_file(reference.FOLDER / f"{which}_{name}.safetensors")
    vocabulary = {
        "tokens": [word(i) for i in range(ref["vocab_size"])],
        "tokens_unk": [f"unknown {i}" for i in range(ref["num_unknown_types"])],
        "entity_ids": ref["entities"],
        "raw_entity_ids": ref["nodes"],
        "relations": ref["relations"],
    }
    return config, weights, vocabulary


def knowledge(folder: Path) -> dict[str, Path]:
    """The golden graph and aliases: pickles, as the originals have them."""
    ref = reference.numbers()
    edges = {h: [tuple(edge) for edge in out] for h, out in ref["edges"].items()}
    aliases = {n: [list(map(word, f)) for f in fs] for n, fs in ref["aliases"].items()}
    for name, content in (("graph", edges), ("alias", aliases)):
        (folder / f"{name}.pkl").write_bytes(pickle.dumps(content))
    return {
        "knowledge_graph": folder / "graph.pkl",
        "aliases": folder / "alias.pkl",
    }


# -- the published fixtures --------------------------------------------------


@cache
def published() -> dict:
    """Names and numbers of the archives; words are w0, w1, ..."""
    return json.loads((FOLDER / "archive.json").read_text())


def written(folder: Path, branch: str, weights=None) -> dict[str, Path]:
    """Arguments of ``convert`` for an archive with the words replaced."""
    if weights is None:
        weights = load_file(FOLDER / f"{branch}.safetensors")
    contents = files(published()["config"][branch], weights, published()["vocabulary"])
    return {
        "archive": write_tar(folder / f"{branch}.tar.gz", contents),
        "knowledge_graph": write_json(folder / "graph.json", published()["edges"]),
        "aliases": write_json(folder / "aliases.json", published()["aliases"]),
    }


def real(folder: Path, golden_dir: Path, branch: str) -> dict[str, Path]:
    """Arguments of ``convert`` for the archive itself, and its real words."""
    source = golden_dir / "kglm" / "archive"
    aliases = json.loads((source / "aliases.json").read_text())["tokenized"]
    return {
        "archive": source / f"kglm.model.{branch}_branch.tar.gz",
        "knowledge_graph": source / "knowledge_graph.json",
        "aliases": write_json(folder / "aliases.json", aliases),
    }
