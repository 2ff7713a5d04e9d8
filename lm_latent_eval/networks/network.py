"""A pretrained network of transformers with its tokenizer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoTokenizer,
    GenerationConfig,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from lm_latent_eval.devices import check_width, moved
from lm_latent_eval.files import one_line
from lm_latent_eval.models import MODELS, checkpoint, name_of
from lm_latent_eval.networks.causal import CausalReader
from lm_latent_eval.text.files import digest

OF_FILES = {"_name_or_path", "architectures", "dtype", "transformers_version"}
"""Entries of a configuration about files, which move no number."""
CONFIGURED_LENGTHS = (
    "n_positions",
    "max_position_embeddings",
    "n_ctx",
    "max_sequence_length",  # LLaDA
    "model_length",  # MDLM
)

LEARNED_POSITIONS = ("wpe", "position_embeddings", "embed_positions")
"""How tables of positions are named: GPT-2's, BERT's and OPT's."""


@dataclass(frozen=True)
class Network:
    """A network with its tokenizer, which a wrapper scores strings with."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    name: str
    """Source: a directory or a repository."""
    digest: str
    """Digest of weights, configuration and tokenizer as they were loaded: a quantized
    or adapted network has another."""
    max_length: int
    """Tokens that it is to read at once."""
    positions: int
    """Tokens that it can read at once, ``max_length`` or more."""
    prefix_token: int | None = None
    """Token before the first one of a text; None: there is none."""
    adds_special: bool | None = None
    """Whether the tokenizer puts its special tokens around a text; None: as it was
    made to."""
    mixed_precision: torch.dtype | None = None
    """Type to compute in, where that is not the type of its weights."""

    @classmethod
    def of(
        cls,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        max_length: int | None = None,
        prefix_token: int | None = None,
        adds_special: bool | None = None,
        mixed_precision: torch.dtype | None = None,
    ) -> Network:
        """Take a loaded network.

        Args:
            model: The network, where it shall compute; it is set to evaluation.
            tokenizer: Its tokenizer.
            max_length: Tokens that it reads at once; None is what its configuration or
                its tokenizer says.
            prefix_token: What the first token of a text follows; None is the
                tokenizer's start token, else its end token.
            adds_special: Whether the tokenizer puts its special tokens around a text;
                None: as it was made to.
            mixed_precision: What to compute in where that is not the type of its
                weights.

        Raises:
            ValueError: If neither says how many tokens it reads, or it has not so many
                positions.
        """
        model.eval()
        if prefix_token is None:
            prefix_token = start_token(tokenizer)
        size = getattr(model.config.get_text_config(), "vocab_size", None)
        if size is not None and not 0 <= (prefix_token or 0) < size:
            raise ValueError(
                f"prefix_token_id={prefix_token}: the network has {size} tokens"
            )
        if max_length is None:
            max_length = configured_length(model, tokenizer)
        if (table := _table_of_positions(model)) and max_length > table:
            raise ValueError(
                f"max_length={max_length}: the network has positions for {table} tokens"
            )
        configured = positions_of(model) or max_length
        return cls(
            model,
            tokenizer,
            str(getattr(model, "name_or_path", "") or type(model).__name__),
            digest_of(model, tokenizer),
            max_length,
            max(max_length, configured),
            prefix_token,
            adds_special,
            mixed_precision,
        )

    @classmethod
    def open(
        cls,
        auto_class: Any,
        directory: Path,
        *,
        dtype: torch.dtype | None,
        device: torch.device,
    ) -> Network:
        """Load a directory without running code from it.

        Args:
            auto_class: Of transformers: ``AutoModelForCausalLM``, say.
            directory: Where it is.
            dtype: Floating type to compute in; None is that of the file.
            device: Where to compute.

        Raises:
            ValueError: If there is no such network or tokenizer, or the device has no
                such type.
        """
        check_width(dtype, device)
        kind = getattr(auto_class, "__name__", str(auto_class))
        refuse_latent(directory, "this", f"networks of transformers ({kind})")
        with _loading(directory, kind):
            config = AutoConfig.from_pretrained(directory, trust_remote_code=False)
        refuse_class(config, str(directory), auto_class)
        with _loading(directory, kind):
            model = auto_class.from_pretrained(
                directory, dtype=dtype or "auto", trust_remote_code=False
            )
            tokenizer = AutoTokenizer.from_pretrained(
                directory, trust_remote_code=False
            )
        return cls.of(moved(model, device), tokenizer)

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def computed_in(self) -> torch.dtype:
        """The type that it computes in."""
        return self.mixed_precision or self.model.dtype

    @property
    def text_ends(self) -> list[int]:
        """Tokens that end a text."""
        return text_ends(self.model.generation_config, self.tokenizer)

    def reader(self, *, temperature: float = 1.0, wide: bool = True) -> CausalReader:
        """Return how it is read if it is a causal language model.

        Args:
            temperature: Divides its scores.
            wide: Whether log-probabilities are float64 where its scores are not.
        """
        return CausalReader(
            self.model, self.name, temperature, wide, self.mixed_precision
        )

    @property
    def about(self) -> dict[str, Any]:
        """Description for results, as JSON."""
        return {
            "checkpoint_digest": self.digest,
            "model_num_parameters": self.model.num_parameters(),
            "model_dtype": str(self.model.dtype),
            "model_device": str(self.device),
        }


@contextmanager
def _loading(directory: Path, kind: str) -> Iterator[None]:
    """Turn errors of transformers about a directory into a line."""
    try:
        yield
    except (OSError, ValueError, StrictDataclassError) as err:
        raise ValueError(f"{directory}: no network for {kind} ({one_line(err)})") from (
            err
        )


def refuse_latent(path: str | Path, alias: str, expected: str) -> None:
    """Refuse a directory of a latent model, of which transformers knows nothing.

    Args:
        path: A directory, or a repository, of which nothing is known yet.
        alias: Backend that was to read it.
        expected: What that reads.

    Raises:
        ValueError: If it is one; the error says what reads it.
    """
    if (name := checkpoint.name_in(Path(path))) is not None:
        backend = f"latent_{name}" if name in MODELS else "latent"
        raise ValueError(
            f"{path} holds a {name} model, which {backend} reads: {alias} is around "
            f"{expected}"
        )


def is_latent(path: str | Path) -> bool:
    """Whether one of our models is there, rather than one of transformers' own."""
    try:
        config, _ = PretrainedConfig.get_config_dict(str(path))
    except OSError as err:
        raise ValueError(
            f"{path}: no such directory, and not a repository that the hub serves now"
        ) from err
    except RecursionError as err:
        raise ValueError(f"{path} holds no model: it is nested too deeply") from err
    except TypeError as err:  # of older transformers, where JSON is no object
        raise ValueError(f"{path} holds no model: it is no configuration") from err
    if "model_type" not in config:
        raise ValueError(f"{path} holds no model: its config.json is missing")
    return name_of(config.get("model_type")) is not None


