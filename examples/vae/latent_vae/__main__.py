"""Writes a small random sentence VAE: ``python -m latent_vae DIR``."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from latent_vae import SentenceVAE, VAEConfig
from lm_latent_eval.extend import WordTokenizer, save_checkpoint

TEXTS = ("the cat saw the dog", "a dog saw the cat", "the cat ran", "a cat ran")


def write(directory: Path, *, seed: int = 0) -> SentenceVAE:
    """Write a checkpoint; return its model."""
    words = WordTokenizer.train(TEXTS, min_count=1)
    model = SentenceVAE(VAEConfig(vocab_size=words.vocab_size))
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.requires_grad_(False).parameters():
        parameter.normal_(0, 0.7, generator=generator)
    save_checkpoint(model, words, directory, model.state_dict())
    return model


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    write(parser.parse_args().directory)
