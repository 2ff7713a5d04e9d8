"""Computations behind the ``evaluate`` modules, which need no ``evaluate``.

The module of each metric has ``prepare(inputs, stored=0)``, which returns the columns
that its ``compute`` takes, and facts to report with the numbers. ``inputs`` are the
user's arguments, and ``stored`` counts the rows that ``evaluate`` has already. Missing
and unknown arguments are refused by a ``ValueError``.
"""
