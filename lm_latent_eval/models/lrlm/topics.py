"""Topics, their facts, and the names of the facts' objects.

Topics are numbered 1 .. N; topic 0 is one that is not known yet. A topic's facts are
contiguous, and so are a fact's *namings*: a naming is one alias of one fact of one
topic, so two facts that share a name have a naming each. Aliases are distinct strings,
kept as word ids of the extended vocabulary (words that the model can utter, then words
that it can only copy).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from lm_latent_eval.files import one_line, replacing
from lm_latent_eval.latent import Description, Normalization, Span, marked
from lm_latent_eval.models.lrlm.configuration import RelationConfig
from lm_latent_eval.models.pretrained import TrainedModel
from lm_latent_eval.values import parse

FILE_NAME = "topics.safetensors"

PAD = -1
"""Padding of the rows of aliases."""

COLUMNS = {
    "fact_ends": torch.int64,
    "fact_relation": torch.int64,
    "fact_object": torch.int64,
    "naming_ends": torch.int64,
    "naming_alias": torch.int64,
    "alias_words": torch.int64,
    "piece_ends": torch.int64,
    "alias_pieces": torch.int64,
    "log_prior": torch.float64,
}


class TopicsError(ValueError):
    """Topics that contradict themselves or their model."""


@dataclass(frozen=True)
class Fact:
    relation: int
    object: int
    aliases: tuple[int, ...]
    """Rows of the object's aliases, at least one."""


