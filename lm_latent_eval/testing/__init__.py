"""Laws of latent language models and of estimators, for test suites of other packages.

::

    from lm_latent_eval.extend import Case, laws

    case = Case(model, every_latent, words=(4, 5), proposals=("prior",))

    @pytest.mark.parametrize("law", laws(case), ids=str)
    def test_laws(law):
        law()

``laws`` has those of the estimators that the model offers; ``estimator_laws(Median,
case)`` lists those of another. Nothing here needs pytest: a law that is broken raises
``LawError``.
"""

from lm_latent_eval.testing.case import Case, Law, LawError
from lm_latent_eval.testing.estimator_laws import estimator_laws
from lm_latent_eval.testing.model_laws import laws
