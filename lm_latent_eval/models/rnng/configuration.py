"""Configuration of RNNG."""

from __future__ import annotations

from typing import Any

from lm_latent_eval.models.pretrained import CheckedConfig, value
from lm_latent_eval.text.words import PADDING, START
from lm_latent_eval.values import Each, Flag, Matching, Share, Whole

LANGUAGE = Matching(r"[a-z]{2,3}(-[A-Za-z]+)*", "the code of a language, en, say")


class RNNGConfig(CheckedConfig):
    """Configuration of a recurrent neural network grammar and its CRF proposal.

    Args:
        vocab_size: V, words the model can utter.
        num_words: V plus words that are known but never uttered.
        hidden_size: d, of embeddings, stack and composition, which share it.
        num_layers: Layers of the stack LSTM.
        proposal_size: Of each direction of the proposal's LSTM.
        max_words: Of the longest sentence that the proposal can read.
        sentence_ends: Whether a sentence ends with an end word. Without it p is no
            distribution over sentences of all lengths.
        only_possible: Exclude an end before one tree stands, and charge nothing after
            it, so that p is normalised; None is yes if sentences end. Original
            checkpoints were trained with what is impossible.
        language: Code of the language whose sentences documents are split into.
        never_uttered: Words excluded from prediction (padding and start).
        dropout: Training only.
        num_unknown_types: Distinct unknown words of the training text.
    """

    model_type = "latent_eval_rnng"
    vocab_size: int = value(4, Whole(4))
    num_words: int = value(None, Whole("vocab_size"))
    hidden_size: int = value(128, Whole(1))
    num_layers: int = value(2, Whole(1, 1000))
    proposal_size: int = value(128, Whole(1))
    max_words: int = value(248, Whole(1))
    sentence_ends: bool = value(True, Flag())
    only_possible: bool | None = value(None, Flag())
    language: str = value("en", LANGUAGE)
    never_uttered: list[int] = value(
        [PADDING, START], Each(Whole(0, below="vocab_size"))
    )
    dropout: float = value(0.0, Share())
    num_unknown_types: int = value(0, Whole(0))

    def __post_init__(self, **kwargs: Any) -> None:
        if self.only_possible is None:
            self.only_possible = self.sentence_ends
        if self.only_possible and not self.sentence_ends:
            raise ValueError(
                "only_possible=True: without sentence_ends no model is normalised"
            )
        super().__post_init__(**kwargs)
