"""Encoding of strings to a model's units, and back."""
