"""Texts made worse by a known amount, and languages whose probabilities are known."""
