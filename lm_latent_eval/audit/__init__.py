"""Audit of a scorer of lm-eval from outside: are its scores those of a distribution?

Everything is asked through ``loglikelihood``, ``loglikelihood_rolling`` and
``generate_until``; ``harness.audit`` has the way to models of lm-eval.
"""
