"""Training of models on text."""
