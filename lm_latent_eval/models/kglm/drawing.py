"""Draws of KGLM's walks from the listing that searches have, and log q of given ones.

Where all that a walk may do is listed, a text is drawn in one compiled loop. A node
that is not listed is drawn on the way, among all of these.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lm_latent_eval.compiled import Floats, Integers
from lm_latent_eval.models.kglm.choices import draw_walks, last_mention, log_q_walks
from lm_latent_eval.models.kglm.search import TextWalks


@dataclass
class DrawnWalks(TextWalks):
    """Walks over one text by its twist."""

    def draw(
        self, start: int, history: Tensor, u: Floats
    ) -> tuple[Integers, Floats, Floats]:
        """Draw the steps of some tokens.

        Args:
            start: The first token.
            history: Nodes of the tokens before, (K, cutoff).
            u: Random numbers, (T, K, 2): for the choice, and for a node where that
                stands for several.

        Returns:
            Mention types and nodes, (2, K, T), log q and log p, nats, (K,) each.
        """
        windows = self._windows(history)
        drawn = np.zeros((2, *u.shape[:2]), np.int64)
        sums, t, end = np.zeros((2, len(windows))), start, start + len(u)
        first = np.ascontiguousarray(u[..., 0])
        while t < end:
            (outlook,), tables = self.outlooks, self.tables
            t, of = draw_walks(
                tables, outlook, start, (t, end), windows, first, drawn, sums
            )
            mention, state = drawn[:, t - 1 - start]
            (several,) = (state == tables.other).nonzero()
            if len(several):
                numbers = u[t - 1 - start, several, 1]
                state[several], log_share = self.drawn(
                    t - 1, of, several, mention[several], numbers
                )
                word = self.tables.word[t - 1]
                sums[:, several] += log_share
                sums[1, several] += word[state[several]] - word[tables.other]
                windows[several, -1] = state[several]
        drawn[1] = self.tables.node[drawn[1]]
        return drawn.swapaxes(1, 2), sums[0], sums[1]

    def log_q(
        self, start: int, history: Tensor, mention: Tensor, node: Tensor
    ) -> Floats:
        """Return log q of given walks (K, T) after nodes (K, cutoff), nats, (K,).

        They must be the first that these tables are asked for: all their nodes are
        listed.
        """
        self.states(torch.cat([history, node], 1).flatten(), listed=True)
        given = torch.stack([mention, torch.from_numpy(self._windows(node))])
        (outlook,) = self.outlooks
        steps = np.ascontiguousarray(given.mT.numpy())
        windows = self._windows(history)
        return log_q_walks(self.tables, outlook, start, windows, steps)

    def log_twist(self, t: int, history: Tensor) -> Floats:
        """Guess log p of the text from t on after nodes (K, cutoff), nats, (K,)."""
        windows = self._windows(history)
        last = np.array([last_mention(window) for window in windows])
        return self.whole.log_twist(self.text, t, last, windows[:, -1] > 0)

    def _windows(self, nodes: Tensor) -> Integers:
        """Return states of nodes (K, W), which do not share memory with others."""
        return self.states(nodes.flatten()).reshape(nodes.shape)
