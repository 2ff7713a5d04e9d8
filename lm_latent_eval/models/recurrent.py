"""A stack of LSTM layers that can stop after a piece of text and go on later."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


@dataclass(frozen=True)
class Carry:
    """The recurrent state of B texts, one (hidden, cell) pair a layer, (B, size)."""

    layers: tuple[tuple[Tensor, Tensor], ...]

    def select(self, index: Tensor) -> Carry:
        """Pick texts."""
        return Carry(tuple((h[index], c[index]) for h, c in self.layers))

    def resample(self, index: Tensor) -> Carry:
        """Return itself: all latents of a text share its recurrent state."""
        return self


class LSTMStack(nn.Module):
    """LSTM layers of possibly different sizes, batch first."""

    def __init__(self, sizes: list[int], dropout: float = 0.0) -> None:
        """Build ``len(sizes) - 1`` layers, from ``sizes[0]`` to ``sizes[-1]`` wide."""
        super().__init__()
        self.sizes = sizes[1:]
        self.layers = nn.ModuleList(
            nn.LSTM(inner, outer, batch_first=True) for inner, outer in pairwise(sizes)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, value: Tensor, length: Tensor, carry: Carry | None = None
    ) -> tuple[Tensor, Carry]:
        """Run over padded sequences.

        Args:
            value: (B, T, sizes[0]).
            length: Real places of each sequence, (B,).
            carry: Where each text stands; None is the beginning.

        Returns:
            The top layer's outputs (B, T, sizes[-1]), and where each text now stands.
        """
        if carry is None:
            zeros = [value.new_zeros(len(value), size) for size in self.sizes]
            carry = Carry(tuple((z, z) for z in zeros))
        if value.shape[1] == 0:
            return value.new_zeros(len(value), 0, self.sizes[-1]), carry
        # A text without any token here keeps its state; packing wants one place.
        lengths = length.clamp_min(1).cpu()
        after = []
        for layer, (h, c) in zip(self.layers, carry.layers, strict=True):
            packed = pack_padded_sequence(
                self.dropout(value), lengths, batch_first=True, enforce_sorted=False
            )
            packed, (h_n, c_n) = layer(
                packed, (h[None].contiguous(), c[None].contiguous())
            )
            value, _ = pad_packed_sequence(
                packed, batch_first=True, total_length=value.shape[1]
            )
            went_on = (length > 0)[:, None]
            after.append(
                (torch.where(went_on, h_n[0], h), torch.where(went_on, c_n[0], c))
            )
        return self.dropout(value), Carry(tuple(after))
