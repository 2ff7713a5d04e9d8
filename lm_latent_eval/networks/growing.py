"""Keys and values that grow in place, for readings of a token at a time on the host.

transformers copies all that was read at every token, and again to reorder rows. Here a
token copies its own keys and values, and a row that goes on where it was nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicLayer

MORE = 4
"""Room is left for so much more as a share of what was read: a quarter."""
LEAST = 64
"""Tokens that room is left for at least."""


class GrowingLayer(DynamicLayer):
    """Keys and values of one layer, with room for more tokens and rows."""

    def __init__(self, layer: DynamicLayer) -> None:
        """Take over what was read."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.dtype, self.device = layer.dtype, layer.device
        self.keys, self.values = layer.keys, layer.values
        self.is_initialized = True
        self._room: tuple[Tensor, ...] = ()
        self._shown: Tensor | None = None
        """What ``keys`` are while they lie in that room."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Add tokens, (R, heads, n, width) each; return all that there are."""
        length = self.get_seq_length()
        rows, more = key_states.shape[0], key_states.shape[-2]
        if not self._holds(rows, length + more):
            self._grow(rows, length + more)
        for table, states in zip(self._room, (key_states, value_states), strict=True):
            table[:rows, :, length : length + more] = states
        return self._show(rows, length + more)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Have rows (R',) stand where they are wanted; copy those that move."""
        rows, index = len(beam_idx), beam_idx.to(self.device)
        length = self.get_seq_length()
        if not self._holds(rows, length):
            super().reorder_cache(index)  # type: ignore[arg-type]
            return
        stays = index == torch.arange(rows, device=index.device)
        (moved,) = (~stays).nonzero(as_tuple=True)
        if len(moved):
            for table in self._room:
                there = table[:, :, :length]
                there[moved] = there[index[moved]]
        self._show(rows, length)

    def _holds(self, rows: int, length: int) -> bool:
        """Whether there is room, and all that was read lies in it."""
        if not self._room or self.keys is not self._shown:
            return False
        size = self._room[0].shape
        return bool(size[0] >= rows and size[2] >= length)

    def _show(self, rows: int, length: int) -> tuple[Tensor, Tensor]:
        """Take so many rows and tokens for what there is."""
        self.keys, self.values = (table[:rows, :, :length] for table in self._room)
        self._shown = self.keys
        return self.keys, self.values

    def _grow(self, rows: int, length: int) -> None:
        """Make room for more."""
        size = length + max(LEAST, length // MORE)
        room = []
        old: Tensor
        for old in (self.keys, self.values):  # type: ignore[assignment]
            shape = (rows + rows // MORE, old.shape[1], size, old.shape[3])
            table = old.new_empty(shape)
            table[:rows, :, : old.shape[2]] = old
            room.append(table)
        self._room = tuple(room)


def grow_in_place(cache: Any) -> None:
    """Have the layers of a cache on the host grow in place, those that can."""
    layers = getattr(cache, "layers", [])
    for place, layer in enumerate(layers):
        keys = layer.keys if type(layer) is DynamicLayer else None
        if keys is not None and keys.is_cpu and layer.get_seq_length():
            layers[place] = GrowingLayer(layer)