def refuse_class(config: PretrainedConfig, name: str, auto_class: Any) -> None:
    """Refuse a network that a class of transformers does not load.

    Its own error lists every configuration that it knows.

    Args:
        config: Of the network.
        name: Of its directory or repository.
        auto_class: ``AutoModelForCausalLM``, say.

    Raises:
        ValueError: If it does not; the error names the backend that reads it.
    """
    kind, own = auto_class.__name__, getattr(config, "auto_map", None) or {}
    if kind in own or type(config) in auto_class._model_mapping:
        return
    masked = type(config) in AutoModelForMaskedLM._model_mapping
    reads = ", which latent_mdm reads" if masked else ""
    what = f"predicts masked tokens{reads}" if masked else f"is none for {kind}"
    raise ValueError(f"{name}: a network of type {config.model_type} {what}")


def load_causal(path: str | Path, dtype: torch.dtype | str = "auto") -> PreTrainedModel:
    """Load a causal language model without running code from its directory.

    Args:
        path: A directory, or a repository of the hub.
        dtype: Floating type to compute in; ``auto`` is that of the file.

    Raises:
        ValueError: If there is no such model.
    """
    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            path, dtype=dtype, trust_remote_code=False
        )
    except (OSError, StrictDataclassError) as err:
        raise ValueError(
            f"{path} is not a causal language model ({one_line(err)})"
        ) from err
    return model


