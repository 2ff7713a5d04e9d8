"""How published models name their tensors and settings, a file a paper."""
