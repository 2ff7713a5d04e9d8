"""KGLM with its proposals, its graph and its files; ``joint.py`` has p(x, z)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from lm_latent_eval.latent import (
    Description,
    Normalization,
    Span,
    marked,
)
from lm_latent_eval.models.kglm.graph import FILE_NAME as GRAPH_FILE
from lm_latent_eval.models.kglm.graph import (
    NO_ENTITY,
    REFLEXIVE,
    GraphError,
    KnowledgeGraph,
)
from lm_latent_eval.models.kglm.joint import KGLMJoint
from lm_latent_eval.models.kglm.latents import Mention, Walks
from lm_latent_eval.models.kglm.proposal import KGLMProposal
from lm_latent_eval.models.proposals import check_temperature, chosen

READING_MOST = ("smoothing", "peeking", "nonpeeking")
"""Trained proposals, the one that reads most of the text first."""


class KGLM(KGLMJoint):
    """A knowledge graph language model with its proposals and its graph.

    One directory holds it all (``save_pretrained``).
    """

    estimators = ("auto", "dpf", "is", "beam", "smc")
    """Names of its estimators, the default first."""

    def describe(
        self, words: Sequence[str], walks: Walks, decode: Callable[[Sequence[int]], str]
    ) -> Description:
        """Name mentioned nodes, and edges from recent ones: see ``LatentLM``."""
        kinds, nodes = (part[0, 0, : len(words)] for part in walks)
        spans: list[Span] = []
        for place, kind in enumerate(kinds.tolist()):
            if kind == Mention.NONE:
                continue
            if kind == Mention.CONTINUE and spans:
                spans[-1] = replace(spans[-1], end=place + 1)
                continue
            node = int(nodes[place])
            label = self.knowledge.node_names[node]
            if kind == Mention.DERIVED:
                first = max(0, place - self.config.cutoff)
                links = self._links(nodes[first:place].unique().tolist(), node)
                label = f"{label}: {' or '.join(links)}"
            spans.append(Span(place, place + 1, label, node))
        return marked(words, spans)

    def _links(self, recent: list[int], node: int) -> list[str]:
        """Name the edges that lead from recent nodes to one."""
        graph, links = self.knowledge, []
        for parent in recent:
            head = graph.entity(torch.tensor(parent))
            if parent == NO_ENTITY or int(head) == NO_ENTITY:
                continue
            first, end = graph.edges_between(head, torch.tensor(node))
            for edge in range(int(first), int(end)):
                name = graph.relation_names[int(graph.relation(torch.tensor(edge)))]
                own = name == REFLEXIVE
                links.append(
                    "itself" if own else f"{name} of {graph.node_names[parent]}"
                )
        return links

    # -- files ----------------------------------------------------------------------

    def save_extras(self, directory: Path) -> None:
        self.knowledge.save(directory)

    def load_extras(self, directory: Path) -> None:
        """Read the graph.

        Raises:
            GraphError: If it is missing, damaged or of another model.
        """
        graph, config = KnowledgeGraph.load(directory), self.config
        relations, words = len(graph.relation_names), graph.lookups.num_words - 1
        if (graph.num_entities, relations) != (
            config.num_entities,
            config.num_relations,
        ) or words >= config.num_words:
            raise GraphError(
                f"{directory / GRAPH_FILE} has {graph.num_entities} entities, "
                f"{relations} relations and alias words up to {words}; the model has "
                f"{config.num_entities}, {config.num_relations} and {config.num_words} "
                "words: it belongs to another checkpoint"
            )
        self.graph = graph
        self._forget()

    def check_extras(self) -> None:
        """Check the graph in whole.

        Raises:
            GraphError: If it contradicts itself.
        """
        self.knowledge.check()

    @property
    def normalization(self) -> Normalization:
        """Total of its probabilities over all texts."""
        if self.config.only_possible:
            return super().normalization
        return Normalization.BELOW_ONE

    # -- q(z | x) -------------------------------------------------------------------

    @property
    def proposal_names(self) -> list[str]:
        """Names of its proposals, the default first."""
        trained = (name for name in READING_MOST if name in self.proposals)
        return ["adapted", *trained, "prior"]

    def proposal(
        self, name: str | None = None, temperature: float = 1.0
    ) -> KGLMProposal:
        """Return a proposal.

        Args:
            name: One of ``config.proposals``; or ``prior``, p's own distribution of
                z_t given the past; or ``adapted``, that twisted by what p will pay for
                the text ahead, which is the default.
            temperature: Divides the proposal's scores.

        Raises:
            ValueError: If there is no such proposal or the temperature is not positive.
        """
        check_temperature(temperature)
        name = chosen(name, self.proposal_names)
        trunks: dict[str, Any] = dict(self.proposals.items())
        return KGLMProposal(
            self,
            name,
            trunks.get(name, self.generative.trunk),
            reads_target=name in ("peeking", "smoothing"),
            looks_ahead=name == "adapted",
            temperature=temperature,
        )
