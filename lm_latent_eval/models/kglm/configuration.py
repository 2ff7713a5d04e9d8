"""What a KGLM checkpoint is made of."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from lm_latent_eval.models.pretrained import CheckedConfig
from lm_latent_eval.values import Each, Flag, OneOf, Rules, Share, Whole

CopyScores = Literal["transposed", "reshaped"]


MOST_CUTOFF = 1000
"""Tokens. Every decision looks at the nodes of as many, so memory grows with it."""


class KGLMConfig(CheckedConfig):
    """Configuration of a knowledge graph language model and its proposals.

    Args:
        vocab_size: V, words the model can utter (padding, unknown, start and end too).
        num_words: V plus the words that occur only in aliases and can only be copied.
        num_entities: E, rows of the entity table, "no entity" included.
        num_relations: Rows of the relation table.
        token_embedding_dim: Also the size of the text part of the hidden state.
        entity_embedding_dim: Also of relations.
        hidden_size: Of the inner recurrent layers.
        num_layers: Recurrent layers.
        cutoff: An entity stays a candidate parent this many tokens after its mention.
        tie_weights: Share token embeddings with the output layer and, without a
            shortlist, entity embeddings with the new-entity layer.
        entity_shortlist: Score new entities by their own embeddings, over a list that
            may come with the text (original checkpoints), rather than by a layer.
        special_entities: Rows at the start of the entity table that are never
            introduced (no entity; in originals also unknown, date, quantity).
        only_possible: Exclude choices that cannot lead anywhere, so that p is
            normalised. Original checkpoints were trained with them.
        copy_scores: ``transposed``, or ``reshaped`` as original checkpoints need.
        never_uttered: Words excluded from generation (padding and start).
        max_aliases: Surface forms kept a node.
        max_alias_words: Words kept a surface form.
        proposals: The trained proposals: ``peeking``, ``nonpeeking``, ``smoothing``.
        dropout: Training only.
        num_unknown_types: Distinct unknown words of the training text, for the
            unknown-penalised perplexity; 0 if not known.
    """

    model_type = "kglm"
    rules: ClassVar[Rules] = {
        "vocab_size": Whole(4),
        "num_words": Whole("vocab_size"),
        "num_entities": Whole(1),
        "num_relations": Whole(1),
        "token_embedding_dim": Whole(1),
        "entity_embedding_dim": Whole(1),
        "hidden_size": Whole(1),
        "num_layers": Whole(1, 1000),
        "cutoff": Whole(1, MOST_CUTOFF),
        "tie_weights": Flag(),
        "entity_shortlist": Flag(),
        "special_entities": Whole(1, "num_entities"),
        "only_possible": Flag(),
        "copy_scores": OneOf("transposed", "reshaped"),
        "never_uttered": Each(Whole(0, below="vocab_size")),
        "max_aliases": Whole(1),
        "max_alias_words": Whole(1),
        "proposals": Each(OneOf("peeking", "nonpeeking", "smoothing")),
        "dropout": Share(),
        "num_unknown_types": Whole(0),
    }

    def __init__(
        self,
        *,
        vocab_size: int = 4,
        num_words: int | None = None,
        num_entities: int = 1,
        num_relations: int = 1,
        token_embedding_dim: int = 128,
        entity_embedding_dim: int = 64,
        hidden_size: int = 256,
        num_layers: int = 2,
        cutoff: int = 30,
        tie_weights: bool = True,
        entity_shortlist: bool = False,
        special_entities: int = 1,
        only_possible: bool = True,
        copy_scores: CopyScores = "transposed",
        never_uttered: list[int] | None = None,
        max_aliases: int = 4,
        max_alias_words: int = 8,
        proposals: list[str] | None = None,
        dropout: float = 0.0,
        num_unknown_types: int = 0,
        **kwargs: Any,
    ) -> None:
        """Store the fields; ``kwargs`` are those of every configuration."""
        self.vocab_size = vocab_size
        self.num_words = vocab_size if num_words is None else num_words
        self.num_entities = num_entities
        self.num_relations = num_relations
        self.token_embedding_dim = token_embedding_dim
        self.entity_embedding_dim = entity_embedding_dim
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.cutoff = cutoff
        self.tie_weights = tie_weights
        self.entity_shortlist = entity_shortlist
        self.special_entities = special_entities
        self.only_possible = only_possible
        self.copy_scores = copy_scores
        self.never_uttered = [0, 2] if never_uttered is None else never_uttered
        self.max_aliases = max_aliases
        self.max_alias_words = max_alias_words
        self.proposals = (
            ["peeking", "nonpeeking", "smoothing"] if proposals is None else proposals
        )
        self.dropout = dropout
        self.num_unknown_types = num_unknown_types
        super().__init__(**kwargs)
