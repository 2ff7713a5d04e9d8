"""lm-eval backends whose latents are over a pretrained network."""
