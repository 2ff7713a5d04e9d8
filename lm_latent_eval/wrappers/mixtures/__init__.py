"""Mixtures whose components are prompts, examples, orders, documents and models."""
