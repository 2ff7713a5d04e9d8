"""Annotated articles as the original KGLM reads them: walks and shortlists."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch

from lm_latent_eval.models.kglm.data import LinkedText
from lm_latent_eval.models.kglm.graph import NO_ENTITY, KnowledgeGraph
from lm_latent_eval.models.kglm.graph_file import everything
from lm_latent_eval.models.kglm.latents import Encoded, Mention
from lm_latent_eval.text.words import UNKNOWN, WordTokenizer


class LinkedAnnotator:
    """Turns articles into word ids and walks of a converted model.

    Words are looked up as they stand; those without an id are unknown. Entities that
    the graph lacks are its unknown node, as for the original.
    """

    def __init__(self, graph: KnowledgeGraph, tokenizer: WordTokenizer) -> None:
        self.word_id = tokenizer.tokenizer.token_to_id
        self.node = {name: i for i, name in enumerate(graph.node_names)}
        self.entity_of = everything(graph.entity_of).tolist()

    def __call__(self, text: LinkedText) -> tuple[list[int], list[int], list[int]]:
        """Return word ids, mention types and nodes of the tokens after the first."""
        size = len(text.tokens)
        mention, node = [int(Mention.NONE)] * size, [NO_ENTITY] * size
        for m in text.mentions():
            mention[m.start] = int(Mention.DERIVED if m.edges else Mention.NEW)
            inner = slice(m.start + 1, m.end)
            mention[inner] = [int(Mention.CONTINUE)] * (m.end - m.start - 1)
            node[m.start : m.end] = [self._node(m.entity)] * (m.end - m.start)
        ids = map(self.word_id, text.tokens)
        words = [UNKNOWN if i is None else i for i in ids]
        return words[1:], mention[1:], node[1:]

    def shortlist(self, text: LinkedText) -> list[int]:
        """List the entities of an article, rows of the entity table."""
        rows = (self.entity_of[self._node(a.entity)] for a in text.annotations)
        return list(dict.fromkeys(rows))

    def _node(self, entity: str) -> int:
        return self.node.get(entity, UNKNOWN)


def over_shortlist(encoded: Encoded, shortlist: Iterable[int]) -> Encoded:
    """Let new mentions name only the entities that a text is known to have.

    Original models with a shortlist were trained so: they are told which entities an
    article will mention, and choose among them.

    Args:
        encoded: One text, encoded by p.
        shortlist: Rows of the entity table.
    """
    assert len(encoded.text) == 1, "each text has a shortlist of its own"
    listed = torch.zeros_like(encoded.walk.introducible)
    listed[list(shortlist)] = True
    listed[NO_ENTITY] = False
    return replace(encoded, walk=replace(encoded.walk, introducible=listed))
