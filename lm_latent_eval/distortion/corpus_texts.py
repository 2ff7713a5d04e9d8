"""Sequences of a corpus as strings, for models that score strings."""

from __future__ import annotations

from collections import defaultdict
from enum import StrEnum
from typing import Any

from datasets import Dataset

from lm_latent_eval.distortion.languages.corpus import Corpus

_ROWS_AT_ONCE = 1024


class End(StrEnum):
    """How a model is asked for a whole sequence, its end included."""

    WRITTEN = "written"
    """The string of the end token is the last of the text, the begin token's its
    context: for models that read both as tokens (``hf``)."""

    IMPLIED = "implied"
    """A rolling log-likelihood counts the end by itself: for models of whole texts
    (``latent_...``, ``kenlm``)."""


def as_texts(corpus: Corpus, end: End) -> Dataset:
    """Write sequences as texts, those that can be read back.

    A text stands for one sequence only if the tokenizer cuts it into that sequence's
    tokens. A byte-pair encoding need not: a language may utter two tokens where the
    encoding has one for both.

    Args:
        corpus: The sequences.
        end: What is part of a text.

    Returns:
        A row a sequence: ``index``, ``begin`` (context), ``text``, ``ended`` and
        ``true_log_p`` in nats.

    Raises:
        ValueError: If the corpus has no tokenizer, or nothing can be read back.
    """
    tokenizer = corpus.tokenizer()
    if tokenizer is None:
        raise ValueError(
            f"{corpus.directory} has no tokenizer, so its sequences have no texts that "
            "a model could be asked for: sample from a language that has one"
        )

    def written(ids: list[int]) -> str:
        return str(tokenizer.decode(ids, clean_up_tokenization_spaces=False))

    before = [int(corpus.settings["begin_id"])] if end is End.WRITTEN else []
    begin = written(before) if before else ""
    columns: dict[str, list[Any]] = defaultdict(list)
    for rows in corpus.dataset().iter(batch_size=_ROWS_AT_ONCE):
        asked = [
            ids[:-1] if ended and end is End.IMPLIED else ids
            for ids, ended in zip(rows["ids"], rows["ended"], strict=True)
        ]
        texts = [written(ids) if ids else "" for ids in asked]
        encoded = tokenizer([begin + text for text in texts], add_special_tokens=False)
        for place, read in enumerate(encoded["input_ids"]):
            # To models of sentences no words are no sentence, whatever its end costs.
            if texts[place] and read == before + asked[place]:
                columns["index"].append(rows["index"][place])
                columns["begin"].append(begin)
                columns["text"].append(texts[place])
                columns["ended"].append(rows["ended"][place])
                columns["true_log_p"].append(rows["log_p"][place])
    if not columns:
        raise ValueError(
            f"{corpus.directory}: none of {corpus.num_sequences} sequences is what its "
            "tokenizer makes of the sequence's text, so lm-eval cannot ask for them. "
            "Is it the tokenizer of this language?"
        )
    return Dataset.from_dict(columns)
