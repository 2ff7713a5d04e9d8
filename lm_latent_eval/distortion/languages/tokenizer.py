"""Tokenizers of languages: a byte-pair encoding trained on text, or one on disk."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import ByteLevelBPETokenizer, pre_tokenizers
from transformers import (
    AutoTokenizer,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from lm_latent_eval.distortion.languages.words import BEGIN, END

SMALLEST = 2 + len(pre_tokenizers.ByteLevel.alphabet())
"""Begin, end and every byte."""


def train_bpe(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE: any string can be written, and read again as it was.

    Args:
        texts: The corpus; strings are read once and not kept.
        vocab_size: Begin, end, all bytes, and as many merges as there is room for.

    Raises:
        ValueError: If there is no room for the bytes, or the texts are too few for so
            many tokens.

    Example:
        >>> bpe = train_bpe(["two plums and two plums"], vocab_size=262)
        >>> bpe.decode(bpe("two pears").input_ids)
        'two pears'
    """
    if vocab_size < SMALLEST:
        raise ValueError(
            f"vocab_size={vocab_size}: expected at least {SMALLEST}, one a byte"
        )
    bpe = ByteLevelBPETokenizer()
    bpe.train_from_iterator(
        texts,
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=[BEGIN, END],
        show_progress=False,
    )
    found = bpe.get_vocab_size()
    if found < vocab_size:
        raise ValueError(
            f"the text has pairs for a vocabulary of {found}, not {vocab_size}: give "
            "more text, or ask for fewer tokens"
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe._tokenizer,
        bos_token=BEGIN,
        eos_token=END,
        clean_up_tokenization_spaces=False,
    )


def load_tokenizer(path: str | Path) -> PreTrainedTokenizerBase | None:
    """Load a tokenizer; None if there is none."""
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    except (OSError, ValueError):
        return None
    # Where there are no files, transformers may make one up that has no words.
    words = tokenizer.get_vocab().keys() - set(tokenizer.all_special_tokens)
    found: PreTrainedTokenizerBase | None = tokenizer if words else None
    return found
