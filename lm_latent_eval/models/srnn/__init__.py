"""The sentence-level RNN of the contrastive entropy paper: scores, no probabilities."""
