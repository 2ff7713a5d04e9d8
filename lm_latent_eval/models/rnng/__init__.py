"""Unsupervised recurrent neural network grammars (Kim et al., 2019)."""
