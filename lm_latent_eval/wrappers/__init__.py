"""Latent models over pretrained networks, a folder a model.

Their latents are not the network's: the order in which it unmasks, the tokens that it
reads a string as, the thoughts that it writes before an answer. They answer queries by
the scoring interface.
"""
