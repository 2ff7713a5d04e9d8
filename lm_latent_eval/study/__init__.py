"""Studies of estimates by proposal, temperature, samples and level.

The experiments of Logan et al. (2020) for any model of the latent interface:

- ``plan``: which settings;
- ``draws``: their log-weights, kept in a ledger, since they are what costs time;
- ``totals``: what follows from log-weights, streamed over a corpus;
- ``run``: all of it for one checkpoint and one corpus, resumable.
"""
