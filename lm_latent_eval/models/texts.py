"""Plain texts from every format of training files."""

from __future__ import annotations

from pathlib import Path

from lm_latent_eval.models.entitynlm.data import read_conll
from lm_latent_eval.models.rnng.data import read_treebank
from lm_latent_eval.text import corpora


def read_texts(path: Path) -> list[str]:
    """Read texts without their annotation, as their models are trained on them.

    Args:
        path: Texts as ``corpora.read_texts`` takes them; trees in brackets or documents
            with coreference (CoNLL), in a file or a folder.

    Returns:
        One string for each sentence of trees or document of CoNLL.

    Raises:
        ValueError: If the file is of neither kind, or malformed.
    """
    if path.is_dir():
        conll = any(path.rglob("*conll"))
    else:
        conll = corpora.holds_conll(path)
        if not conll and not corpora.holds_trees(path):
            return corpora.read_texts(path)
    if conll:
        return [document.text for document in read_conll(path)]
    return [sentence.text for sentence in read_treebank(path)]
