"""Twisted proposals: p's conditional of z_t, tilted by what the words ahead will cost.

What a hidden Markov model expects of the text after each choice (``chain.py``) is what
an ideal twisting function would be under p. Nothing is learned, and no gradient goes
through the twist.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from lm_latent_eval.devices import sent
from lm_latent_eval.inference.pruning import Floats
from lm_latent_eval.models.kglm.graph import NO_ENTITY
from lm_latent_eval.models.kglm.latents import NextStep
from lm_latent_eval.models.kglm.scores import Twist
from lm_latent_eval.models.kglm.search import LookAhead, clamped

FURTHEST = 20.0
"""Nats. A choice that will cost more than this over the best one is twisted as if it
cost just this, so q is never far below p's own conditional."""


def twisted(walk: NextStep, look_ahead: LookAhead) -> NextStep:
    """Twist p's walk by the expected log-probability of the words ahead.

    Args:
        walk: The distribution of p's next step, without a twist, over possible choices.
        look_ahead: What is expected of the texts.
    """
    after, at = [], []
    for tables, outlook in zip(look_ahead.tables, look_ahead.outlooks, strict=True):
        ahead = outlook.beta[1:].copy()
        ahead[:, 0] += tables.word[:, : tables.other + 1]
        ahead[:, 1] += tables.word[:, :1]
        ahead[:, 0, 0] = -np.inf  # it is no mention
        after.append(clamped(ahead, FURTHEST))
        at.append(clamped(outlook.beta[:-1], FURTHEST))
    nodes = look_ahead.candidates.node
    shape = *look_ahead.scores.batch.targets.shape, 2, nodes.shape[1] + 1
    return replace(
        walk,
        twist=_twist(_padded(after, shape), walk, nodes),
        expected=_twist(_padded(at, shape), walk, nodes),
    )


def _padded(values: Sequence[Floats], shape: tuple[int, ...]) -> Tensor:
    """Put values of texts (T, 2, S + 1) into a table (B, T, 2, S + 1).

    The last state of each, any other node, comes last.
    """
    table = np.zeros(shape)
    for row, value in zip(table, values, strict=True):
        row[: len(value), :, : value.shape[2] - 1] = value[..., :-1]
        row[: len(value), :, -1] = value[..., -1]
    return torch.from_numpy(table)


def _twist(value: Tensor, walk: NextStep, nodes: Tensor) -> Twist:
    """Build a twist, relative to no mention after none, of (B, T, 2, S + 1) nats."""
    value = sent(value - value[..., 1:, :1], walk.scores.mention.device)
    value = value.to(walk.scores.mention)[..., 1:].flatten(0, 1)
    mention, none = (_of_states(part, walk, nodes) for part in value.unbind(1))
    return replace(mention, none=none)


def _of_states(value: Tensor, walk: NextStep, nodes: Tensor) -> Twist:
    """Build a twist of the candidates' values and one value for all other nodes."""
    num_positions, num_nodes = len(value), walk.graph.num_nodes
    # Every position of a text lists the same nodes.
    node, column = (
        x.repeat_interleave(num_positions // len(x), 0)
        for x in nodes[:, 1:].sort(dim=1)
    )
    (listed,) = (node != NO_ENTITY).flatten().nonzero(as_tuple=True)
    position = torch.arange(num_positions)[:, None]
    end = node.new_tensor([num_positions * num_nodes])
    known = value.gather(1, sent(column, value.device)).flatten()
    return Twist(
        torch.cat([(position * num_nodes + node).flatten()[listed], end]),
        torch.cat([known[sent(listed, value.device)], value.new_zeros(1)]),
        value[:, -1],
        num_nodes,
        continues=True,
    )
