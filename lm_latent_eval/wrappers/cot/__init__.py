"""Thoughts as latents: what a causal language model writes before it answers."""
