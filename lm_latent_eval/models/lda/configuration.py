"""Configuration of LDA."""

from __future__ import annotations

from lm_latent_eval.models.pretrained import CheckedConfig, value
from lm_latent_eval.text.words import SPECIAL_WORDS
from lm_latent_eval.values import Each, Flag, Whole


class LDAConfig(CheckedConfig):
    """Configuration of a topic model.

    Args:
        vocab_size: V, words that topics can utter and the reserved ones.
        num_words: As ``vocab_size``: no word is copied.
        num_topics: N.
        lowercase: Whether words are looked up in lower case.
        never_uttered: Words that have probability zero; the reserved ones.
        num_unknown_types: Distinct unknown words of the training text; 0: not known.
    """

    model_type = "latent_eval_lda"
    vocab_size: int = value(len(SPECIAL_WORDS), Whole(len(SPECIAL_WORDS)))
    num_words: int = value(None, Whole("vocab_size", "vocab_size"))
    num_topics: int = value(1, Whole(1))
    lowercase: bool = value(False, Flag())
    never_uttered: list[int] = value([0, 1, 2, 3], Each(Whole(0, below="vocab_size")))
    num_unknown_types: int = value(0, Whole(0))