class Topics:
    """The columns of all topics; they stay on the host and are no weights."""

    fact_ends: Tensor
    """End of each topic's facts, (N,)."""
    fact_relation: Tensor
    fact_object: Tensor
    naming_ends: Tensor
    """End of each fact's namings, (F,)."""
    naming_alias: Tensor
    alias_words: Tensor
    """Word ids, ``PAD`` after the last, (A, L)."""
    piece_ends: Tensor
    """End of the letter n-grams of each alias, (A,)."""
    alias_pieces: Tensor
    """Ids of letter n-grams, flat."""
    log_prior: Tensor
    """Log p(topic) in nats, (N,)."""

    def __init__(self, columns: Mapping[str, Tensor], names: Sequence[str]) -> None:
        """Check the columns and derive indices.

        Raises:
            TopicsError: If they contradict each other.
        """
        _check(columns, names)
        self.names = list(names)
        vars(self).update(columns)
        facts = torch.arange(len(self.fact_relation))
        namings = torch.arange(len(self.naming_alias))
        topic = torch.searchsorted(self.fact_ends, facts, right=True) + 1
        fact = torch.searchsorted(self.naming_ends, namings, right=True)
        derived = {
            "fact_topic": topic,
            "naming_fact": fact,
            "naming_topic": topic[fact],
            "alias_length": (self.alias_words != PAD).sum(-1),
            "by_first_word": self.alias_words[:, 0].argsort(stable=True),
            "by_alias": self.naming_alias.argsort(stable=True),
        }
        derived["first_words"] = self.alias_words[derived["by_first_word"], 0]
        derived["aliases_sorted"] = self.naming_alias[derived["by_alias"]]
        vars(self).update(derived)

    fact_topic: Tensor
    naming_fact: Tensor
    naming_topic: Tensor
    alias_length: Tensor
    by_first_word: Tensor
    first_words: Tensor
    by_alias: Tensor
    aliases_sorted: Tensor

    @property
    def num_topics(self) -> int:
        return len(self.fact_ends)

    def sizes(self) -> dict[str, Any]:
        """Configuration entries of a model with these topics."""
        return {
            "num_topics": self.num_topics,
            "num_facts": len(self.fact_relation),
            "num_namings": len(self.naming_alias),
            "num_aliases": len(self.alias_words),
        }

    # -- looking up -----------------------------------------------------------------

    def facts_of(self, topic: Tensor) -> tuple[Tensor, Tensor]:
        """Start and end of the facts of topics 1 .. N."""
        return _range(self.fact_ends, topic - 1)

    def namings_of(self, fact: Tensor) -> tuple[Tensor, Tensor]:
        return _range(self.naming_ends, fact)

    def pieces_of(self, alias: Tensor) -> tuple[Tensor, Tensor]:
        return _range(self.piece_ends, alias)

    def length(self, naming: Tensor) -> Tensor:
        return self.alias_length[self.naming_alias[naming]]

    def word(self, naming: Tensor, offset: Tensor) -> Tensor:
        return self.alias_words[self.naming_alias[naming], offset]

    def number(self, name: str) -> int:
        """Number of a topic.

        Raises:
            ValueError: If the name is unknown.
        """
        try:
            return self.names.index(name) + 1
        except ValueError:
            raise ValueError(
                f"no topic {name!r}: there are {len(self.names)}"
            ) from None

    # -- making and keeping ---------------------------------------------------------

    @classmethod
    def build(
        cls,
        topics: Mapping[str, Sequence[Fact]],
        aliases: Sequence[Sequence[int]],
        *,
        counts: Mapping[str, int] | None = None,
        pieces: Sequence[Sequence[int]] = (),
    ) -> Topics:
        """Build the columns of topics.

        Args:
            topics: Name -> facts.
            aliases: Word ids of each alias.
            counts: Number of texts about each topic; p(topic) is proportional to one
                more.
            pieces: Letter n-grams of each alias, if aliases are encoded by them.
        """
        facts = [fact for several in topics.values() for fact in several]
        seen = [1 + (counts or {}).get(name, 0) for name in topics]
        total = math.log(sum(seen)) if seen else 0.0
        width = max(map(len, aliases), default=1)
        rows = [[*words, *[PAD] * (width - len(words))] for words in aliases]
        columns = {
            "fact_ends": _ends(topics.values()),
            "fact_relation": torch.tensor([f.relation for f in facts]),
            "fact_object": torch.tensor([f.object for f in facts]),
            "naming_ends": _ends(fact.aliases for fact in facts),
            "naming_alias": torch.tensor([a for f in facts for a in f.aliases]),
            "alias_words": torch.tensor(rows).view(len(rows), width),
            "piece_ends": _ends(pieces or [[] for _ in aliases]),
            "alias_pieces": torch.tensor([n for p in pieces for n in p]),
            "log_prior": torch.tensor(
                [math.log(n) - total for n in seen], dtype=torch.float64
            ),
        }
        columns = {n: columns[n].to(kind) for n, kind in COLUMNS.items()}
        return cls(columns, list(topics))

    def save(self, directory: Path) -> None:
        columns = {
            name: getattr(self, name).to(kind).contiguous()
            for name, kind in COLUMNS.items()
        }
        metadata = {"names": json.dumps(self.names)}
        with replacing(directory / FILE_NAME) as partial:
            save_file(columns, partial, metadata=metadata)

    @classmethod
    def load(cls, directory: Path) -> Topics:
        """Read ``topics.safetensors``.

        Raises:
            TopicsError: If it is missing, damaged or contradicts itself.
        """
        path = directory / FILE_NAME
        try:
            with safe_open(path, "pt") as file:
                names = parse((file.metadata() or {})["names"])
                columns = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError, KeyError, ValueError) as err:
            raise TopicsError(
                f"{path} is missing or damaged ({one_line(err)}): copy or train it "
                "again"
            ) from err
        try:
            return cls(columns, names)
        except TopicsError as err:
            raise TopicsError(f"{path}: {err}: copy or train it again") from err


