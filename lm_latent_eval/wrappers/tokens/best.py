"""The most probable segmentations of a string, by a beam."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from lm_latent_eval.devices import fetched, sent
from lm_latent_eval.networks.causal import Tokens
from lm_latent_eval.networks.network import Network
from lm_latent_eval.wrappers.tokens.edges import Stretch

LEAST = -30.0
"""Smallest score of a canonical token in ranks, nats."""


class Beginning(NamedTuple):
    """Beginning of a segmentation, or all of one."""

    tokens: Tokens
    node: int
    log_p: float


@torch.inference_mode()
def best_segmentations(
    network: Network, stretch: Stretch, width: int
) -> tuple[list[Beginning], bool]:
    """Search token by token.

    Those of equally many tokens are ranked by log p so far and the canonical score of
    the bytes that are left, which every byte of a token has an equal share of.

    Returns:
        Whole segmentations, and whether any was dropped.
    """
    lattice = stretch.lattice
    borders = [lattice.start, *lattice.nodes(stretch.canonical)]
    written = [0.0, *np.cumsum(np.maximum(stretch.scores, LEAST))]
    reader = network.reader()
    reading = reader.begin(sent(torch.tensor([stretch.given]), reader.device))
    beam, ended = [Beginning((), lattice.start, 0.0)], list[Beginning]()
    pruned = lattice.longest > stretch.room
    while beam:
        (log_p,) = fetched(reading.log_p)
        longer = [
            (row, Beginning((*old.tokens, token), after, old.log_p + given))
            for row, old in enumerate(beam)
            for token, after in lattice.onward(old.node)
            if (given := log_p[row, token].item()) > -np.inf
        ]
        ended += [new for _, new in longer if lattice.ends(new.node)]
        rest = [pair for pair in longer if not lattice.ends(pair[1].node)]
        position = np.interp([new.node for _, new in rest], borders, written)
        rank = np.array([new.log_p for _, new in rest]) - position
        kept = np.argsort(-rank, kind="stable")[:width]
        pruned |= len(rest) > width
        beam = [rest[n][1] for n in kept]
        if beam and len(beam[0].tokens) >= stretch.room:
            break
        if beam:
            rows = sent(torch.tensor([rest[n][0] for n in kept]), reader.device)
            last = [[one.tokens[-1]] for one in beam]
            reading.read(sent(torch.tensor(last), reader.device), rows)
    return ended, pruned
