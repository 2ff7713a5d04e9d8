"""An LSTM language model without latents, for comparison."""
