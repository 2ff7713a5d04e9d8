"""Recurrent cells that devices compute in one operation and the CPU does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def _lstm_cell(
    from_input: torch.Tensor,
    from_hidden: torch.Tensor,
    cell: torch.Tensor,
    *biases: torch.Tensor | None,
) -> tuple[torch.Tensor, ...]:
    gates = from_input + from_hidden
    for bias in biases:
        gates = gates if bias is None else gates + bias
    enter, forget, candidate, leave = gates.chunk(4, -1)
    cell = forget.sigmoid() * cell + enter.sigmoid() * candidate.tanh()
    return leave.sigmoid() * cell.tanh(), cell, gates


def _gru_cell(
    from_input: torch.Tensor,
    from_hidden: torch.Tensor,
    hidden: torch.Tensor,
    input_bias: torch.Tensor | None = None,
    hidden_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, ...]:
    ours = from_input if input_bias is None else from_input + input_bias
    theirs = from_hidden if hidden_bias is None else from_hidden + hidden_bias
    reset, keep, candidate = ours.chunk(3, -1)
    reset_too, keep_too, candidate_too = theirs.chunk(3, -1)
    new = (candidate + (reset + reset_too).sigmoid() * candidate_too).tanh()
    going_on = new + (keep + keep_too).sigmoid() * (hidden - new)
    return going_on, torch.cat([ours, theirs], -1)


def _lstm_cell_backward(
    of_hidden: torch.Tensor | None,
    of_cell: torch.Tensor | None,
    before: torch.Tensor,
    cell: torch.Tensor,
    gates: torch.Tensor,
    has_bias: bool,
) -> tuple[torch.Tensor | None, ...]:
    enter, forget, candidate, leave = gates.chunk(4, -1)
    enter, forget, leave = enter.sigmoid(), forget.sigmoid(), leave.sigmoid()
    candidate, out = candidate.tanh(), cell.tanh()
    hidden = torch.zeros_like(cell) if of_hidden is None else of_hidden
    of_cell = torch.zeros_like(cell) if of_cell is None else of_cell
    of_cell = of_cell + hidden * leave * (1 - out**2)
    found = torch.cat(
        [
            of_cell * candidate * enter * (1 - enter),
            of_cell * before * forget * (1 - forget),
            of_cell * enter * (1 - candidate**2),
            hidden * out * leave * (1 - leave),
        ],
        -1,
    )
    of_bias = found.sum(0) if has_bias else None
    return found, of_cell * forget, of_bias


CELLS: dict[str, Callable[..., Any]] = {
    "aten::_thnn_fused_gru_cell": _gru_cell,
    "aten::_thnn_fused_lstm_cell": _lstm_cell,
    "aten::_thnn_fused_lstm_cell_backward_impl": _lstm_cell_backward,
}
"""Operation -> what it does, on the CPU."""
