"""Scoring: strings in, estimates out, by a checkpoint.

- ``texts``: where strings become words within a context; ``answer``: what comes back;
- ``model``, ``interface``, ``scorer``: entry points of Python, hosts and commands;
- ``options``, ``evaluation``, ``budget``: settings, batches, samples a text and costs;
- ``likelihoods``, ``generation``: log p-hat of texts and continuations, and writing;
- ``files``, ``records``: a corpus into a file, here or by workers; rows of a run;
- ``metrics``, ``calibration``: numbers of a corpus, and how far estimates are off;
- ``sequence_scorer``, ``string_scorers``, ``spans``: other models, and parts of texts.
"""
