"""Checkpoints: directories of configuration, weights, tokenizer and manifest.

``config.json`` names the model, ``model.safetensors`` holds p and the proposals,
``tokenizer.json`` the vocabulary, ``spelling.safetensors`` and ``spacing.json``, if
present, the orthography; a model may add files (KGLM its ``graph.safetensors``).
``manifest.json`` lists them all. A directory that is incomplete or changed does not
load.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
)
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
)

from lm_latent_eval import manifest
from lm_latent_eval.devices import FLOATS, check_width, moved, shared_type
from lm_latent_eval.files import one_line, replacing
from lm_latent_eval.models import MODELS, known_types, model_class, name_of
from lm_latent_eval.models.pretrained import Pretrained, local
from lm_latent_eval.text.encoder import Encoder, reader
from lm_latent_eval.text.files import read_json
from lm_latent_eval.text.orthography import Orthography
from lm_latent_eval.text.unknown_words import UnknownWords
from lm_latent_eval.text.words import WordTokenizer

CONFIG, WEIGHTS = "config.json", "model.safetensors"


class CheckpointError(ValueError):
    """Error raised for a missing, incomplete, damaged or mismatched checkpoint."""


@dataclass(frozen=True)
class Checkpoint:
    """A loaded model with its vocabulary."""

    name: str
    """Name of the model, as ``model_class`` takes it."""
    model: Any
    words: WordTokenizer | None
    """Vocabulary; None if the model has an encoder of its own."""
    directory: Path
    orthography: Orthography | None = None
    """Spelling and spacing; without them only words are scored, not strings."""
    digest: str = ""
    """Short digest of every file that scores depend on."""

    @property
    def tokenizer(self) -> WordTokenizer:
        """Vocabulary of the model.

        Raises:
            ValueError: If its units are not words.
        """
        if self.words is None:
            raise ValueError(f"{self.directory}: a {self.name} model has no words")
        return self.words

    def encoder(self, unk: UnknownWords | str | None = None) -> Encoder:
        """Build the encoder of strings, which prices unknown words.

        Raises:
            ValueError: If the checkpoint lacks what the policy needs.
        """
        own: Encoder | None = self.model.load_encoder(self.directory)
        if own is not None:
            if unk not in (None, str(own.policy)):
                raise ValueError(
                    f"unk={unk}: a {self.name} model is one of {own.units}, which have "
                    "no unknown words; leave it out"
                )
            return own
        return reader(
            self.tokenizer,
            unk,
            num_unknown_types=self.model.config.num_unknown_types,
            orthography=self.orthography,
        )


def load_checkpoint(
    path: str | Path,
    *,
    expected: str | None = None,
    revision: str | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
) -> Checkpoint:
    """Load a checkpoint directory, ready to evaluate.

    Args:
        path: The directory, or a repository of the hub.
        expected: Required name of the model, or ``package.module:Class``; None accepts
            any.
        revision: Commit, tag or branch of the repository.
        dtype: Floating type to compute in; None is that of the file, or the widest of
            the device.
        device: Device of the weights.

    Raises:
        CheckpointError: If anything is missing, damaged, not finite or contradicts the
            manifest, or the directory holds another model.
        ValueError: If the type is not supported, or not by the device.
    """
    if dtype is not None and dtype not in FLOATS.values():
        raise ValueError(f"dtype={dtype}: expected one of {', '.join(FLOATS)}")
    check_width(dtype, device)
    directory = directory_of(path, revision)
    digest = _verify(directory, expected)
    loaded = _load(directory, expected=expected, dtype=dtype, device=device)
    return replace(loaded, digest=digest)


def rewrite_manifest(path: str | Path) -> Checkpoint:
    """Write a new manifest for a checkpoint directory that was changed by hand.

    All files are loaded and checked in full first.

    Args:
        path: The directory.

    Returns:
        The checkpoint.

    Raises:
        CheckpointError: If it does not load.
    """
    directory = Path(path)
    loaded = _load(directory)
    try:
        loaded.model.check_extras()
    except ValueError as err:
        raise CheckpointError(f"{directory}: {err}") from err
    return replace(loaded, digest=manifest.write(directory))


def _load(
    directory: Path,
    *,
    expected: str | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
) -> Checkpoint:
    name, config = _read_config(directory, expected)
    model = _build(name, config, directory)
    weights = _read_weights(directory / WEIGHTS)
    for tensor, expected_shape, shape in misfits(model.state_dict(), weights):
        raise CheckpointError(
            f"{directory / WEIGHTS} has {shape} as {tensor}, {CONFIG} asks for "
            f"{expected_shape}: files of different checkpoints?"
        )
    own = {name: weight.to(dtype, copy=True) for name, weight in weights.items()}
    model.load_state_dict(own, assign=True)
    try:
        words = None
        if model.load_encoder(directory) is None:
            words = WordTokenizer.load(directory, model.config.vocab_size)
            if words.num_words < model.config.num_words:
                raise ValueError(
                    f"{directory / CONFIG}: num_words is {model.config.num_words}, but "
                    f"{words.num_words} words are in the vocabulary"
                )
        model.load_extras(directory)
        orthography = Orthography.load(directory)
    except ValueError as err:
        raise CheckpointError(str(err)) from err
    model = moved(model, device).eval().requires_grad_(False)
    return Checkpoint(name, model, words, directory, orthography)


def load_tokenizer(path: str | Path) -> WordTokenizer:
    """Load the tokenizer of a checkpoint directory, without the model.

    Raises:
        CheckpointError: If there is no checkpoint, or its vocabulary is damaged.
    """
    directory = directory_of(path)
    _verify(directory)
    _, config = _read_config(directory, None)
    try:
        return WordTokenizer.load(directory, config["vocab_size"])
    except ValueError as err:
        raise CheckpointError(str(err)) from err


def save(
    model: Pretrained,
    tokenizer: WordTokenizer | None,
    directory: Path,
    state: Mapping[str, Any],
    orthography: Orthography | None = None,
) -> None:
    """Write a checkpoint directory, replacing its files one by one.

    Args:
        model: The model, for its configuration and extras.
        tokenizer: The vocabulary; None if the model has an encoder of its own.
        directory: Folder, created if missing.
        state: Name -> tensor of the weights to write.
        orthography: Orthography of the model's texts, if learnt.
    """
    directory.mkdir(parents=True, exist_ok=True)
    # Weights last, under their name only when complete, and then the manifest: a
    # half-written directory lacks both and says so.
    for name in (manifest.FILE_NAME, WEIGHTS):
        (directory / name).unlink(missing_ok=True)
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(directory)
    if tokenizer is not None:
        tokenizer.save(directory)
    model.save_extras(directory)
    if orthography is None:
        Orthography.remove(directory)
    else:
        orthography.save(directory)
    tensors = {name: t.detach().cpu().contiguous() for name, t in state.items()}
    with replacing(directory / WEIGHTS) as partial:
        save_file(tensors, partial, metadata={"format": "pt"})
    manifest.write(directory)


def directory_of(path: str | Path, revision: str | None = None) -> Path:
    """Local directory of a path, fetched from the hub if it names a repository.

    Raises:
        CheckpointError: If there is neither, or a directory is given a revision.
    """
    if revision is not None and Path(path).is_dir():
        raise CheckpointError(
            f"revision={revision}: {path} is a directory, and only repositories of the "
            "hub have revisions"
        )
    try:
        return local(path, revision=revision)
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError) as err:
        raise CheckpointError(
            f"pretrained={path}: no such directory, and not a repository that the hub "
            f"serves now ({type(err).__name__}); give a checkpoint directory (one that "
            "`lm-latent-eval train` wrote)"
        ) from err


def _verify(directory: Path, expected: str | None = None) -> str:
    described = (directory / CONFIG).is_file()
    if not described or not (directory / manifest.FILE_NAME).exists():
        _read_config(directory, expected)  # is it a model of ours at all?
    try:
        return manifest.verify(directory)
    except ValueError as err:
        raise CheckpointError(str(err)) from err


def _read_config(directory: Path, expected: str | None) -> tuple[str, dict[str, Any]]:
    path = directory / CONFIG
    if not path.is_file():
        raise CheckpointError(f"{path} is missing: {directory} is not a checkpoint")
    try:
        config = read_json(path)
    except ValueError as err:
        raise CheckpointError(
            f"{path} is not JSON ({one_line(err)}): written to the end?"
        ) from err
    kind = config.get("model_type") if isinstance(config, dict) else None
    if expected is not None and ":" in expected:  # that class, whether declared or not
        if kind != _class(expected, directory).config_class.model_type:
            raise CheckpointError(f"{path} is of a {kind!r} model, not of {expected}")
        return expected, config
    name = name_of(kind)
    if name is None:
        raise CheckpointError(
            f"{path} describes a model of type {kind!r}; this package and the "
            f"installed ones have {', '.join(known_types())}{_readers(config)}"
        )
    if expected is not None and name != expected:
        raise CheckpointError(
            f"{directory} holds a {name} model, not a {expected} one: use "
            f"--model {f'latent_{name}' if name in MODELS else 'latent'}"
        )
    return name, config


def _readers(config: Any) -> str:
    """Backends for a directory that holds a network of transformers, as a message."""
    model_type = config.get("model_type") if isinstance(config, dict) else None
    if not isinstance(model_type, str):
        return ""
    if model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES and not any(
        name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
        for name in config.get("architectures") or ()
    ):
        return ". It is a network of transformers that fills masks: use latent_mdm"
    if model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        return (
            ". It is a causal LM of transformers: use latent_tokens (sums over "
            "tokenizations) or latent_cot (over thoughts)"
        )
    return ""


def name_in(directory: Path) -> str | None:
    """Model name in a directory's configuration, if there is one."""
    with suppress(CheckpointError):
        return _read_config(directory, None)[0]
    return None


