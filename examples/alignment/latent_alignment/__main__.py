"""Writes an alignment model of nine words: ``python -m latent_alignment DIR``."""

from __future__ import annotations

import argparse
from pathlib import Path

from latent_alignment import EMPTY, Alignment, AlignmentConfig
from lm_latent_eval.extend import END, WordTokenizer, save_checkpoint

PAIRS = {
    **{"das": "the", "die": "the", "haus": "house", "katze": "cat", "ist": "is"},
    **{"klein": "small", "alt": "old", "nicht": "not", "sehr": "very"},
}


def write(directory: Path) -> Alignment:
    """Write a checkpoint; return its model."""
    words = WordTokenizer.of_words([*PAIRS, *sorted({*PAIRS.values()})])
    model = Alignment(AlignmentConfig(vocab_size=words.vocab_size))
    model.requires_grad_(False)
    for x, y in PAIRS.items():
        [[source], [target]] = words(x).ids, words(y).ids
        model.translations[source, target] = 4.0
    model.translations[EMPTY, END] = 3.0
    model.jumps.copy_(model.jumps.new_tensor([-4, -3, -2, 0, 2, 0, -1]))  # of -3 to 3
    save_checkpoint(model, words, directory, model.state_dict())
    return model


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    write(parser.parse_args().directory)
