"""Ledgers: what a run leaves for the next one to go on with.

Whatever can be resumed has its ``settings``, is written by one run at a time, and is
not resumed under other settings.

- Results that come one by one (estimates, answers, thoughts) are lines of a
  ``Journal``. What people read at the end is written from it.
- What changes as a whole (weights and optimizers in training) is in a ``StateFile``
  that each epoch replaces: parts of two epochs make no model together.

``lm_eval --use_cache`` is a database of lm-eval's, which ``harness/answers.py`` holds
to the same settings.
"""
