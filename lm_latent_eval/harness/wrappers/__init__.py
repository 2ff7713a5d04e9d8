"""Backends whose latents are over a network that lm-eval's own loader loads."""
