"""Base classes of models and configurations: transformers' own, with checks.

``save_pretrained`` writes a manifest, which ``from_pretrained`` verifies. Every value
of a configuration has a rule.
"""

from __future__ import annotations

from dataclasses import field, fields
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.constants import is_offline_mode
from torch import nn
from transformers import AutoConfig, AutoModel, PretrainedConfig, PreTrainedModel

from lm_latent_eval import manifest
from lm_latent_eval.devices import FLOATS
from lm_latent_eval.files import new_mode
from lm_latent_eval.latent import LatentLM, Normalization
from lm_latent_eval.models.recurrent import initialise
from lm_latent_eval.text.words import PADDING, SPECIAL_WORDS, START
from lm_latent_eval.values import (
    Each,
    Flag,
    Matching,
    OneOf,
    Rule,
    Rules,
    Share,
    Whole,
    check,
)

_OF_THE_LIBRARY: Rules = {
    "architectures": Each(Matching(r"\w+", "the name of a class")),
    "dtype": OneOf(*FLOATS),
    "model_type": Matching(r"\w+", "the name of a type of model"),
    "tie_word_embeddings": Flag(),
    "transformers_version": Matching(r"\S+", "the version of a library"),
}
"""Rules of the entries that transformers writes."""

_COMMIT = "_commit_hash"
"""Entry that transformers 5.4 writes, and later versions do not."""

_HUB_OPTIONS = ("cache_dir", "force_download", "local_files_only", "revision", "token")
"""Options of ``from_pretrained`` about the hub."""


def value(default: Any, rule: Rule) -> Any:
    """Declare a value of a configuration.

    Args:
        default: Default; a list is copied. None: ``__post_init__`` derives it.
        rule: Rule of allowed values.
    """
    about = {"rule": rule}
    if isinstance(default, list):
        return field(default_factory=default.copy, metadata=about)
    return field(default=default, metadata=about)


class CheckedConfig(PretrainedConfig):
    """A configuration whose values follow rules; a file must have every value.

    A subclass declares values by ``value``; entries of its own ``rules`` take
    precedence.
    """

    rules: ClassVar[Rules] = {}
    tie_word_embeddings: bool = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        # transformers makes it a dataclass.
        super().__init_subclass__(**kwargs)  # type: ignore[no-untyped-call]
        declared = {
            each.name: each.metadata["rule"]
            for each in fields(cls)
            if "rule" in each.metadata
        }
        cls.rules = {**cls.rules, **declared, **vars(cls).get("rules", {})}

    def __post_init__(self, **kwargs: Any) -> None:
        if getattr(self, "num_words", True) is None:
            self.num_words = self.vocab_size
        super().__post_init__(**kwargs)  # type: ignore[no-untyped-call]
        check(vars(self), self.rules)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Read a file, which must have every value.

        Raises:
            ValueError: If a value is missing, unknown, or against its rule.
        """
        rules = {n: r for n, r in _OF_THE_LIBRARY.items() if n in config_dict}
        check(config_dict, {**cls.rules, **rules})
        if unknown := sorted(config_dict.keys() - {*cls.rules, *rules, _COMMIT}):
            raise ValueError(f"{unknown[0]} is no value of such a model")
        return super().from_dict(config_dict, **kwargs)


class WordsConfig(CheckedConfig):
    """Sizes common to all models of words; a model adds its own by ``value``."""

    vocab_size: int = value(len(SPECIAL_WORDS), Whole(len(SPECIAL_WORDS)))
    """Number of words that the model can predict, with the reserved ones."""
    num_words: int = value(None, Whole("vocab_size"))
    """Size of the extended vocabulary, with words that the model can only copy; None:
    none."""
    num_unknown_types: int = value(0, Whole(0))
    """Number of distinct unknown words in the training text, for the unknown-penalised
    perplexity; 0: not counted."""


class TrainedConfig(WordsConfig):
    never_uttered: list[int] = value(
        [PADDING, START], Each(Whole(0, below="vocab_size"))
    )
    """Words excluded from prediction; original checkpoints exclude none."""
    dropout: float = value(0.0, Share())
    """Dropout in training."""


class Pretrained(LatentLM, PreTrainedModel):
    """A latent LM that is saved with a manifest and verified against it on loading.

    A subclass with a configuration registers with ``AutoConfig`` and ``AutoModel``
    under its ``model_type``.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)  # type: ignore[no-untyped-call]
        config = vars(cls).get("config_class")
        # An abstract class has the name that it annotates.
        if isinstance(config, type) and issubclass(config, PretrainedConfig):
            AutoConfig.register(config.model_type, config, exist_ok=True)
            AutoModel.register(config, cls, exist_ok=True)

    def save_pretrained(  # type: ignore[override]
        self, save_directory: str | Path, **kwargs: Any
    ) -> None:
        """Write configuration, weights, extras and the manifest.

        The manifest lists all files in the directory: with a vocabulary written before,
        the directory is a checkpoint.

        Raises:
            ValueError: If ``push_to_hub`` is asked for, as by the method of that name.
        """
        if kwargs.get("push_to_hub"):
            self.push_to_hub()
        super().save_pretrained(save_directory, **kwargs)
        for weights in Path(save_directory).glob("*.safetensors"):
            weights.chmod(new_mode(weights))  # safetensors makes its files private
        self.save_extras(Path(save_directory))
        manifest.write(Path(save_directory))

    def push_to_hub(  # type: ignore[override]
        self, *args: Any, **kwargs: Any
    ) -> str:
        """Refuse: a model without its vocabulary is no checkpoint.

        Raises:
            ValueError: Always.
        """
        raise ValueError(
            "a model alone lacks its vocabulary: `hf upload REPOSITORY DIR` sends the "
            "whole checkpoint"
        )

    @classmethod
    def from_pretrained(  # type: ignore[override]
        cls, path: str | Path, *args: Any, **kwargs: Any
    ) -> Self:
        """Load a directory or hub repository after verifying its manifest.

        Raises:
            ManifestError: If it contradicts the files.
        """
        hub = {name: kwargs.pop(name) for name in _HUB_OPTIONS if name in kwargs}
        directory = local(path, **hub) / kwargs.pop("subfolder", "")
        manifest.verify(directory)
        model: Self = super().from_pretrained(directory, *args, **kwargs)
        # transformers leaves weights where the file has them: gone when it is cut short
        # or written over. A copy lies as the weights of a new model do.
        model._apply(torch.clone)  # type: ignore[no-untyped-call]
        model.load_extras(directory)
        return model

    def save_extras(self, directory: Path) -> None:
        """Write the model's files besides weights; default: none.

        Args:
            directory: Folder of the checkpoint.
        """

    def load_extras(self, directory: Path) -> None:
        """Read the files of ``save_extras``.

        Raises:
            ValueError: If they are missing, damaged or of another model.
        """

    def check_extras(self) -> None:
        """Check in full what ``load_extras`` checks in part.

        Raises:
            ValueError: If it contradicts itself.
        """


class TrainedModel(Pretrained):
    """A network of words that is trained here."""

    config: TrainedConfig

    def _init_weights(self, module: nn.Module) -> None:
        initialise(module)

    @property
    def normalization(self) -> Normalization:
        excluded = {PADDING, START} <= {*self.config.never_uttered}
        return Normalization.ONE if excluded else Normalization.BELOW_ONE


def local(path: str | Path, **hub: Any) -> Path:
    if Path(path).is_dir():
        return Path(path)
    # Offline, some versions ask the hub for a commit that is stored here.
    hub.setdefault("local_files_only", is_offline_mode())
    return Path(snapshot_download(str(path), **hub))
