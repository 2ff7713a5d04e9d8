"""Scoring: strings in, estimates out, by a checkpoint.

- ``interface``: base classes; ``opening``, ``model``: commands and Python come in here;
- ``scorer``, ``likelihoods``, ``generation``: queries to answers, and writing;
- ``texts``, ``evaluation``, ``budget``, ``options``: texts, batches, samples, settings;
- ``answer``, ``records``, ``files``, ``workers``: what comes back, and its files;
- ``metrics``, ``totals``, ``calibration``: numbers of a corpus;
- ``inside``: views inside a text: surprisal by word, latents.
"""
