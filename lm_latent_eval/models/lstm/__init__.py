"""A plain LSTM language model: the latent models' twin without latents."""
