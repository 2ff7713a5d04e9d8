"""Strings in, estimates out: a checkpoint answers queries about texts."""
