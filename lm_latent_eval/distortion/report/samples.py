"""Sequences of a language beside their log-probabilities (tables 2 and 6 to 9)."""

from __future__ import annotations

from lm_latent_eval.distortion.languages.corpus import Corpus
from lm_latent_eval.distortion.report.writing import shown
from lm_latent_eval.report.tabular import Table


def sample_table(corpus: Corpus, num_sequences: int) -> Table:
    """Return the first sequences of a corpus as a table.

    Args:
        corpus: What to read.
        num_sequences: How many, or all there are.

    Raises:
        ValueError: If the number is below 1.
    """
    if num_sequences < 1:
        raise ValueError(f"num_sequences={num_sequences}: expected at least 1")
    indices = corpus.indices[:num_sequences]
    found = corpus.reader()(indices)
    tokenizer = corpus.tokenizer()
    rows = []
    for ids, ended, log_p in zip(
        found.ids, found.ended.tolist(), found.log_p.tolist(), strict=True
    ):
        words = ids[:-1] if ended else ids
        text = shown(words, tokenizer) + ("" if ended else " …")
        rows.append([text, log_p])
    return Table(["x", "log p"], rows, number="{:.4f}".format)
