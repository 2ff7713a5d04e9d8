"""What the perplexity tasks take from the package."""

from pathlib import Path

from datasets import Dataset

from lm_latent_eval.harness.perplexity import (
    CompletionTask,
    FullPerplexityTask,
    KnownWordsTask,
    PerplexityTask,
    halves,
)
from lm_latent_eval.text.corpora import read_texts

__all__ = [
    "CompletionTask",
    "FullPerplexityTask",
    "KnownWordsTask",
    "PerplexityTask",
    "load_halves",
    "load_text",
]


def load_text(text_file=None, **_):
    """Read the file that ``--metadata '{"text_file": "PATH"}'`` names."""
    if not isinstance(text_file, str):
        raise ValueError('this task needs a text: --metadata \'{"text_file": "PATH"}\'')
    texts = read_texts(Path(text_file))
    return {"test": Dataset.from_list([{"text": text} for text in texts])}


def load_halves(text_file=None, **_):
    """Read that file, and give every document's first half before the whole."""
    texts = load_text(text_file)["test"]["text"]
    return {"test": Dataset.from_list(list(halves(texts)))}
