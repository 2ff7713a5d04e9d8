"""Writes a model with four documents: ``python -m latent_rag DIR``.

With ``--generator`` it is the part that is given its document.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from latent_rag import RAG, Generator, GeneratorConfig, RAGConfig
from latent_rag.documents import DOCUMENTS
from lm_latent_eval.extend import WordTokenizer, save_checkpoint


def write(directory: Path, *, generator: bool = False) -> RAG:
    """Write a checkpoint; return its model."""
    words = WordTokenizer.train(DOCUMENTS, min_count=1)
    size = words.vocab_size
    model: RAG
    if generator:
        model = Generator(GeneratorConfig(vocab_size=size)).requires_grad_(False)
    else:
        config = RAGConfig(vocab_size=size, num_documents=len(DOCUMENTS))
        model = RAG(config).requires_grad_(False)
        for counts, document in zip(model.counts, DOCUMENTS, strict=True):
            found = torch.tensor(words(document).ids)
            counts += found.bincount(minlength=len(counts))
    save_checkpoint(model, words, directory, model.state_dict())
    return model


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--generator", action="store_true", help="p(y | d) alone")
    asked = parser.parse_args()
    write(asked.directory, generator=asked.generator)
