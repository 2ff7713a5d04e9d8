"""Checkpoints: one directory with everything that a number depends on.

``config.json`` says which model it is, ``model.safetensors`` holds p and the proposals,
``tokenizer.json`` the vocabulary, ``spelling.safetensors`` and ``spacing.json``, if it
has them, how its texts are written; a model adds what else it needs (KGLM its
``graph.safetensors``). A directory loads completely or not at all.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
)
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from lm_latent_eval.durable import replacing
from lm_latent_eval.models import MODELS, model_class
from lm_latent_eval.text.orthography import Orthography
from lm_latent_eval.text.reading import Reader, UnknownWords, reader
from lm_latent_eval.text.words import WordTokenizer

CONFIG, WEIGHTS = "config.json", "model.safetensors"


class CheckpointError(ValueError):
    """A checkpoint that is missing, incomplete, damaged or of another model."""


@runtime_checkable
class ExtraFiles(Protocol):
    """A model that is more than weights: it keeps further files in its directory."""

    def save_extras(self, directory: Path) -> None:
        """Write them."""
        ...

    def load_extras(self, directory: Path) -> None:
        """Read them; a ``ValueError`` says what is wrong with them."""
        ...


@dataclass(frozen=True)
class Checkpoint:
    """A loaded model with its vocabulary."""

    name: str
    """Its name in ``MODELS``."""
    model: Any
    tokenizer: WordTokenizer
    directory: Path
    orthography: Orthography | None = None
    """Spelling and spacing; without them only words are scored, and not strings."""

    def reader(self, unk: UnknownWords | str | None = None) -> Reader:
        """Return what cuts strings into words and prices the unknown ones.

        Raises:
            ValueError: If the checkpoint lacks what the policy needs.
        """
        return reader(
            self.tokenizer,
            unk,
            num_unknown_types=self.model.config.num_unknown_types,
            orthography=self.orthography,
        )

    @cached_property
    def digest(self) -> str:
        """A short digest of every file that scores depend on."""
        sha = hashlib.sha256()
        for path in sorted(self.directory.glob("*")):
            if path.suffix in (".json", ".safetensors"):
                sha.update(path.name.encode() + b"\0")
                with path.open("rb") as file:
                    sha.update(hashlib.file_digest(file, "sha256").digest())
        return sha.hexdigest()[:16]


def load(
    path: str | Path,
    *,
    expected: str | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
) -> Checkpoint:
    """Load a checkpoint directory, ready to evaluate.

    Args:
        path: The directory.
        expected: The model's name in ``MODELS``, if only that one will do.
        dtype: Floating type to compute in; None is that of the file.
        device: Where the weights go.

    Raises:
        CheckpointError: If anything is missing, damaged, not a number, or the
            directory holds another model.
    """
    directory = _directory(path)
    name, config = _read_config(directory, expected)
    model = _build(name, config, directory)
    _load_weights(model, directory / WEIGHTS, dtype)
    try:
        tokenizer = WordTokenizer.load(directory, model.config.vocab_size)
        if isinstance(model, ExtraFiles):
            model.load_extras(directory)
        orthography = Orthography.load(directory)
    except ValueError as err:
        raise CheckpointError(str(err)) from err
    model = model.to(device).eval().requires_grad_(False)
    return Checkpoint(name, model, tokenizer, directory, orthography)


def load_tokenizer(path: str | Path) -> WordTokenizer:
    """Load the words of a checkpoint directory, and nothing else.

    Raises:
        CheckpointError: If there is no checkpoint, or its vocabulary is damaged.
    """
    directory = _directory(path)
    _, config = _read_config(directory, None)
    try:
        return WordTokenizer.load(directory, config["vocab_size"])
    except ValueError as err:
        raise CheckpointError(str(err)) from err


def save(
    model: Any,
    tokenizer: WordTokenizer,
    directory: Path,
    state: Mapping[str, Any],
    orthography: Orthography | None = None,
) -> None:
    """Write a checkpoint directory; what is there is replaced file by file.

    Args:
        model: The model, for its configuration and extras.
        tokenizer: The vocabulary.
        directory: Where; made if need be.
        state: Name -> tensor of the weights to write.
        orthography: How the model's texts are written, if that was learnt.
    """
    directory.mkdir(parents=True, exist_ok=True)
    # Weights last, under their name only when complete: a half-written directory
    # lacks them and says so.
    (directory / WEIGHTS).unlink(missing_ok=True)
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(directory)
    tokenizer.save(directory)
    if isinstance(model, ExtraFiles):
        model.save_extras(directory)
    if orthography is not None:
        orthography.save(directory)
    tensors = {name: t.detach().cpu().contiguous() for name, t in state.items()}
    with replacing(directory / WEIGHTS) as partial:
        save_file(tensors, partial, metadata={"format": "pt"})


def _directory(path: str | Path) -> Path:
    """Return a local directory, fetching it from the hub if it names a repository."""
    if Path(path).is_dir():
        return Path(path)
    try:
        return Path(snapshot_download(str(path)))
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError) as err:
        raise CheckpointError(
            f"pretrained={path}: no such directory, and not a repository that the hub "
            f"serves now ({type(err).__name__}); give a checkpoint directory (one that "
            "`lm-latent-eval train` wrote)"
        ) from err


def _read_config(directory: Path, expected: str | None) -> tuple[str, dict[str, Any]]:
    path = directory / CONFIG
    if not path.is_file():
        raise CheckpointError(f"{path} is missing: {directory} is not a checkpoint")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as err:
        raise CheckpointError(
            f"{path} is not JSON ({err}): written to the end?"
        ) from err
    types = {model_class(name).config_class.model_type: name for name in MODELS}
    found = config.get("model_type") if isinstance(config, dict) else None
    if found not in types:
        raise CheckpointError(
            f"{path} describes a model of type {found!r}; this package has "
            f"{', '.join(sorted(types))}"
        )
    if expected is not None and types[found] != expected:
        raise CheckpointError(
            f"{directory} holds a {types[found]} model, not a {expected} one: use "
            f"--model latent_{types[found]}"
        )
    return types[found], config


def _build(name: str, config: dict[str, Any], directory: Path) -> Any:
    model = model_class(name)
    try:
        return model(model.config_class.from_dict(config))
    except (TypeError, ValueError, RuntimeError) as err:
        raise CheckpointError(
            f"{directory / CONFIG} describes no model ({err}): copy or train it again"
        ) from err


def _load_weights(model: nn.Module, path: Path, dtype: torch.dtype | None) -> None:
    if not path.is_file():
        raise CheckpointError(
            f"{path} is missing: was training or copying interrupted before its end?"
        )
    try:
        weights = load_file(path)
    except (SafetensorError, OSError) as err:
        raise CheckpointError(
            f"{path} is damaged ({err}): copy or train it again"
        ) from err
    wanted = model.state_dict()
    if missing := sorted(wanted.keys() - weights.keys()):
        raise CheckpointError(f"{path} lacks the tensor {missing[0]!r}: incomplete")
    if unknown := sorted(weights.keys() - wanted.keys()):
        raise CheckpointError(
            f"{path} has a tensor {unknown[0]!r} that no such model has"
        )
    for name, tensor in weights.items():
        if tensor.shape != wanted[name].shape:
            raise CheckpointError(
                f"{path}: tensor {name!r} is {tuple(tensor.shape)} but {CONFIG} asks "
                f"for {tuple(wanted[name].shape)}: files of different checkpoints?"
            )
        if not bool(tensor.isfinite().all()):
            raise CheckpointError(
                f"{path}: tensor {name!r} holds NaN or infinity: the training diverged "
                "or the file is damaged"
            )
    floating = next(t.dtype for t in weights.values() if t.is_floating_point())
    model.to(dtype or floating)
    model.load_state_dict(weights)
