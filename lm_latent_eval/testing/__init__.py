"""The laws that every latent language model owes, for tests of packages that join.

::

    from lm_latent_eval import testing

    case = testing.Case(model, every_latent, words=(4, 5), proposals=("prior",))

    @pytest.mark.parametrize("law", testing.laws(case), ids=str)
    def test_laws(law):
        law()

Nothing here needs pytest: a law that is broken raises ``LawError``.
"""

from lm_latent_eval.testing.case import Case, LawError
from lm_latent_eval.testing.model_laws import Law, laws
from lm_latent_eval.testing.simulated_device import SIMULATED, simulated_device
from lm_latent_eval.testing.simulated_work import Work

__all__ = ["SIMULATED", "Case", "Law", "LawError", "Work", "laws", "simulated_device"]
