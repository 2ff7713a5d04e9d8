"""Laws of latent language models, for test suites of other packages.

::

    from lm_latent_eval.extend import Case, laws

    case = Case(model, every_latent, words=(4, 5), proposals=("prior",))

    @pytest.mark.parametrize("law", laws(case), ids=str)
    def test_laws(law):
        law()

Nothing here needs pytest: a law that is broken raises ``LawError``.
"""

from lm_latent_eval.testing.case import Case, LawError
from lm_latent_eval.testing.model_laws import Law, laws
