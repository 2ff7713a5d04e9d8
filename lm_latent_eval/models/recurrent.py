"""Recurrent layers with resumable state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn

from lm_latent_eval.devices import sent


@dataclass(frozen=True)
class Carry:
    """Recurrent state of B texts."""

    layers: tuple[tuple[Tensor, ...], ...]
    """Tensors of each layer, (B, size): (hidden, cell) of an LSTM, (hidden,) of an
    Elman layer."""

    def select(self, index: Tensor) -> Carry:
        index = sent(index, self.layers[0][0].device)
        return self.each(lambda state: state[index])

    def resample(self, index: Tensor) -> Carry:
        """The same state: all latents of a text share it."""
        return self

    def each(self, change: Callable[[Tensor], Tensor]) -> Carry:
        return Carry(tuple(tuple(map(change, layer)) for layer in self.layers))


class Elman(nn.Module):
    r"""Layer of Elman's network, batch first, called as ``nn.LSTM`` is.

    .. math:: h_t = \sigma(W x_t + U h_{t-1} + b)

    torch has it for the hyperbolic tangent alone.
    """

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.input = nn.Linear(inner, outer)
        self.recurrent = nn.Linear(outer, outer, bias=False)

    def forward(
        self, value: Tensor, states: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Run over (B, T, inner) from (h_0,), (1, B, outer)."""
        (h,) = states[0]
        outputs = []
        for driven in self.input(value).unbind(1):
            h = torch.sigmoid(driven + self.recurrent(h))
            outputs.append(h)
        return torch.stack(outputs, 1), (h[None],)


LSTM = partial(nn.LSTM, batch_first=True)


class RecurrentStack(nn.Module):
    """Recurrent layers of possibly different sizes, batch first."""

    def __init__(
        self,
        sizes: list[int],
        dropout: float = 0.0,
        cell: Callable[[int, int], nn.Module] = LSTM,
    ) -> None:
        """Build ``len(sizes) - 1`` layers, from ``sizes[0]`` to ``sizes[-1]`` wide."""
        super().__init__()
        self.sizes = sizes[1:]
        self.num_states = 2 if cell is LSTM else 1
        self.layers = nn.ModuleList(
            cell(inner, outer) for inner, outer in pairwise(sizes)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, value: Tensor, length: Tensor, carry: Carry | None = None
    ) -> tuple[Tensor, Carry]:
        """Run over padded sequences.

        Args:
            value: Inputs, (B, T, sizes[0]).
            length: Number of tokens of each sequence, (B,).
            carry: State before each text; None is the beginning.

        Returns:
            The top layer's outputs (B, T, sizes[-1]), and the state after each text.
        """
        if carry is None:
            zeros = [value.new_zeros(len(value), size) for size in self.sizes]
            carry = Carry(tuple((z,) * self.num_states for z in zeros))
        if value.shape[1] == 0:
            return value.new_zeros(len(value), 0, self.sizes[-1]), carry
        run = partial(_step, length=length)
        if value.shape[1] > 1:  # asks the device once, for all layers
            run = partial(_run, lengths=length.tolist())
        after = []
        for layer, states in zip(self.layers, carry.layers, strict=True):
            value, states = run(layer, self.dropout(value), states)
            after.append(states)
        return self.dropout(value), Carry(tuple(after))


def _step(
    layer: nn.Module, value: Tensor, states: tuple[Tensor, ...], length: Tensor
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Run one layer over one token without synchronizing with the device."""
    inside = (length > 0)[:, None]
    part, after = layer(value, tuple(state[None] for state in states))
    states = tuple(
        torch.where(inside, new[0], state)
        for state, new in zip(states, after, strict=True)
    )
    return part.masked_fill(~inside[..., None], 0.0), states


def _run(
    layer: nn.Module, value: Tensor, states: tuple[Tensor, ...], lengths: list[int]
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Run one layer over texts of different lengths, each to its own end.

    All run together to the end of the shortest, the rest to the end of the next, and so
    on. Gradients of packed sequences take a time quadratic in the length.

    Returns:
        Outputs (B, T, outer), zero past the end, and the states at the ends.
    """
    batch, num_tokens, _ = value.shape
    parts, start = [], 0
    for end in sorted({n for n in lengths if n > 0}):
        rows = [b for b, n in enumerate(lengths) if n >= end]
        active = sent(torch.tensor(rows), value.device)
        before = tuple(state[active][None] for state in states)
        part, after = layer(value[active, start:end], before)
        states = tuple(
            state.index_copy(0, active, new[0])
            for state, new in zip(states, after, strict=True)
        )
        none = value.new_zeros(batch, end - start, part.shape[-1])
        parts.append(none.index_copy(0, active, part))
        start = end
    parts.append(value.new_zeros(batch, num_tokens - start, states[0].shape[1]))
    return torch.cat(parts, 1), states


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
