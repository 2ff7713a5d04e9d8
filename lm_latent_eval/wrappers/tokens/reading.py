"""Reads token sequences that begin alike together, each beginning once.

All segmentations that are looked at are a trie. A layer of it is distinct sequences of
one length, which share one key-value cache. The next layer takes up rows of it, each
with one more token, so nothing is padded, nor read twice.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lm_latent_eval.devices import sent
from lm_latent_eval.wrappers.network import Network

PADDING = 0
TABLE = 1 << 26
"""Scores (sequences x tokens x vocabulary) held at a time."""


class TrieLayer:
    """R distinct token sequences of one length, and what follows each."""

    def __init__(self, network: Network, given: Sequence[Sequence[int]]) -> None:
        """Read R sequences of one length."""
        self._network = network
        self._ids = torch.tensor(given, device=network.device)
        self._past: Any = None
        self.logits = self._read(self._ids)

    def go_on(self, rows: Sequence[int], tokens: Sequence[int]) -> None:
        """Replace the sequences by some of them with one token more each.

        Args:
            rows: Which sequence each new one goes on from.
            tokens: The token after it.
        """
        index = sent(torch.tensor(rows), self._ids.device)
        added = sent(torch.tensor(tokens), self._ids.device)[:, None]
        self._ids = torch.cat([self._ids[index], added], -1)
        if self._past is None:
            self.logits = self._read(self._ids)
            return
        if [*rows] != [*range(len(self.logits))]:
            self._past.reorder_cache(index)
        self.logits = self._read(added)

    def log_p(self, rows: NDArray[np.int64], tokens: NDArray[np.int64]) -> Tensor:
        """Return log p of tokens after rows, nats, shape of both."""
        device = self.logits.device
        at = sent(torch.from_numpy(rows), device)
        logits = self.logits[at, sent(torch.from_numpy(tokens), device)]
        return (logits - self.normaliser[at]).cpu().double()

    def log_p_of_any(self, row: int, tokens: Tensor) -> float:
        """Return log p that one of some tokens follows a row, nats."""
        logits = self.logits[row, tokens.to(self.logits.device)]
        return float(logits.logsumexp(-1) - self.normaliser[row])

    @torch.inference_mode()
    def _read(self, ids: Tensor) -> Tensor:
        found = call(self._network, ids, past=self._past, last=True)
        self._past = getattr(found, "past_key_values", None)
        logits = floating(found.logits[:, -1])
        self.normaliser = logits.logsumexp(-1)
        check_finite(self._network, self.normaliser)
        return logits


def call(network: Network, ids: Tensor, *, past: Any = None, last: bool = False) -> Any:
    """Run the network.

    Args:
        network: The network.
        ids: Tokens, (R, T).
        past: Keys and values of the tokens before; None at the beginning.
        last: Whether the scores after the last token are all that is asked for; keys
            and values are kept then.
    """
    more: dict[str, Any] = {"use_cache": last}
    if past is not None:
        more["past_key_values"] = past
    forward = inspect.signature(network.model.forward).parameters
    if last and "logits_to_keep" in forward:
        more["logits_to_keep"] = 1
    with network.autocast():
        return network.model(ids, **more)


def check_finite(network: Network, log_p: Tensor) -> None:
    """Refuse scores that are no probabilities; some tokens may have none.

    Args:
        network: The network.
        log_p: What must be finite of them: logarithms of totals, say.

    Raises:
        ValueError: If any is not.
    """
    if not bool(log_p.isfinite().all()):
        raise ValueError(
            f"{network.name} gives scores that are no probabilities (NaN or infinite), "
            f"computing in {network.computed_in}: give dtype=float32, or check its "
            "weights"
        )


def floating(logits: Tensor) -> Tensor:
    """Return scores in a type that logarithms of sums can be taken in."""
    return logits if logits.dtype == torch.float64 else logits.float()
