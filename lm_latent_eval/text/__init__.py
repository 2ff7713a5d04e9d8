"""Strings to a model's alphabet and back."""
