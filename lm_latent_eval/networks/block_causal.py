"""Networks whose attention is causal over blocks: within a block it goes both ways.

A block's tokens see each other and all blocks before theirs, so what was read of those
is kept, and read once for everything that begins with it.

Symbols: m -> ``block_length``; token t is in block t // m.
Source: Arriola et al. (2025), "Block diffusion" (BD3LM); SDAR, generate.py of
github.com/JetAstra/SDAR, whose masks these are.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from lm_latent_eval.networks.causal import autocast

KEPT = 64
"""Beginnings of texts whose keys and values are kept."""

Tokens = tuple[int, ...]


@dataclass
class BlockCausal:
    """Reads a decoder of transformers that takes an attention mask of four dimensions.

    Attributes:
        model: The network.
        block_length: m.
        mixed_precision: What it computes in where that is not the type of its weights.
        as_truth: Whether the mask says what is seen, as SDAR's code wants it; else it
            is added to attention's scores, as transformers has it.
        more: What else the network is called with.
    """

    model: PreTrainedModel
    block_length: int
    mixed_precision: torch.dtype | None = None
    as_truth: bool = False
    more: dict[str, Any] = field(default_factory=dict)
    _kept: OrderedDict[Tokens, tuple[Any, Tensor]] = field(
        default_factory=OrderedDict, repr=False
    )

    def __call__(self, tokens: Tensor) -> Tensor:
        """Return the scores of one block, before which there is nothing, (B, T, V)."""
        scores: Tensor = self._read(tokens, None).logits
        return scores

    def read_on(self, tokens: Tensor, first: int) -> Tensor:
        """Return the scores of the last block, and of the place before it.

        Args:
            tokens: (B, T), of which the last block begins at ``first``.
            first: Above 0.

        Returns:
            (B, 1 + T - first, V).
        """
        prefixes, which = torch.unique(tokens[:, :first], dim=0, return_inverse=True)
        found: list[Tensor] = []
        order = which.argsort(stable=True)
        for n, prefix in enumerate(prefixes.tolist()):
            block = tokens[which == n, first:]
            cache, last = self._prefix(tuple(prefix))
            own = copy.deepcopy(cache)
            own.reorder_cache(torch.zeros(len(block), dtype=torch.long))
            scores = self._read(block, own).logits
            found.append(torch.cat([last.expand(len(block), 1, -1), scores], 1))
        return torch.cat(found)[order.argsort()]

    def _prefix(self, tokens: Tokens) -> tuple[Any, Tensor]:
        """Return keys and values of whole blocks, and the last place's scores."""
        if tokens in self._kept:
            self._kept.move_to_end(tokens)
            return self._kept[tokens]
        begun = tokens[: -self.block_length]
        cache = copy.deepcopy(self._kept[begun][0]) if begun in self._kept else None
        rest = tokens[len(begun) :] if cache is not None else tokens
        out = self._read(torch.tensor([rest], device=self.model.device), cache)
        self._kept[tokens] = out.past_key_values, out.logits[0, -1]
        if len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return self._kept[tokens]

    def _read(self, tokens: Tensor, cache: Any) -> Any:
        """Read on after what a cache holds, which then holds these as well."""
        before = 0 if cache is None else cache.get_seq_length()
        place = torch.arange(before + tokens.shape[1], device=tokens.device)
        block = place // self.block_length
        if cache is None and tokens.shape[1] <= self.block_length:
            block = torch.zeros_like(block)
        sees = block[None] <= block[before:, None]
        mask = sees
        if not self.as_truth:
            dtype = self.mixed_precision or self.model.dtype
            mask = torch.zeros(sees.shape, dtype=dtype, device=sees.device)
            mask = mask.masked_fill(~sees, torch.finfo(dtype).min)
        with autocast(tokens.device, self.mixed_precision):
            return self.model(
                input_ids=tokens,
                attention_mask=mask.expand(len(tokens), 1, -1, -1),
                position_ids=place[before:].expand(len(tokens), -1),
                past_key_values=cache,
                use_cache=True,
                **self.more,
            )
