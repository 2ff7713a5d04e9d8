"""NKLM with its proposals; ``joint.py`` has p(x, z)."""

from __future__ import annotations

from lm_latent_eval.models.lrlm.topics import Topics
from lm_latent_eval.models.nklm.configuration import NKLMConfig
from lm_latent_eval.models.nklm.joint import NKLMJoint
from lm_latent_eval.models.nklm.proposal import NKLMProposal
from lm_latent_eval.models.proposals import check_temperature, chosen


class NKLM(NKLMJoint):
    """A neural knowledge language model with its proposals and its topics.

    Implements ``LatentLM``, ``LeftToRight`` and ``NextToken`` for p; ``proposal`` gives
    a matching q.
    """

    config_class = NKLMConfig
    base_model_prefix = "nklm"
    main_input_name = "inputs"
    estimators = ("auto", "mixed", "dpf", "is", "beam", "smc")
    """What estimates its likelihoods, the default first."""
    proposal_names = ("adapted", "peeking")
    """What ``proposal`` can return, the default first."""

    def __init__(self, config: NKLMConfig, topics: Topics | None = None) -> None:
        """Build p; ``topics`` come from the checkpoint if None."""
        super().__init__(config, topics)
        self.post_init()  # type: ignore[no-untyped-call]

    def proposal(
        self, name: str | None = None, temperature: float = 1.0
    ) -> NKLMProposal:
        """Return a proposal.

        Args:
            name: ``adapted`` (default) draws the topic by which of the piece's words
                its names have, ``peeking`` from p's prior. Then both ask p where each
                word comes from, given that word.
            temperature: Divides the proposal's scores.

        Raises:
            ValueError: If there is no such proposal or the temperature is not positive.
        """
        check_temperature(temperature)
        return NKLMProposal(self, chosen(name, self.proposal_names), temperature)
