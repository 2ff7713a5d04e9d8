r"""A Hugging Face causal language model as a language, at any softmax temperature.

    p(x_t | x_<t) = softmax(logits_t / T)     x_0 = BEGIN, the last x_t = END

Every id of the vocabulary can be drawn, the begin of a sequence and the padding token
not excepted: what the model gives them is part of the distribution.

Source: LeBrun, Sordoni and O'Donnell (2022), section 3.1; T = 0.85 is theirs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from lm_latent_eval.devices import sent_uniforms, wide_zeros
from lm_latent_eval.distortion.languages.language import (
    LANGUAGE_FILE,
    Language,
    Sample,
    checked_sequences,
    load_tokenizer,
    sequence_key,
    step_uniforms,
    write_description,
)
from lm_latent_eval.inference.streams import invert_cdf
from lm_latent_eval.networks.causal import CausalReader, check_causal
from lm_latent_eval.networks.network import check_positions, load_causal
from lm_latent_eval.options import positive, whole
from lm_latent_eval.scoring.options import parse_device


@dataclass(frozen=True)
class CausalLanguage(Language):
    """The texts that a causal LM generates, drawn by inverting distribution functions.

    In float32, a sum whose rounding depends on the size of a batch can move a draw that
    lies on the edge between two tokens; a model in float64 draws the same everywhere.

    Attributes:
        model: A causal network of transformers.
        temperature: T.
        begin_id: Token before a sequence.
        end_id: Last token of a sequence; may be the same id.
        tokenizer: Saved beside what is drawn; None where there are no strings.
        name: Name for messages.
        batch_size: Sequences computed together, which moves no number.
    """

    model: Any
    temperature: float
    begin_id: int
    end_id: int
    tokenizer: Any = None
    name: str = "causal LM"
    batch_size: int = 64

    def __post_init__(self) -> None:
        positive("temperature", self.temperature)
        whole("batch_size", self.batch_size, 1)
        for name in ("begin_id", "end_id"):
            token = getattr(self, name)
            if not 0 <= token < self.vocab_size:
                raise ValueError(
                    f"{name}={token}: expected an id of 0 .. {self.vocab_size - 1}"
                )
        self.model.eval()

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        temperature: float = 1.0,
        begin_id: int | None = None,
        end_id: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
        batch_size: int = 64,
    ) -> Self:
        """Load a directory or a repository of the hub.

        Begin and end are those that configuration and tokenizer agree on, where they
        are not given; the device is a GPU if there is one.

        Raises:
            ValueError: If there is no such model, or it leaves open
                what begin and end are.
        """
        model: Any = load_causal(path, dtype)
        check_causal(model, str(path))
        tokenizer = load_tokenizer(path)
        begin_id = _special(begin_id, "bos_token_id", model, tokenizer)
        end_id = _special(end_id, "eos_token_id", model, tokenizer)
        return cls(
            model.to(parse_device(device)),
            temperature,
            begin_id,
            end_id,
            tokenizer,
            name=str(path),
            batch_size=batch_size,
        )

    @property
    def vocab_size(self) -> int:
        return int(self.model.config.vocab_size)

    @torch.inference_mode()
    def sample(self, seed: int, indices: Sequence[int], max_length: int) -> Sample:
        """Draw token by token, one random number each, with a key-value cache."""
        check_positions(self.model, self.name, whole("max_length", max_length, 1))
        keys = [sequence_key(seed, index) for index in indices]
        sequences: list[list[int]] = []
        log_p = []
        for start in range(0, len(keys), self.batch_size):
            uniforms = step_uniforms(keys[start : start + self.batch_size], max_length)
            ids, each = self._draw(sent_uniforms(uniforms, self.model.device))
            sequences += ids
            log_p.append(each)
        return Sample(sequences, torch.cat([torch.zeros(0).double(), *log_p]))

    def log_p(self, sequences: Sequence[Sequence[int]]) -> Tensor:
        checked = checked_sequences(sequences, self)
        check_positions(self.model, self.name, max(map(len, checked), default=0))
        pairs = [((self.begin_id,), ids) for ids in checked]
        scored = self._reader.score(pairs, self.batch_size)
        return torch.tensor([each.total for each in scored], dtype=torch.float64)

    def settings(self) -> dict[str, Any]:
        return {
            "kind": "causal",
            "digest": _digest(self.model),
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "temperature": self.temperature,
            "begin_id": self.begin_id,
            "end_id": self.end_id,
        }

    def save(self, directory: Path) -> None:
        where = {"kind": "causal", "path": self.name}
        write_description(where, directory / LANGUAGE_FILE)
        if self.tokenizer is not None:
            self.tokenizer.save_pretrained(directory)

    def _draw(self, uniforms: Tensor) -> tuple[list[list[int]], Tensor]:
        """Draw sequences from (n, max_length) random numbers."""
        num, max_length = uniforms.shape
        device = uniforms.device
        drawn = torch.full((num, max_length), self.end_id, device=device)
        log_p = wide_zeros((num,), device)
        going = torch.arange(num, device=device)
        reading = self._reader.begin(torch.full((num, 1), self.begin_id, device=device))
        for t in range(max_length):
            chosen = invert_cdf(reading.log_p.exp(), uniforms[going, t])
            drawn[going, t] = chosen
            log_p[going] += reading.log_p.gather(1, chosen[:, None])[:, 0]
            on = (chosen != self.end_id).nonzero()[:, 0]
            if not len(on) or t + 1 == max_length:
                break
            reading.read(chosen[on, None], on if len(on) < len(going) else None)
            going = going[on]
        sequences = [
            ids[: ids.index(self.end_id) + 1] if self.end_id in ids else ids
            for ids in drawn.tolist()
        ]
        return sequences, log_p.cpu().double()

    @cached_property
    def _reader(self) -> CausalReader:
        return CausalReader(self.model, self.name, self.temperature)


def _special(given: int | None, name: str, model: Any, tokenizer: Any) -> int:
    """Return the id of a special token, on which configuration and tokenizer agree."""
    if given is not None:
        return given
    sources = {"configuration": model.config, "tokenizer": tokenizer}
    ids = {where: getattr(source, name, None) for where, source in sources.items()}
    tokens = {where: token for where, token in ids.items() if isinstance(token, int)}
    if len(set(tokens.values())) != 1:
        raise ValueError(
            f"there is no one {name} (configuration: {ids['configuration']}, "
            f"tokenizer: {ids['tokenizer']}): say which"
        )
    return next(iter(tokens.values()))


def _digest(model: Any) -> str:
    """Return a digest of weights, the same on each device."""
    sha = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        weights = tensor.detach().cpu().flatten()
        sha.update(f"{name} {weights.dtype} {tuple(weights.shape)}\n".encode())
        sha.update(weights.contiguous().view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()[:16]
