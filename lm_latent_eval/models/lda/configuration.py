"""What a topic model's checkpoint is made of."""

from __future__ import annotations

from typing import Any, ClassVar

from lm_latent_eval.models.pretrained import CheckedConfig
from lm_latent_eval.text.words import SPECIAL_WORDS
from lm_latent_eval.values import Each, Flag, Rules, Whole


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
    rules: ClassVar[Rules] = {
        "vocab_size": Whole(len(SPECIAL_WORDS)),
        "num_words": Whole("vocab_size", "vocab_size"),
        "num_topics": Whole(1),
        "lowercase": Flag(),
        "never_uttered": Each(Whole(0, below="vocab_size")),
        "num_unknown_types": Whole(0),
    }

    def __init__(
        self,
        *,
        vocab_size: int = len(SPECIAL_WORDS),
        num_words: int | None = None,
        num_topics: int = 1,
        lowercase: bool = False,
        never_uttered: list[int] | None = None,
        num_unknown_types: int = 0,
        **kwargs: Any,
    ) -> None:
        """Store the fields; ``kwargs`` are those of every configuration."""
        self.vocab_size = vocab_size
        self.num_words = vocab_size if num_words is None else num_words
        self.num_topics = num_topics
        self.lowercase = lowercase
        self.never_uttered = [0, 1, 2, 3] if never_uttered is None else never_uttered
        self.num_unknown_types = num_unknown_types
        super().__init__(**kwargs)
