"""LSTM layers that can stop after a piece of text and go on, and how they begin."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn


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
        after = []
        for layer, (h, c) in zip(self.layers, carry.layers, strict=True):
            value, h, c = _run(layer, self.dropout(value), length, h, c)
            after.append((h, c))
        return self.dropout(value), Carry(tuple(after))


def _run(
    layer: nn.Module, value: Tensor, length: Tensor, h: Tensor, c: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Run one layer over texts of different lengths, each to its own end.

    All go together to the end of the shortest, the rest to the end of the next, and so
    on. Packed sequences do the same token by token, and their gradients take a time
    that is quadratic in the length.

    Args:
        layer: An LSTM layer.
        value: (B, T, inner).
        length: Real places of each sequence, (B,).
        h: Hidden state, (B, outer).
        c: Cell state, (B, outer).

    Returns:
        Outputs (B, T, outer), zero past the end, and the states at the ends.
    """
    batch, num_tokens, _ = value.shape
    parts, start = [], 0
    for end in length[length > 0].unique().tolist():
        (going_on,) = (length >= end).nonzero(as_tuple=True)
        states = (h[going_on][None], c[going_on][None])
        part, (h_n, c_n) = layer(value[going_on, start:end], states)
        h, c = h.index_copy(0, going_on, h_n[0]), c.index_copy(0, going_on, c_n[0])
        none = value.new_zeros(batch, end - start, h.shape[1])
        parts.append(none.index_copy(0, going_on, part))
        start = end
    parts.append(value.new_zeros(batch, num_tokens - start, h.shape[1]))
    return torch.cat(parts, 1), h, c


def initialise(module: nn.Module) -> None:
    """Initialise an embedding, a linear layer, an LSTM or a norm of a new model."""
    if isinstance(module, nn.Embedding):
        nn.init.uniform_(module.weight, -0.1, 0.1)
    elif isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, nn.LSTM):
        for name, weight in module.named_parameters():
            if name.startswith("weight"):
                nn.init.xavier_uniform_(weight)
            else:
                nn.init.zeros_(weight)
    elif isinstance(module, nn.LayerNorm):
        nn.init.ones_(module.weight)
        nn.init.zeros_(module.bias)
