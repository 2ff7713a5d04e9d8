"""KGLM with its proposals; ``joint.py`` has p(x, z)."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from lm_latent_eval.models.kglm.configuration import KGLMConfig
from lm_latent_eval.models.kglm.graph import KnowledgeGraph
from lm_latent_eval.models.kglm.joint import KGLMJoint
from lm_latent_eval.models.kglm.matching import AliasMatching
from lm_latent_eval.models.kglm.proposal import KGLMProposal
from lm_latent_eval.models.proposals import Strengths, check_temperature, chosen

READING_MOST = ("smoothing", "peeking", "nonpeeking")
"""Trained proposals, the one that reads most of the text first."""


class KGLM(KGLMJoint):
    """A knowledge graph language model with its proposals and its graph.

    Implements ``LatentLM``, ``LeftToRight`` and ``NextToken`` for p; ``proposal`` gives
    the matching q. One directory holds it all (``save_pretrained``).
    """

    config_class = KGLMConfig
    base_model_prefix = "kglm"
    main_input_name = "inputs"
    estimators = ("auto", "mixed", "dpf", "is", "beam", "smc", "ais")
    """What estimates its likelihoods, the default first."""

    def __init__(self, config: KGLMConfig, graph: KnowledgeGraph | None = None) -> None:
        """Build p and the trained q's; ``graph`` comes from the checkpoint if None."""
        super().__init__(config, graph)
        self.post_init()  # type: ignore[no-untyped-call]

    @property
    def proposal_names(self) -> list[str]:
        """What ``proposal`` can return, the default first."""
        trained = (name for name in READING_MOST if name in self.proposals)
        return ["adapted", *trained, "prior"]

    def proposal(
        self,
        name: str | None = None,
        temperature: float = 1.0,
        strengths: Strengths | None = None,
    ) -> KGLMProposal:
        """Return a proposal.

        Args:
            name: One of ``config.proposals``; or ``prior``, p's own distribution of
                z_t given the past; or ``adapted``, that tilted by what p will pay for
                the text ahead, which is the default.
            temperature: Divides the proposal's scores.
            strengths: Other ones than its own.

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
            strengths=self.strengths(name) if strengths is None else strengths,
        )

    def untuned(self, name: str) -> Strengths:
        """Return the strengths of a proposal as it was trained."""
        own: dict[str, float | Tensor] = {"scores": 1.0}
        if name == "adapted":
            own["look_ahead"] = 1.0
        if name == "smoothing":
            trunk: Any = self.proposals[name]
            weight = trunk.matching.weight
            own |= dict(zip(AliasMatching.WEIGHTS, weight.unbind(), strict=True))
        return own
