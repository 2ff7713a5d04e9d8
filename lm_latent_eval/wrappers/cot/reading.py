"""A causal network that reads piece by piece and keeps its keys and values."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self, cast

import torch
from torch import Tensor
from transformers import Cache, PreTrainedModel

from lm_latent_eval.devices import widened
from lm_latent_eval.wrappers.network import Network

AT_ONCE = 1 << 25
"""Log-probabilities held in memory, a quarter of a gigabyte of float64; moves no
number."""


@dataclass
class CachedReading:
    """What a network has read, R rows of equal length; reading on changes it.

    No row is padded on its left or in its middle, so no architecture has to know of
    masks or of places.
    """

    network: Network
    temperature: float
    """Divides the network's scores: another network, then."""
    log_p: Tensor
    """Of the next token, nats, shape ``(R, V)``, float64."""
    cache: Cache

    @classmethod
    def of(cls, network: Network, prompts: Tensor, temperature: float) -> Self:
        """Read prompts.

        Args:
            network: A causal one.
            prompts: Token ids, shape ``(R, P)``, P at least 1.
            temperature: Divides its scores.
        """
        more = {"logits_to_keep": 1} if _keeps_last(network.model) else {}
        with network.autocast():
            out = network.model(input_ids=prompts, use_cache=True, **more)
        log_p = _log_p(out.logits[:, -1], temperature)
        return cls(network, temperature, log_p, out.past_key_values)

    def rows(self, index: Tensor) -> CachedReading:
        """Return a reading of some of the rows, each as often as it is named."""
        cache = copy.deepcopy(self.cache)
        cache.reorder_cache(cast(torch.LongTensor, index))
        return CachedReading(self.network, self.temperature, self.log_p[index], cache)

    def keep(self, index: Tensor) -> None:
        """Drop all rows but these."""
        self.cache.reorder_cache(cast(torch.LongTensor, index))
        self.log_p = self.log_p[index]

    def read(self, tokens: Tensor) -> Tensor:
        """Read on, and return log p of what follows each token.

        Args:
            tokens: Ids, shape ``(R, n)``.

        Returns:
            Nats, shape ``(R, n, V)``, float64.
        """
        with self.network.autocast():
            out = self.network.model(
                input_ids=tokens, past_key_values=self.cache, use_cache=True
            )
        log_p = _log_p(out.logits, self.temperature)
        self.cache, self.log_p = out.past_key_values, log_p[:, -1]
        return log_p

    def along(self, tokens: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Read on in pieces that memory holds.

        Args:
            tokens: Ids, shape ``(R, n)``.

        Yields:
            A place, from 0 to n, and log p of the tokens at that place and at some
            after it, nats, shape ``(R, places, V)``.
        """
        yield 0, self.log_p[:, None]
        piece = max(AT_ONCE // self.log_p.numel(), 1)
        for start in range(0, tokens.shape[1], piece):
            yield start + 1, self.read(tokens[:, start : start + piece])


@torch.inference_mode()
def check_cache(model: PreTrainedModel) -> None:
    """Refuse a network that keeps nothing of what it has read.

    Raises:
        ValueError: If it keeps no keys and values.
    """
    one = torch.tensor([[0]], device=model.device)
    out = model(input_ids=one, use_cache=True)
    if not isinstance(getattr(out, "past_key_values", None), Cache):
        raise ValueError(
            f"{type(model).__name__} keeps no keys and values of what it has "
            "read (no past_key_values), which its thoughts share"
        )


def _keeps_last(model: PreTrainedModel) -> bool:
    """Whether the network can be asked for the scores at the last place alone."""
    return "logits_to_keep" in inspect.signature(model.forward).parameters


def _log_p(logits: Tensor, temperature: float) -> Tensor:
    return (widened(logits) / temperature).log_softmax(-1)
