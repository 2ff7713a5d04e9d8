"""Writes a small random model: ``python -m latent_steps pointer DIR``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch

from latent_steps.pointer import Pointer, PointerConfig
from latent_steps.semi_markov import SemiMarkov, SemiMarkovConfig
from latent_steps.transducer import Transducer, TransducerConfig
from lm_latent_eval.extend import START, WordTokenizer, save_checkpoint

TEXTS = ("the cat saw the dog", "a dog saw the cat", "the cat ran", "a cat ran")
PAIRS = {
    **{"das": "the", "die": "the", "haus": "house", "katze": "cat", "ist": "is"},
    **{"klein": "small", "alt": "old", "nicht": "not", "sehr": "very"},
}
KINDS: dict[str, tuple[Any, Any]] = {
    "semi_markov": (SemiMarkov, SemiMarkovConfig),
    "pointer": (Pointer, PointerConfig),
    "transducer": (Transducer, TransducerConfig),
}


def random(name: str, vocab_size: int, seed: int = 0) -> Any:
    """Return a model of normal weights."""
    model, config = KINDS[name]
    made = model(config(vocab_size=vocab_size)).requires_grad_(False).eval()
    generator = torch.Generator().manual_seed(seed)
    for parameter in made.parameters():
        parameter.normal_(0, 0.7, generator=generator)
    return made


def write(name: str, directory: Path) -> Any:
    """Write a checkpoint; return its model."""
    words = WordTokenizer.train(TEXTS, min_count=1)
    if name == "transducer":
        words = WordTokenizer.of_words([*PAIRS, *sorted({*PAIRS.values()})])
    model = random(name, words.vocab_size)
    if name == "transducer":
        model.skips[1, START] = -8.0  # y begins at the first word of x
        for x, y in PAIRS.items():
            x_id, y_id = words(x).ids[0], words(y).ids[0]
            model.writes[0, x_id, y_id] = 8.0
            model.writes[1, y_id, y_id] = -16.0  # a word is not written twice
    save_checkpoint(model, words, directory, model.state_dict())
    return model


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=KINDS)
    parser.add_argument("directory", type=Path)
    asked = parser.parse_args()
    write(asked.name, asked.directory)
