"""Masked diffusion and any-order language models: z is an order of unmasking."""
