"""Names of tensors and settings in published models, a file a paper."""
