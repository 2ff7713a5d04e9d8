"""LDA with its proposals; ``joint.py`` has p(x, z)."""

from __future__ import annotations

from collections.abc import Callable

from lm_latent_eval.models.lda.configuration import LDAConfig
from lm_latent_eval.models.lda.joint import LDAJoint
from lm_latent_eval.models.lda.proposals import (
    Adapted,
    FittedTopics,
    LeftToRightTopics,
    Prior,
)
from lm_latent_eval.models.proposals import Strengths, check_temperature, chosen

PROPOSALS: dict[str, Callable[[LDAJoint, float], FittedTopics | LeftToRightTopics]] = {
    "document": FittedTopics,
    "adapted": Adapted,
    "prior": Prior,
}
"""Name -> what builds it for a model at a temperature; the default first."""


class LDA(LDAJoint):
    """A topic model with its proposals.

    Implements ``LatentLM``, ``LeftToRight``, ``NextToken``, and ``Redraws``
    for p; ``proposal`` gives a matching q.
    """

    config_class = LDAConfig
    base_model_prefix = "lda"
    main_input_name = "inputs"
    estimators = ("ais", "l2r", "chib", "auto", "mixed", "is", "beam", "smc")
    """What estimates its likelihoods, the default first."""
    proposal_names = tuple(PROPOSALS)
    """What ``proposal`` can return."""

    def __init__(self, config: LDAConfig) -> None:
        """Make room for topics."""
        super().__init__(config)
        self.post_init()  # type: ignore[no-untyped-call]

    def proposal(
        self,
        name: str | None = None,
        temperature: float = 1.0,
        strengths: Strengths | None = None,
    ) -> FittedTopics | LeftToRightTopics:
        """Return a proposal.

        Args:
            name: ``document`` reads whole texts; ``adapted`` and ``prior`` go from left
                to right. None is the first.
            temperature: Divides the proposal's scores.
            strengths: None, or none: it has no strengths.

        Raises:
            ValueError: If there is no such proposal or the temperature is not positive.
        """
        check_temperature(temperature)
        name = chosen(name, self.proposal_names)
        return PROPOSALS[name](self, temperature)
