"""Unsupervised recurrent neural network grammar (Kim et al., 2019)."""
