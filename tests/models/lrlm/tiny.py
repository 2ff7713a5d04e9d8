"""Relation models small enough to list every latent, over the words of tiny models."""

from __future__ import annotations

from typing import Any

import torch

from lm_latent_eval.models.lrlm.configuration import LRLMConfig
from lm_latent_eval.models.lrlm.latents import WORD, Readings
from lm_latent_eval.models.lrlm.modeling import LRLM
from lm_latent_eval.models.lrlm.network import pieces
from lm_latent_eval.models.lrlm.topics import Fact, Topics
from lm_latent_eval.models.nklm.configuration import NKLMConfig
from lm_latent_eval.models.nklm.modeling import NKLM
from tests import tiny_checkpoint
from tests.tiny_models import COPIED, KNOWN, randomised

PIECES = 11


def topics() -> Topics:
    """Two topics that share names, and two facts of one topic that do."""
    return Topics.build(
        {
            "Ada": [Fact(0, 0, (0, 1)), Fact(1, 0, (2,)), Fact(1, 0, (0,))],
            "Bo": [Fact(0, 0, (0,)), Fact(2, 0, (3, 2))],
        },
        [[COPIED], [KNOWN, COPIED], [KNOWN], [COPIED, KNOWN, KNOWN, COPIED]],
        counts={"Ada": 2},
        pieces=[pieces(name, PIECES) for name in ("Ada", "the Ada", "the", "Ada the")],
    )


def config(**changes: Any) -> dict[str, Any]:
    """What the tiny relation models have in common."""
    sizes = {
        "vocab_size": COPIED,
        "num_words": COPIED + 1,
        "num_relations": 3,
        "num_pieces": PIECES,
        "embedding_dim": 3,
        "predictor_dim": 3,
        "hidden_size": 4,
        "num_layers": 2,
        "fact_dim": 2,
        "alias_dim": 2,
        "num_unknown_types": 7,
    }
    return {**sizes, **topics().sizes(), **changes}


def lrlm(**changes: Any) -> LRLM:
    model = LRLM(LRLMConfig(**config(**changes)), topics()).double()
    return randomised(model, 0, 0.7).eval()


def every_reading(model: LRLM, length: int) -> Readings:
    """All readings of a text of some words, which may end within a name."""
    known = model.knowledge

    def go_on(left: int, topic: int) -> list[list[tuple[int, int]]]:
        if left == 0:
            return [[]]
        found = [[(WORD, 0), *rest] for rest in go_on(left - 1, topic)]
        for naming in range(len(known.naming_alias)):
            of = int(known.naming_topic[naming])
            if topic not in (0, of):
                continue
            size = min(int(known.length(torch.tensor(naming))), left)
            here = [(naming + 1, n) for n in range(size)]
            found += [[*here, *rest] for rest in go_on(left - size, of)]
        return found

    table = torch.tensor(go_on(length, 0))
    return Readings(table[None, ..., 0], table[None, ..., 1])


# -- over the words of the tiny checkpoints --------------------------------------------

ALIASES = ("Ada", "the fox", "Bo", "Bo Ada")


def worded_topics() -> Topics:
    return Topics.build(
        {
            "Ada": [Fact(0, 0, (0, 1)), Fact(1, 0, (2, 3))],
            "Bo": [Fact(0, 0, (2,)), Fact(1, 0, (0,))],
        },
        [tiny_checkpoint.ids(*alias.split()) for alias in ALIASES],
        pieces=[pieces(alias, 9) for alias in ALIASES],
    )


def worded(name: str) -> LRLM | NKLM:
    """An LRLM or an NKLM that a checkpoint can be written of, in float64."""
    known = worded_topics()
    sizes = {"num_relations": 2, "num_pieces": 9, **known.sizes()}
    fields = config(**tiny_checkpoint.vocabulary(), **sizes)
    if name == "lrlm":
        built = LRLM(LRLMConfig(**fields), known)
    else:
        built = NKLM(NKLMConfig(**fields, num_positions=2), known)
    return randomised(built.double(), 4, 0.8).eval()
