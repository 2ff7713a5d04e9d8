"""What parts of KGLM's look-ahead are worth: how far estimates fall without them.

    python benchmarks/look_ahead.py [--texts 10] [--seed 0]

Estimates are those of the default, K = 100 and 400, on texts of the demonstration as
they are, with two names of a text swapped and with names replaced. A row is a
look-ahead that lacks something: who the parents are expected to be; everything beyond
the next word. Its numbers are nats that an estimate is below the one with all of it,
K = 400, in the mean and at most.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from unittest import mock

import numpy as np
import torch
from estimators import altered

import lm_latent_eval
from lm_latent_eval.demo import CHECKPOINT
from lm_latent_eval.models.kglm.chain import Parents, backward
from lm_latent_eval.models.kglm.search import LookAhead
from lm_latent_eval.models.kglm.tables import Tables

Change = Callable[[np.ndarray, Tables], np.ndarray]
KINDS = "names swapped", "names replaced", "as they are"


def by_a_plain_chain(_: np.ndarray, tables: Tables) -> np.ndarray:
    """Expect that all candidates are derived alike, whoever was mentioned."""
    everybody = np.ones(len(tables.word))
    nobody = np.zeros((len(tables.word), tables.other))
    return backward(tables, Parents(nobody, everybody, everybody, False))


CHANGES: dict[str, Change] = {
    "all of it": lambda beta, _: beta,
    "a plain backward chain": by_a_plain_chain,
    "one step of look-ahead": lambda beta, _: np.zeros_like(beta),
}


def main() -> None:
    """Print a table a kind of text."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    model = lm_latent_eval.load(CHECKPOINT, device="cpu")
    plain = LookAhead._beta

    def estimates(texts: list[str], change: Change, num_samples: int) -> np.ndarray:
        def beta(self: LookAhead, tables: Tables, recent: np.ndarray) -> np.ndarray:
            return change(plain(self, tables, recent), tables)

        with mock.patch.object(LookAhead, "_beta", beta):
            found = model.log_likelihood(texts, num_samples=num_samples)
        return np.array([each.log_evidence for each in found])

    for kind in KINDS:
        texts = altered([kind], asked.texts, asked.seed)[kind]
        best = estimates(texts, CHANGES["all of it"], 400)
        print(f"\n| {kind}, {len(texts)} texts | K = 100 | K = 400 |\n|---|---|---|")
        for name, change in CHANGES.items():
            below = [best - estimates(texts, change, k) for k in (100, 400)]
            cells = (f"{each.mean():.4f}, at most {each.max():.4f}" for each in below)
            print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
