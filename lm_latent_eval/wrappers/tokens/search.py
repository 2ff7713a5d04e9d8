"""Batched search through the segmentations of many texts.

Wherever two segmentations begin alike, whether found or drawn, for one text or for
several options of one question, the network reads that beginning once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from lm_latent_eval.devices import sent
from lm_latent_eval.networks.causal import Reading
from lm_latent_eval.networks.network import Network
from lm_latent_eval.wrappers.tokens.proposals import PathProposal
from lm_latent_eval.wrappers.tokens.walk import SegmentationWalk, Stretch, WalkPlan


def search(
    network: Network,
    stretches: Sequence[Stretch],
    plan: WalkPlan,
    proposal: Callable[[Stretch], PathProposal],
    keys: Sequence[int],
) -> list[SegmentationWalk]:
    """Search for segmentations of texts, and draw some.

    Args:
        network: What gives tokens their probability.
        stretches: The texts; all are given equally many tokens, at least one.
        plan: How much to look at.
        proposal: What draws of a text follow.
        keys: Of each text's random numbers.

    Returns:
        What was found of each.
    """
    roots = {stretch.given: None for stretch in stretches}
    place = {given: row for row, given in enumerate(roots)}
    given = sent(torch.tensor([*roots]), network.device)
    reading = network.reader(wide=False).begin(given)
    walks = [
        SegmentationWalk(stretch, plan, proposal(stretch), key, place[stretch.given])
        for stretch, key in zip(stretches, keys, strict=True)
    ]
    while going := [walk for walk in walks if walk.spots]:
        asked = [[*walk.ask()] for walk in going]
        pairs = np.array([pair for some in asked for pair in some], int).reshape(-1, 2)
        there = sent(torch.from_numpy(pairs.T.copy()), reading.log_p.device)
        log_p = reading.log_p[there[0], there[1]].cpu().double().numpy()
        parts = np.split(log_p, np.cumsum([len(some) for some in asked])[:-1])
        rows: dict[tuple[int, int], int] = {}
        for walk, part in zip(going, parts, strict=True):
            walk.step(part, reading.log_p, rows)
        if rows:
            _go_on(reading, [*rows], network.device)
    return walks


def _go_on(
    reading: Reading, rows: Sequence[tuple[int, int]], device: torch.device
) -> None:
    """Read the tokens that follow some of the rows, (row, token) each."""
    before, tokens = sent(torch.tensor(rows).T.contiguous(), device)
    in_order = [row for row, _ in rows] == [*range(len(reading.log_p))]
    reading.read(tokens[:, None], None if in_order else before)
