"""Conversion of published checkpoints to checkpoints of this package."""
