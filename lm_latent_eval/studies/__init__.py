"""Experiments of papers, for any model: what they draw, keep and conclude."""
