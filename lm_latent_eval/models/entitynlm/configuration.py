"""What an EntityNLM checkpoint is made of."""

from __future__ import annotations

from typing import Any, ClassVar

from lm_latent_eval.models.pretrained import CheckedConfig
from lm_latent_eval.values import Each, Flag, OneOf, Rules, Share, Whole


class EntityNLMConfig(CheckedConfig):
    """Configuration of an EntityNLM and its proposals.

    Args:
        vocab_size: V, words the model can utter (padding, unknown, start and end too).
        num_words: V plus words that are known but never uttered.
        embedding_dim: D, of words, of the top of the recurrent layers and of entities.
        hidden_size: Of the inner recurrent layers.
        num_layers: Recurrent layers.
        max_mention_length: M; a mention has 1 .. M words.
        tie_weights: Share word embeddings with the output layer.
        never_uttered: Words excluded from prediction (padding and start); original
            checkpoints exclude none.
        proposals: The trained proposals: ``peeking``, ``nonpeeking``.
        dropout: Training only.
        num_unknown_types: Distinct unknown words of the training text, for the
            unknown-penalised perplexity; 0 if not known.
    """

    model_type = "entitynlm"
    rules: ClassVar[Rules] = {
        "vocab_size": Whole(4),
        "num_words": Whole("vocab_size"),
        "embedding_dim": Whole(1),
        "hidden_size": Whole(1),
        "num_layers": Whole(1, 1000),
        "max_mention_length": Whole(1),
        "tie_weights": Flag(),
        "never_uttered": Each(Whole(0, below="vocab_size")),
        "proposals": Each(OneOf("peeking", "nonpeeking")),
        "dropout": Share(),
        "num_unknown_types": Whole(0),
    }

    def __init__(
        self,
        *,
        vocab_size: int = 4,
        num_words: int | None = None,
        embedding_dim: int = 128,
        hidden_size: int = 192,
        num_layers: int = 2,
        max_mention_length: int = 20,
        tie_weights: bool = True,
        never_uttered: list[int] | None = None,
        proposals: list[str] | None = None,
        dropout: float = 0.0,
        num_unknown_types: int = 0,
        **kwargs: Any,
    ) -> None:
        """Store the fields; ``kwargs`` are those of every configuration."""
        self.vocab_size = vocab_size
        self.num_words = vocab_size if num_words is None else num_words
        self.embedding_dim = embedding_dim
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.max_mention_length = max_mention_length
        self.tie_weights = tie_weights
        self.never_uttered = [0, 2] if never_uttered is None else never_uttered
        self.proposals = ["peeking", "nonpeeking"] if proposals is None else proposals
        self.dropout = dropout
        self.num_unknown_types = num_unknown_types
        super().__init__(**kwargs)
