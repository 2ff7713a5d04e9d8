"""Configuration of EntityNLM."""

from __future__ import annotations

from lm_latent_eval.models.pretrained import CheckedConfig, value
from lm_latent_eval.values import Each, Flag, OneOf, Share, Whole

TRAINED = ["peeking", "nonpeeking"]


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
        proposals: The trained proposals, of ``TRAINED``.
        dropout: Training only.
        num_unknown_types: Distinct unknown words of the training text, for the
            unknown-penalised perplexity; 0 if not known.
    """

    model_type = "entitynlm"
    vocab_size: int = value(4, Whole(4))
    num_words: int = value(None, Whole("vocab_size"))
    embedding_dim: int = value(128, Whole(1))
    hidden_size: int = value(192, Whole(1))
    num_layers: int = value(2, Whole(1, 1000))
    max_mention_length: int = value(20, Whole(1))
    tie_weights: bool = value(True, Flag())
    never_uttered: list[int] = value([0, 2], Each(Whole(0, below="vocab_size")))
    proposals: list[str] = value(TRAINED, Each(OneOf(*TRAINED)))
    dropout: float = value(0.0, Share())
    num_unknown_types: int = value(0, Whole(0))
