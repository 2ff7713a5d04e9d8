"""Ledgers: resumable storage of the results of a run.

Whatever can be resumed has its ``settings``, is written by one run at a time, and is
not resumed under other settings.

- Results that come one by one and then stay (estimates, answers, thoughts, draws) are
  rows of a ``database``: a ledger. Where people read the finished results as text,
  lines of JSON are written from it at the end (``files``).
- What changes as a whole (weights and optimizers in training) is in a ``StateFile``
  that each epoch replaces: parts of two epochs make no model together, and a database
  would write gigabytes of tensors twice, once ahead and once in their place.
- Large files that others read as they are, each whole or not there, are in a folder
  beside their settings: shards of Arrow, which are memory-mapped where they lie, and
  checkpoints of transformers' Trainer.

``lm_eval --use_cache`` is a database of lm-eval's, which ``harness/answers.py`` holds
to the same settings.
"""
