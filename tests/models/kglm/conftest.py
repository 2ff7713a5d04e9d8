"""Golden configurations, shared by the tests of models and of conversion."""

from tests.kglm_golden import golden

__all__ = ["golden"]
