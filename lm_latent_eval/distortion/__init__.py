"""Distributional distortion: errors of models on languages with known probabilities.

From the bottom up: ``languages`` and what is drawn from them, ``statistics`` of the
errors of log-probabilities, ``learners`` and how they are trained and scored, the
``study`` that does it all, and its ``report``.

Source: LeBrun, Sordoni and O'Donnell (2022).
"""
