"""The original's models and numbers, of ``tests/reference/lrlm``."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from lm_latent_eval.convert.relation_models import (
    lrlm_config_of,
    object_number,
    relation_number,
    weights_of,
)
from lm_latent_eval.models.lrlm.configuration import LRLMConfig
from lm_latent_eval.models.lrlm.latents import Readings
from lm_latent_eval.models.lrlm.modeling import LRLM
from lm_latent_eval.models.lrlm.topics import Fact, Topics
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.words import END, START

HERE = Path(__file__).parents[2] / "reference" / "lrlm"
NAMES = ("A", "B")
TOLERANCE = 1e-10


@cache
def numbers(name: str) -> dict[str, Any]:
    return json.loads((HERE / f"{name}.json").read_text())


@cache
def original(name: str, model: str) -> dict[str, torch.Tensor]:
    return load_file(HERE / f"{model}_{name}.safetensors")


def topics(name: str, weights: dict[str, torch.Tensor]) -> Topics:
    """One topic a document, named as it is."""
    relations = len(weights["relation_vec"])
    special = sum(n.startswith("special_rel_vecs.") for n in weights)
    aliases: dict[int, list[int]] = {}
    found = {}
    for document in numbers(name)["documents"]:
        facts = []
        for f in document["facts"]:
            aliases |= zip(f["rows"], f["aliases"], strict=True)
            facts.append(
                Fact(
                    relation_number(f["rel_typ"], relations, special),
                    object_number(f["obj_id"], len(weights["entity_vec"])),
                    tuple(f["rows"]),
                )
            )
        found[document["id"]] = facts
    # Rows of documents that were left out are nobody's names.
    rows = [aliases.get(n, [4]) for n in range(len(weights["alias_vec"]))]
    return Topics.build(found, rows)


def lrlm(name: str, **changes: Any) -> LRLM:
    """The original LRLM of a configuration in this package's terms, in float64."""
    weights, options = original(name, "lrlm"), numbers(name)["config"]["lrlm"]
    known = topics(name, weights)
    config = LRLMConfig(
        **lrlm_config_of(options, weights, numbers(name)["config"]["vocab_size"])
        | {"num_words": numbers(name)["num_words"], **known.sizes(), **changes}
    )
    model = LRLM(config, known).double()
    renamed = weights_of(weights, tied=config.tie_weights)
    if config.oracle:
        renamed = {n: w for n, w in renamed.items() if not n.startswith("to_alias.")}
    model.load_state_dict(renamed)
    return model.eval().requires_grad_(False)


def document(name: str, which: str) -> dict[str, Any]:
    (found,) = (d for d in numbers(name)["documents"] if d["id"] == which)
    return found


def batch(name: str, texts: list[list[int]], variant: str = "none") -> TokenBatch:
    """Texts without ends, under one of the original's prices of unknown words."""
    content = numbers(name)
    size = content["config"]["vocab_size"]
    price = {int(w): p for w, p in content["unknown_char"].items()}

    def cost(word: int) -> float:
        if word < size or variant in ("none", "oracle"):
            return 0.0
        return price[word] if variant == "char" else content["upp"]

    return TokenBatch.collate(
        texts, [[cost(w) for w in text] for text in texts], first=START
    )


def whole(name: str, which: str) -> list[int]:
    return [*document(name, which)["words"], END]


def every(kind: str) -> pytest.MarkDecorator:
    """Parametrise a test by the golden numbers of every document."""
    return pytest.mark.parametrize(
        ("name", "case"),
        [
            pytest.param(name, case, id=f"{name}-{case['id']}")
            for name in NAMES
            for case in numbers(name)[kind]
        ],
    )


def told(model: Any, name: str, case: dict[str, Any], variant: str) -> Any:
    """Encode a document whose topic a model is told."""
    texts = batch(name, [whole(name, case["id"])], variant)
    return model.encode(texts, model.about([case["id"]]))


def naming(model: Any, which: str, relation: int, surface: int) -> int:
    """Return a source: the number of a name of a topic, plus one."""
    topics = model.knowledge
    fact, _ = topics.facts_of(torch.tensor(topics.number(which)))
    first, _ = topics.namings_of(fact + relation)
    return 1 + int(first) + surface


def readings(model: LRLM, which: str, segments: list[list[Any]]) -> Readings:
    """Segmentations [start, end, relation, surface] as readings of one text."""
    length = max(end for z in segments for _, end, _, _ in z)
    source = torch.zeros(1, len(segments), length, dtype=torch.long)
    offset = torch.zeros_like(source)
    for k, z in enumerate(segments):
        for start, end, relation, surface in z:
            if relation >= 0:
                source[0, k, start:end] = naming(model, which, relation, surface)
                offset[0, k, start:end] = torch.arange(end - start)
    return Readings(source, offset)


def close(ours: torch.Tensor, golden: Any) -> None:
    wanted = torch.tensor(golden, dtype=torch.float64)
    torch.testing.assert_close(ours, wanted, rtol=0, atol=TOLERANCE)
