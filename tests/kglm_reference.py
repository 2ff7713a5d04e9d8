"""The original KGLM's configurations A, B, C as models of ours."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from lm_latent_eval.convert.allennlp import placed
from lm_latent_eval.convert.kglm import LITERALS, build_graph, rename_weights
from lm_latent_eval.models.kglm.configuration import KGLMConfig
from lm_latent_eval.models.kglm.encoding import Encoded
from lm_latent_eval.models.kglm.graph import KnowledgeGraph
from lm_latent_eval.models.kglm.latents import Walks
from lm_latent_eval.models.kglm.modeling import KGLM
from lm_latent_eval.text.batch import TokenBatch

FOLDER = Path(__file__).parent / "reference" / "kglm"
UNKNOWN = 1
SPECIAL_ENTITIES = 4  # padding, unknown, date, quantity


@cache
def numbers() -> dict[str, Any]:
    """Everything but the weights."""
    return json.loads((FOLDER / "kglm.json").read_text())


@cache
def graph(*, as_reader: bool) -> KnowledgeGraph:
    """The graph, with literals as the reader or as the sampler names them.

    A reader calls their entity date or quantity; a sampler looks their names up and
    finds nothing, so ``exact.json`` has the unknown entity there.
    """
    ref = numbers()
    return build_graph(
        ref["edges"],
        ref["aliases"],
        nodes=ref["nodes"],
        entities=ref["entities"],
        relations=ref["relations"],
        literal_entity=LITERALS if as_reader else {},
        max_aliases=ref["config"]["max_aliases"],
        max_alias_words=ref["config"]["max_alias_tokens"],
    )


@cache
def model(name: str, *, as_reader: bool = False) -> KGLM:
    """Configuration A, B or C in float64."""
    ref = numbers()
    options = ref["config"]["models"][name]
    ours = {key: options[key] for key in options if key in KGLMConfig.rules}
    config = KGLMConfig(
        **ours,
        vocab_size=ref["vocab_size"],
        num_words=ref["num_words"],
        num_entities=len(ref["entities"]),
        num_relations=len(ref["relations"]),
        entity_shortlist=options["use_shortlist"],
        special_entities=SPECIAL_ENTITIES,
        only_possible=False,
        copy_scores="reshaped",
        never_uttered=[],
        proposals=["peeking", "nonpeeking"],
        num_unknown_types=ref["num_unknown_types"],
    )
    kglm = KGLM(config, graph(as_reader=as_reader)).double().eval()
    generative, disc = (
        rename_weights(
            load_file(FOLDER / f"{kind}_{name}.safetensors"),
            tied=options["tie_weights"],
        )
        for kind in ("kglm", "kglmdisc")
    )
    weights = placed(generative)
    for reading in ("peeking", "nonpeeking"):
        weights |= placed(disc, reading)
    kglm.load_state_dict(weights)
    return kglm.requires_grad_(False)


def batch(tokens: list[int], *, penalty: float = 0.0) -> TokenBatch:
    """One document as the originals split it: the first token is only read."""
    vocab_size = numbers()["vocab_size"]
    cost = [penalty if t == UNKNOWN or t >= vocab_size else 0.0 for t in tokens[1:]]
    return TokenBatch.collate([tokens[1:]], [cost], first=tokens[0])


def word_paths(
    kglm: KGLM, encoded: Encoded, position: Tensor, node: Tensor
) -> tuple[Tensor, Tensor]:
    """Log p of words as the vocabulary and as names utter them, elementwise, nats."""
    every, which = node.unique(return_inverse=True)
    aliases, words = kglm.knowledge.aliases[every], kglm.generative.words
    return words.log_paths(
        encoded.text,
        encoded.batch.targets,
        encoded.batch.unknown_log_prob,
        kglm._entity_vectors(every),
        words.encode_aliases(aliases),
        aliases.flatten(1),
        position,
        which,
    )


def walks(z: dict[str, Any]) -> Walks:
    """An annotation, (1, 1, T)."""
    return Walks(
        torch.tensor(z["mention_type"])[None, None],
        torch.tensor(z["raw_entity_ids"])[None, None],
    )
