"""What the perplexity tasks take from the package, under the names of their metrics."""

from pathlib import Path

from datasets import Dataset

from lm_latent_eval.harness.metrics import METRICS, process_text
from lm_latent_eval.text.corpora import read_texts

__all__ = ["load_text", "process_text"]


def load_text(text_file=None, **_):
    """Read the file that ``--metadata '{"text_file": "PATH"}'`` names."""
    if not isinstance(text_file, str):
        raise ValueError(
            'latent_perplexity needs a text: --metadata \'{"text_file": "PATH"}\''
        )
    texts = read_texts(Path(text_file))
    return {"test": Dataset.from_list([{"text": text} for text in texts])}


globals().update({name.replace(".", "_"): f for name, f in METRICS.items()})
