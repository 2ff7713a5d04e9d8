"""Base class of relation models: topics stored with the checkpoint."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from lm_latent_eval.models.lrlm.configuration import RelationConfig
from lm_latent_eval.models.lrlm.topics import FILE_NAME, PAD, Topics, TopicsError
from lm_latent_eval.models.pretrained import Pretrained
from lm_latent_eval.models.recurrent import initialise


class RelationModel(Pretrained):
    """A model whose texts are about topics: facts, and the names of their objects."""

    config: RelationConfig
    topics: Topics | None

    def _init_weights(self, module: nn.Module) -> None:
        """Initialise one module of a new model."""
        initialise(module)

    # -- files ----------------------------------------------------------------------

    def save_extras(self, directory: Path) -> None:
        self.knowledge.save(directory)

    def load_extras(self, directory: Path) -> None:
        """Read the topics.

        Raises:
            TopicsError: If they are missing, damaged or of another model.
        """
        topics = Topics.load(directory)
        check_fit(topics, self.config, directory)
        self.topics = topics

    def check_extras(self) -> None:
        """Nothing is left to check: the topics are checked when they are read."""

    @property
    def knowledge(self) -> Topics:
        """The topics; an error if the model has none yet."""
        if self.topics is None:
            raise ValueError(
                f"this {self.base_model_prefix} model has no topics: pass topics="
            )
        return self.topics


def to_facts(inner: int, hidden: int, outer: int) -> nn.Module:
    """Build the map from what is predicted from to fact vectors."""
    if not hidden:
        return nn.Linear(inner, outer)
    return nn.Sequential(nn.Linear(inner, hidden), nn.ReLU(), nn.Linear(hidden, outer))


def check_fit(topics: Topics, config: RelationConfig, directory: Path) -> None:
    """Hold topics against the model that they belong to.

    Raises:
        TopicsError: If they are another model's.
    """
    for name, size in topics.sizes().items():
        if size != getattr(config, name):
            raise TopicsError(
                f"{directory / FILE_NAME} has {name}={size}, the model "
                f"{getattr(config, name)}: it belongs to another checkpoint"
            )
    for name, column, least, limit in (
        ("a relation", topics.fact_relation, 0, config.num_relations),
        ("an object", topics.fact_object, 0, config.num_objects or None),
        ("a word of an alias", topics.alias_words, PAD, config.num_words),
        ("a piece of an alias", topics.alias_pieces, 0, config.num_pieces),
    ):
        if limit is None or not column.numel():
            continue
        if int(column.min()) < least or int(column.max()) >= limit:
            raise TopicsError(
                f"{directory / FILE_NAME}: {name} is not one of {limit}: it belongs "
                "to another checkpoint"
            )
