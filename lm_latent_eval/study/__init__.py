"""Studies of estimates by proposal, temperature, samples and level.

The experiments of Logan et al. (2020) for any model of the latent interface:

- ``totals``: log-weights, kept in a ledger, and what follows from them;
- ``plan``: which settings;
- ``run``: all of it for one checkpoint and one corpus, resumable;
- ``rows``, ``claims``, ``figures``, ``tables``: the results and their report.
"""
