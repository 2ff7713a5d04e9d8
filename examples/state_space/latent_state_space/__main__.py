"""Writes a state-space model: ``python -m latent_state_space DIR``."""

from __future__ import annotations

import argparse
from pathlib import Path

from latent_state_space import StateSpace, StateSpaceConfig
from lm_latent_eval.extend import WordTokenizer, save_checkpoint

LOWEST, HIGHEST = 0, 60


def write(directory: Path) -> StateSpace:
    """Write a checkpoint; return its model."""
    words = WordTokenizer.of_words([str(n) for n in range(LOWEST, HIGHEST + 1)])
    model = StateSpace(StateSpaceConfig(vocab_size=words.vocab_size, lowest=LOWEST))
    save_checkpoint(model, words, directory, model.state_dict())
    return model


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    write(parser.parse_args().directory)
