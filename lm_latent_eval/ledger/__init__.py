"""What a stopped run leaves, and how the same command goes on from it.

Whatever can be resumed says in a file what was asked for (``settings``), is written by
one run at a time (``one_writer``), and is not gone on with under other settings.
Results are kept in one of three forms:

- a ``journal``, for results that come one by one and then stay (estimates, answers,
  thoughts): JSON lines below the settings. To append one costs the same however many
  there are, and a crash cuts the last line short at most;
- a ``state``, for what changes as a whole (weights and optimizers in training): a file
  that each epoch replaces. Parts of two epochs make no model together, so a journal
  would have to repeat them all, and would keep what nobody needs;
- a ``folder``, for many or large files, each of which is whole or not there: shards of
  Arrow, blocks that Ray writes, checkpoints of transformers' Trainer. The log-weights
  of a study are records of one size there (``journal.appending``), which are read a
  part at a time, as lines of JSON could not be.

``lm_eval --use_cache`` is a database of lm-eval's, which ``harness/cache.py`` holds to
the same settings.
"""
