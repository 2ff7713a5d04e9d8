"""Writes a mixture of two tiny GPT-2s: ``python -m latent_mixture DIR``.

They are random, and their tokens are the bytes. To mix two models of your own that
share a tokenizer, call ``latent_mixture.write``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from latent_mixture import write

PRIOR = (0.3, 0.7)


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer whose tokens are the bytes, and an end."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate([*alphabet, "<end>"])}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")


def random_gpt2(seed: int, vocab_size: int) -> GPT2LMHeadModel:
    """Return a GPT-2 of two thousand parameters a layer."""
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=vocab_size,
        n_positions=1024,
        n_embd=16,
        n_layer=1,
        n_head=2,
        initializer_range=0.5,
        bos_token_id=vocab_size - 1,
        eos_token_id=vocab_size - 1,
    )
    return GPT2LMHeadModel(config)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    tokenizer = byte_tokenizer()
    parts = [random_gpt2(seed, len(tokenizer)) for seed in (0, 1)]
    write(parser.parse_args().directory, parts, tokenizer, PRIOR)
