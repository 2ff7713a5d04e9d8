"""What the contrastive-entropy tasks take from the package, and their texts."""

from pathlib import Path

from datasets import Dataset

from lm_latent_eval import demo
from lm_latent_eval.harness.contrastive import ContrastiveEntropyTask
from lm_latent_eval.text.corpora import read_texts

__all__ = ["ContrastiveEntropyTask", "demo_world", "load_text"]


def load_text(text_file=None, **_):
    """Read the file that ``--metadata '{"text_file": "PATH"}'`` names."""
    if not isinstance(text_file, str):
        raise ValueError(
            "contrastive_entropy needs a text, and the text that the model was trained "
            'on: --metadata \'{"text_file": "PATH", "vocabulary_file": "PATH"}\''
        )
    return {"test": _dataset(read_texts(Path(text_file)))}


def demo_world(**_):
    """Texts of the demonstration world: substitutes come from its training texts."""
    return {split: _dataset(demo.texts(split)) for split in ("train", "test")}


def _dataset(texts):
    return Dataset.from_list([{"text": text} for text in texts])
