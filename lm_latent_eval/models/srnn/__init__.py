"""The sentence-level RNN of the contrastive entropy paper: unnormalised scores."""
