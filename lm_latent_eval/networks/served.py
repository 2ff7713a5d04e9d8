"""A network that a server has loaded: its tokenizer is here, its weights are not."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import AutoTokenizer, GenerationConfig, PreTrainedTokenizerBase

from lm_latent_eval.messages import one_line
from lm_latent_eval.networks.completions import Honesty, Server
from lm_latent_eval.networks.network import text_ends, tokenizer_digest


@dataclass(frozen=True)
class ServedNetwork:
    """What a wrapper scores strings with, token ids in and log-probabilities out."""

    server: Server
    tokenizer: PreTrainedTokenizerBase
    name: str
    """What the tokenizer was loaded by: a directory or a repository."""
    digest: str
    """Of the tokenizer and of what the server calls the model: of its weights nothing
    is known."""
    max_length: int
    """Tokens that it is to read at once."""
    text_ends: list[int]
    """Tokens that end a text."""
    honesty: Honesty = field(default_factory=Honesty, compare=False)
    computed_in = "as served"
    device = torch.device("cpu")
    """Where tensors of this process are."""

    @classmethod
    def open(
        cls, base_url: str, name: str, *, timeout: float, max_length: int | None = None
    ) -> ServedNetwork:
        """Ask a server what it serves, and load the tokenizer.

        Args:
            base_url: Up to and with ``/v1``.
            name: Directory or repository of the model, for its tokenizer.
            timeout: Seconds that a request may take.
            max_length: Tokens that it is to read at once; None is what it says.

        Raises:
            ValueError: If there is no tokenizer, nobody answers, or nobody says how
                long a prompt may be.
        """
        try:
            tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
        except (OSError, ValueError) as err:
            raise ValueError(
                f"pretrained={name}: no tokenizer ({one_line(err)}). With base_url, "
                "give the directory or repository that the server has loaded"
            ) from err
        server = Server.find(base_url, name, timeout)
        length = max_length or server.max_length
        if length is None:
            raise ValueError(
                f"{server.url} does not say how long a prompt may be: give max_length"
            )
        found = hashlib.sha256(f"{server.model}\0{server.root}".encode())
        found.update(tokenizer_digest(tokenizer).encode())
        digest = found.hexdigest()[:16]
        ends = text_ends(_generation(name), tokenizer)
        return cls(server, tokenizer, name, digest, length, ends)

    @property
    def about(self) -> dict[str, Any]:
        """What results say of it, as JSON."""
        return {
            "checkpoint_digest": self.digest,
            "served_model": self.server.model,
            "base_url": self.server.url,
        }


def _generation(name: str) -> GenerationConfig | None:
    try:
        return GenerationConfig.from_pretrained(name, trust_remote_code=False)
    except OSError:
        return None
