"""Importance-sampled likelihoods, as Logan et al. (2020) report them."""
