"""What an RNNG checkpoint is made of."""

from __future__ import annotations

from typing import Any, ClassVar

from lm_latent_eval.models.pretrained import CheckedConfig
from lm_latent_eval.text.words import PADDING, START
from lm_latent_eval.values import Each, Flag, Matching, Rules, Share, Whole


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
    rules: ClassVar[Rules] = {
        "vocab_size": Whole(4),
        "num_words": Whole("vocab_size"),
        "hidden_size": Whole(1),
        "num_layers": Whole(1, 1000),
        "proposal_size": Whole(1),
        "max_words": Whole(1),
        "sentence_ends": Flag(),
        "only_possible": Flag(),
        "language": Matching(
            r"[a-z]{2,3}(-[A-Za-z]+)*", "the code of a language, en, say"
        ),
        "never_uttered": Each(Whole(0, below="vocab_size")),
        "dropout": Share(),
        "num_unknown_types": Whole(0),
    }

    def __init__(
        self,
        *,
        vocab_size: int = 4,
        num_words: int | None = None,
        hidden_size: int = 128,
        num_layers: int = 2,
        proposal_size: int = 128,
        max_words: int = 248,
        sentence_ends: bool = True,
        only_possible: bool | None = None,
        language: str = "en",
        never_uttered: list[int] | None = None,
        dropout: float = 0.0,
        num_unknown_types: int = 0,
        **kwargs: Any,
    ) -> None:
        """Store the fields; ``kwargs`` are those of every configuration."""
        self.vocab_size = vocab_size
        self.num_words = vocab_size if num_words is None else num_words
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.proposal_size = proposal_size
        self.max_words = max_words
        self.sentence_ends = sentence_ends
        self.only_possible = sentence_ends if only_possible is None else only_possible
        if self.only_possible and not sentence_ends:
            raise ValueError(
                "only_possible=True: without sentence_ends no model is normalised"
            )
        self.language = language
        self.never_uttered = (
            [PADDING, START] if never_uttered is None else never_uttered
        )
        self.dropout = dropout
        self.num_unknown_types = num_unknown_types
        super().__init__(**kwargs)
