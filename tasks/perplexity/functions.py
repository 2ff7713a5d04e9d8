"""What the perplexity tasks take from the package, under the names of their metrics."""

from pathlib import Path

from datasets import Dataset

from lm_latent_eval.harness.perplexity import (
    COMPLETION_METRICS,
    METRICS,
    halves,
    process_every_metric,
    process_half,
    process_known_words,
    process_text,
)
from lm_latent_eval.harness.tasks import WholeTextTask
from lm_latent_eval.text.corpora import read_texts

__all__ = [
    "WholeTextTask",
    "load_halves",
    "load_text",
    "process_every_metric",
    "process_half",
    "process_known_words",
    "process_text",
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


globals().update(COMPLETION_METRICS)
globals().update({name.replace(".", "_"): f for name, f in METRICS.items()})
