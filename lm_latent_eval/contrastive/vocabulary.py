"""Substitutes of the noise channel: words of a training text or of a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from lm_latent_eval import manifest
from lm_latent_eval.text import strict_json
from lm_latent_eval.text.corpora import read_texts
from lm_latent_eval.text.words import WordTokenizer


def distinct_words(texts: Iterable[str]) -> list[str]:
    """Return the words of texts, cut at white space, each once, in alphabetical order.

    Example:
        >>> distinct_words(["a plum", "a river"])
        ['a', 'plum', 'river']
    """
    return sorted({word for text in texts for word in text.split()})


def read_vocabulary(path: Path) -> list[str]:
    """Read the words of a training text, or those that a checkpoint can utter.

    Args:
        path: A text file (``read_texts``), or the directory of one of our checkpoints.

    Raises:
        ValueError: If there is neither, or the checkpoint's tokens are not words.
    """
    path = Path(path)
    if path.is_dir():
        return _uttered(path)
    if not path.is_file():
        raise ValueError(
            f"{path}: no such file; expected a training text or a checkpoint directory"
        )
    return distinct_words(read_texts(path))


def _uttered(directory: Path) -> list[str]:
    try:
        config = strict_json.read(directory / "config.json")
        tokenizer = WordTokenizer.load(directory, int(config["vocab_size"]))
    except (OSError, KeyError, TypeError, ValueError) as err:
        raise ValueError(
            f"{directory} is not a checkpoint of words ({err}): name a training text, "
            "or distort its tokens themselves"
        ) from err
    manifest.verify(directory)
    return tokenizer.vocabulary
