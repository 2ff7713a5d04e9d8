"""LRLM with its proposals; ``joint.py`` has p(x, z)."""

from __future__ import annotations

from lm_latent_eval.models.lrlm.configuration import LRLMConfig
from lm_latent_eval.models.lrlm.joint import LRLMJoint
from lm_latent_eval.models.lrlm.proposals import Adapted, Posterior, Summation
from lm_latent_eval.models.lrlm.topics import Topics
from lm_latent_eval.models.proposals import check_temperature, chosen


class LRLM(LRLMJoint):
    """A latent relation language model with its proposals and its topics.

    Implements ``LatentLM``, ``LeftToRight``, ``NextToken`` and ``Summable`` for p;
    ``proposal`` gives a matching q.
    """

    config_class = LRLMConfig
    base_model_prefix = "lrlm"
    main_input_name = "inputs"
    estimators = ("exact", "auto", "mixed", "dpf", "is", "beam", "smc")
    """What estimates its likelihoods, the default first."""
    proposal_names = ("posterior", "adapted")
    """What ``proposal`` can return, the default first."""

    def __init__(self, config: LRLMConfig, topics: Topics | None = None) -> None:
        """Build p; ``topics`` come from the checkpoint if None."""
        super().__init__(config, topics)
        self.post_init()  # type: ignore[no-untyped-call]

    @property
    def summation(self) -> Summation:
        """What stands in for a proposal where all readings are summed."""
        return Summation()

    def proposal(
        self, name: str | None = None, temperature: float = 1.0
    ) -> Posterior | Adapted:
        """Return a proposal.

        Args:
            name: ``posterior``, p(z | x) itself by backward sums over whole texts
                (default); or ``adapted``, which goes from left to right and weighs what
                follows as if it were words, to the end of the piece at hand.
            temperature: Divides the logarithms of what p charges.

        Raises:
            ValueError: If there is no such proposal or the temperature is not positive.
        """
        check_temperature(temperature)
        name = chosen(name, self.proposal_names)
        adapted = Adapted(self, temperature)
        return Posterior(adapted) if name == "posterior" else adapted
