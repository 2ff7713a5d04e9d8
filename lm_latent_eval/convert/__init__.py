"""Published checkpoints in: what other programs trained, taken over as ours."""
