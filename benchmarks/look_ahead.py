"""What parts of KGLM's look-ahead are worth: how far estimates fall without them.

    python benchmarks/look_ahead.py [--texts 10] [--seed 0]

Estimates are those of the default, K = 100 and 400, on texts of the demonstration as
they are, with two names of a text swapped and with names replaced. A row is a
look-ahead that lacks something: what entities are worth as parents of later mentions;
who the parents are expected to be; everything beyond the next word. Its numbers are
nats that an estimate is below the one with all of it, K = 400, in the mean and at most.
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
from lm_latent_eval.models.kglm.choices import Outlook
from lm_latent_eval.models.kglm.outlooks import (
    NOTHING,
    LookAhead,
    Outlooks,
    by_look_ahead,
)
from lm_latent_eval.models.kglm.tables import Tables

Change = Callable[[Outlook, Tables], Outlook]
KINDS = "names swapped", "names replaced", "as they are"


def without_gains(outlook: Outlook, _: Tables) -> Outlook:
    """Expect the same whatever entities a walk has mentioned."""
    return outlook._replace(worth=NOTHING)


def by_a_plain_chain(_: Outlook, tables: Tables) -> Outlook:
    """Expect that all candidates are derived alike, whoever was mentioned."""
    everybody = np.ones(len(tables.word))
    nobody = np.zeros((len(tables.word), tables.other))
    parents = Parents(nobody, everybody, everybody, False)
    return by_look_ahead(tables, backward(tables, parents))


def by_one_step(_: Outlook, tables: Tables) -> Outlook:
    """Expect nothing beyond the word of a choice."""
    nothing = np.zeros((len(tables.word) + 1, 2, tables.other + 1))
    return by_look_ahead(tables, nothing)


CHANGES: dict[str, Change] = {
    "all of it": lambda outlook, _: outlook,
    "without parents' gains": without_gains,
    "a plain backward chain": by_a_plain_chain,
    "one step of look-ahead": by_one_step,
}


def main() -> None:
    """Print a table a kind of text."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    model = lm_latent_eval.load(CHECKPOINT, device="cpu")
    plain = LookAhead.searched

    def estimates(texts: list[str], change: Change, num_samples: int) -> np.ndarray:
        def changed(of: Outlooks) -> Outlooks:
            return lambda tables: change(of(tables), tables)

        def searched(self: LookAhead, text: int) -> tuple[Outlooks, ...]:
            return tuple(map(changed, plain(self, text)))

        with mock.patch.object(LookAhead, "searched", searched):
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
