"""Distributional distortion: errors of models on languages with known probabilities.

From the bottom up: ``languages``, the ``corpus`` that is drawn from one, and ``edits``
of its sequences; ``learners``, whose scores ``measure`` compares by the ``statistics``
of their errors; ``figures`` of them.

Source: LeBrun, Sordoni and O'Donnell (2022).
"""
