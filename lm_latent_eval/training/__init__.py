"""Fitting models to text."""
