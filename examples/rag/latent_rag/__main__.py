"""Writes a model with four documents: ``python -m latent_rag DIR``."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from latent_rag import RAG, RAGConfig
from lm_latent_eval.extend import WordTokenizer, save_checkpoint

DOCUMENTS = (
    "the river rises in the north and ends in the salt lake",
    "the amber tide was written by hanne brunander in the north",
    "the school of laskhaven stands beside the salt lake",
    "hanne brunander studied at the school and wrote in the town",
)


def write(directory: Path) -> RAG:
    """Write a checkpoint; return its model."""
    words = WordTokenizer.train(DOCUMENTS, min_count=1)
    sizes = {"vocab_size": words.vocab_size, "num_documents": len(DOCUMENTS)}
    model = RAG(RAGConfig(**sizes)).requires_grad_(False)
    for counts, document in zip(model.counts, DOCUMENTS, strict=True):
        counts += torch.tensor(words(document).ids).bincount(minlength=len(counts))
    save_checkpoint(model, words, directory, model.state_dict())
    return model


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    write(parser.parse_args().directory)
