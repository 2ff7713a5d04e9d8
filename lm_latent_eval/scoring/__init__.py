"""Scoring: strings in, estimates out, by a checkpoint."""