def text_ends(
    generation: GenerationConfig | None, tokenizer: PreTrainedTokenizerBase
) -> list[int]:
    """Return the tokens that end a text by the network or the tokenizer."""
    own = getattr(generation, "eos_token_id", None)
    ids = own if isinstance(own, list) else [own]
    return sorted({int(i) for i in [*ids, tokenizer.eos_token_id] if i is not None})


def tokenizer_digest(tokenizer: PreTrainedTokenizerBase) -> str:
    hashed = hashlib.sha256()
    _add_tokenizer(hashed, tokenizer)
    return hashed.hexdigest()[:16]


def start_token(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """Return what the first token of a text follows: the start token, else the end."""
    for token in (tokenizer.bos_token_id, tokenizer.eos_token_id):
        if isinstance(token, int):
            return token
    return None


def positions_of(model: PreTrainedModel) -> int | None:
    """Return how many tokens a network reads at once; None if it does not say.

    That is what its configuration says, or a table of positions where that is less.
    """
    config = model.config.get_text_config()
    for name in CONFIGURED_LENGTHS:
        if isinstance(length := getattr(config, name, None), int):
            return min(length, _table_of_positions(model) or length)
    return None


def check_positions(model: PreTrainedModel, name: str, length: int) -> None:
    """Raise unless a network can read so many tokens at once.

    Raises:
        ValueError: If it has too few positions.
    """
    room = positions_of(model)
    if room is not None and length > room:
        raise ValueError(
            f"{name} has {room} positions, but sequences have up to {length} tokens"
        )


def _table_of_positions(model: PreTrainedModel) -> int | None:
    """Return how many positions a network has learned; None: it computes them.

    RoBERTa's first one follows that of padding, so its table of 514 has 512; OPT's and
    BART's has an offset.
    """
    config = model.config.get_text_config()
    lengths = {getattr(config, name, None) for name in CONFIGURED_LENGTHS}
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding) and name.endswith(LEARNED_POSITIONS):
            before = getattr(module, "offset", 0)
            if module.num_embeddings - before in lengths:  # else it is of images, say
                padding = -1 if module.padding_idx is None else module.padding_idx
                return module.num_embeddings - (before or padding + 1)
    return None


def configured_length(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> int:
    """Return how many tokens a network reads at once, as itself or its tokenizer says.

    Raises:
        ValueError: If neither does.
    """
    if length := positions_of(model):
        return length
    if tokenizer.model_max_length < 10**12:  # transformers says 10^30 for "unknown"
        return int(tokenizer.model_max_length)
    raise ValueError(
        f"neither the configuration ({', '.join(CONFIGURED_LENGTHS)}) nor the "
        "tokenizer (model_max_length) says how many tokens the network reads at once: "
        "give max_length"
    )


def digest_of(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> str:
    """Hash configuration, weights and tokenizer; about a second a gigabyte."""
    config = model.config.to_dict()
    kept = {key: value for key, value in config.items() if key not in OF_FILES}
    hashed = hashlib.sha256(json.dumps(kept, sort_keys=True, default=str).encode())
    for name, tensor in sorted(model.state_dict().items()):
        if not isinstance(tensor, Tensor) or tensor.is_meta or not tensor.numel():
            continue
        hashed.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        flat = tensor.detach().reshape(-1).contiguous().cpu()
        hashed.update(flat.view(torch.uint8).numpy().data)
    _add_tokenizer(hashed, tokenizer)
    return hashed.hexdigest()[:16]


def _add_tokenizer(hashed: Any, tokenizer: PreTrainedTokenizerBase) -> None:
    hashed.update(digest(json.dumps(tokenizer.get_vocab(), sort_keys=True)).encode())
    backend = getattr(tokenizer, "backend_tokenizer", None)
    hashed.update((backend.to_str() if backend else "").encode())
