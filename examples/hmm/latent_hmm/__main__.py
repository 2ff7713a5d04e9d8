"""Writes a small random hidden Markov model: ``python -m latent_hmm DIR``."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from latent_hmm import HMM, HMMConfig
from lm_latent_eval.extend import WordTokenizer, save_checkpoint

TEXTS = ("the cat saw the dog", "a dog saw the cat", "the cat ran", "a cat ran")


def write(directory: Path, *, num_states: int = 3, seed: int = 0) -> HMM:
    """Write a checkpoint; return its model."""
    words = WordTokenizer.train(TEXTS, min_count=1)
    config = HMMConfig(vocab_size=words.vocab_size, num_states=num_states)
    model = HMM(config).requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.normal_(0, 1, generator=generator)
    save_checkpoint(model, words, directory, model.state_dict())
    return model


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    write(parser.parse_args().directory)
