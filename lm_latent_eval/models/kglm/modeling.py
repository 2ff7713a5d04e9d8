"""KGLM with its proposals; ``joint.py`` has p(x, z)."""

from __future__ import annotations

from typing import Any

from lm_latent_eval.models.kglm.configuration import KGLMConfig
from lm_latent_eval.models.kglm.graph import KnowledgeGraph
from lm_latent_eval.models.kglm.joint import KGLMJoint
from lm_latent_eval.models.kglm.proposal import KGLMProposal
from lm_latent_eval.models.proposals import check_temperature, chosen

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