def _class(name: str, directory: Path) -> Any:
    cls = model_class(name)
    if isinstance(cls, type) and issubclass(cls, Pretrained):
        return cls
    raise CheckpointError(
        f"{directory} is for {name}, which scores strings its own way: use `lm_eval "
        "--model latent`, `lm-latent-eval estimate` or lm_latent_eval.load"
    )


def _build(name: str, config: dict[str, Any], directory: Path) -> Any:
    """Build a model on the meta device, which takes no memory at any size."""
    model = _class(name, directory)
    try:
        with torch.device("meta"):
            return model(model.config_class.from_dict(config))
    except (TypeError, ValueError, RuntimeError) as err:
        [what, *_] = str(err).splitlines()
        raise CheckpointError(
            f"{directory / CONFIG} describes no model ({what}): copy or train it again"
        ) from err


def _read_weights(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise CheckpointError(
            f"{path} is missing: was training or copying interrupted before its end?"
        )
    try:
        weights = load_file(path)
    except (SafetensorError, OSError) as err:
        raise CheckpointError(
            f"{path} is damaged ({one_line(err)}): copy or train it again"
        ) from err
    try:
        shared_type(weights)
    except ValueError as err:
        raise CheckpointError(f"{path}: {err}; convert or train it again") from err
    if wrong := not_finite(weights):
        raise CheckpointError(f"{path}: {wrong}")
    return weights


def not_finite(weights: Mapping[str, Tensor]) -> str | None:
    """First tensor that holds NaN or infinity, as a message; None if all are finite."""
    for name, tensor in weights.items():
        if not bool(tensor.isfinite().all()):
            return (
                f"tensor {name!r} holds NaN or infinity: the training diverged or the "
                "file is damaged"
            )
    return None


def misfits(
    expected: Mapping[str, Tensor], actual: Mapping[str, Tensor]
) -> Iterator[tuple[str, str, str]]:
    """Tensors that differ from a model's: name, required shape, actual shape.

    Example:
        >>> wanted = {"a": torch.zeros(2), "b": torch.zeros(2), "c": torch.zeros(2)}
        >>> found = {"a": torch.zeros(2), "b": torch.zeros(2).int()}
        >>> list(misfits(wanted, found))
        [('b', '(2,)', '(2,) of torch.int32'), ('c', '(2,)', 'nothing')]
    """
    for name in sorted(expected.keys() | actual.keys()):
        kinds = _kind(expected.get(name)), _kind(actual.get(name))
        if kinds[0] != kinds[1]:
            yield name, *kinds


def _kind(tensor: Tensor | None) -> str:
    if tensor is None:
        return "nothing"
    of = "" if tensor.is_floating_point() else f" of {tensor.dtype}"
    return f"{tuple(tensor.shape)}{of}"
