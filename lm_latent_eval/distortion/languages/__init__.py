"""Artificial languages: distributions over sequences with known probabilities."""
