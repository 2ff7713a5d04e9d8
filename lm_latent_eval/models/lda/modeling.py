"""LDA with its proposals; ``joint.py`` has p(x, z)."""

from __future__ import annotations

from lm_latent_eval.models.lda.configuration import LDAConfig
from lm_latent_eval.models.lda.joint import LDAJoint
from lm_latent_eval.models.lda.proposals import (
    FittedTopics,
    LeftToRightTopics,
    PriorTopics,
)
from lm_latent_eval.models.proposals import check_temperature, chosen
from lm_latent_eval.models.stepwise import ADAPTED, PRIOR


class LDA(LDAJoint):
    """A topic model with its proposals.

    Implements ``LatentLM``, ``LeftToRight``, ``NextToken``, and ``Redraws``
    for p; ``proposal`` gives a matching q.
    """

    config_class = LDAConfig
    base_model_prefix = "lda"
    main_input_name = "inputs"
    estimators = ("ais", "l2r", "chib", "auto", "mixed", "dpf", "is", "beam", "smc")
    """What estimates its likelihoods, the default first."""
    proposal_names = ("document", ADAPTED, PRIOR)
    """What ``proposal`` can return."""

    def __init__(self, config: LDAConfig) -> None:
        super().__init__(config)
        self.post_init()  # type: ignore[no-untyped-call]

    def proposal(
        self, name: str | None = None, temperature: float = 1.0
    ) -> FittedTopics | LeftToRightTopics:
        """Return a proposal.

        Args:
            name: ``document`` reads whole texts; ``adapted`` and ``prior`` go from left
                to right. None is the first.
            temperature: Divides the proposal's scores.

        Raises:
            ValueError: If there is no such proposal or the temperature is not positive.
        """
        check_temperature(temperature)
        name = chosen(name, self.proposal_names)
        if name == "document":
            return FittedTopics(self, temperature)
        kind = PriorTopics if name == PRIOR else LeftToRightTopics
        return kind(self, name, temperature)