def _range(ends: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
    """Start and end of rows that follow one another."""
    return ends[(row - 1).clamp_min(0)].masked_fill(row == 0, 0), ends[row]


def _ends(groups: Iterable[Sequence[object]]) -> Tensor:
    return torch.tensor([len(group) for group in groups], dtype=torch.int64).cumsum(0)


def _check(columns: Mapping[str, Tensor], names: object) -> None:
    if columns.keys() != COLUMNS.keys():
        wrong = sorted(columns.keys() ^ COLUMNS.keys())
        raise TopicsError(f"a column {wrong[0]!r} is missing or unknown")
    for name, kind in COLUMNS.items():
        if columns[name].dtype != kind:
            raise TopicsError(f"{name} is of {columns[name].dtype}, not of {kind}")
        if columns[name].ndim != (2 if name == "alias_words" else 1):
            raise TopicsError(f"{name} has the shape {tuple(columns[name].shape)}")
    facts, namings = len(columns["fact_relation"]), len(columns["naming_alias"])
    aliases, topics = len(columns["alias_words"]), len(columns["fact_ends"])
    if not isinstance(names, list | tuple) or len(names) != topics:
        raise TopicsError(f"there are {topics} topics, and not as many names")
    if not topics:
        raise TopicsError("there are no topics")
    for name, rows, into, least in (
        ("fact_ends", topics, facts, 1),
        ("naming_ends", facts, namings, 1),
        ("piece_ends", aliases, len(columns["alias_pieces"]), 0),
    ):
        ends = columns[name]
        sizes = ends.diff(prepend=ends.new_zeros(1))
        if len(ends) != rows or int(ends[-1]) != into or bool((sizes < least).any()):
            raise TopicsError(f"{name} does not divide {into} into {rows}")
    if len(columns["fact_object"]) != facts or len(columns["log_prior"]) != topics:
        raise TopicsError("columns have different lengths")
    named = columns["naming_alias"]
    if int(named.min()) < 0 or int(named.max()) >= aliases:
        raise TopicsError("naming_alias has a dangling id")
    words = columns["alias_words"]
    ordered = ((words[:, 1:] == PAD) | (words[:, :-1] != PAD)).all()
    if words.shape[1] == 0 or bool((words[:, 0] == PAD).any()) or not ordered:
        raise TopicsError("an alias has no words, or a hole")
    if not abs(float(columns["log_prior"].logsumexp(0))) < 1e-6:
        raise TopicsError("log_prior is not a distribution")


# -- models of topics ---------------------------------------------------------------


class RelationModel(TrainedModel):
    """A model of texts about topics: facts, and the names of their objects."""

    config: RelationConfig
    topics: Topics | None

    @property
    def normalization(self) -> Normalization:
        if self.config.oracle:  # every alias of a fact has probability 1
            return Normalization.UNNORMALISED
        return super().normalization

    def describe(
        self, words: Sequence[str], latents: Any, decode: Callable[[Sequence[int]], str]
    ) -> Description:
        """Mark names of facts with topic and relation: see ``LatentLM``."""
        columns = (latents.source, latents.offset)
        source, offset = (part[0, 0, : len(words)].tolist() for part in columns)
        topics, spans = self.knowledge, list[Span]()
        for place, naming in enumerate(source):
            if not naming:
                continue
            if offset[place] and spans and spans[-1].end == place:
                spans[-1] = replace(spans[-1], end=place + 1)
                continue
            fact = int(topics.naming_fact[naming - 1])
            topic = topics.names[int(topics.fact_topic[fact]) - 1]
            label = f"{topic}: relation {int(topics.fact_relation[fact])}"
            spans.append(Span(place, place + 1, label, fact))
        return marked(words, spans)

    # -- files ----------------------------------------------------------------------

    def save_extras(self, directory: Path) -> None:
        self.knowledge.save(directory)

    def load_extras(self, directory: Path) -> None:
        """Read the topics.

        Raises:
            TopicsError: If they are missing, damaged or of another model.
        """
        topics, file = Topics.load(directory), directory / FILE_NAME
        for name, size in topics.sizes().items():
            if size != getattr(self.config, name):
                raise TopicsError(
                    f"{file} has {name}={size}, the model {getattr(self.config, name)}:"
                    " it belongs to another checkpoint"
                )
        for name, column, least, limit in (
            ("a relation", topics.fact_relation, 0, self.config.num_relations),
            ("an object", topics.fact_object, 0, self.config.num_objects or None),
            ("a word of an alias", topics.alias_words, PAD, self.config.num_words),
            ("a piece of an alias", topics.alias_pieces, 0, self.config.num_pieces),
        ):
            if limit is None or not column.numel():
                continue
            if int(column.min()) < least or int(column.max()) >= limit:
                raise TopicsError(
                    f"{file}: {name} is not one of {limit}: it belongs to another "
                    "checkpoint"
                )
        self.topics = topics

    def check_extras(self) -> None:
        """Pass: ``load_extras`` checks topics."""

    @property
    def knowledge(self) -> Topics:
        """Topics of the model.

        Raises:
            ValueError: If it has none yet.
        """
        if self.topics is None:
            raise ValueError(
                f"this {self.base_model_prefix} model has no topics: pass topics="
            )
        return self.topics


def to_facts(inner: int, hidden: int, outer: int) -> nn.Module:
    """Map from hidden states to fact vectors."""
    if not hidden:
        return nn.Linear(inner, outer)
    return nn.Sequential(nn.Linear(inner, hidden), nn.ReLU(), nn.Linear(hidden, outer))
