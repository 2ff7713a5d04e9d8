"""Artificial languages: distributions over sequences whose probabilities are known."""
