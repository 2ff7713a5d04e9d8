"""Computations behind the ``evaluate`` modules, which need no ``evaluate``."""
