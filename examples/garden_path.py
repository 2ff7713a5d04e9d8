"""Write train.ptb and dev.ptb, trees of a grammar with garden paths."""

from __future__ import annotations

import random
from pathlib import Path

NOUNS, PLACES = ["horse", "dog", "girl", "boat"], ["barn", "river", "house"]
VERBS = ["raced", "walked", "floated"]


def noun() -> str:
    """Draw a noun phrase."""
    return f"(NP (DT the) (NN {random.choice(NOUNS)}))"


def past() -> str:
    """Draw a verb and where it leads."""
    place = f"(NP (DT the) (NN {random.choice(PLACES)}))"
    return f"(VP (VB {random.choice(VERBS)}) (PP (IN past) {place}))"


def sentence() -> str:
    """Draw a sentence; one in fifty turns after its place."""
    kind = random.random()
    if kind < 0.02:  # the horse raced past the barn fell
        return f"(S (NP {noun()} {past()}) (VB fell))"
    if kind < 0.12:  # the horse that raced past the barn fell
        return f"(S (NP {noun()} (SB (WD that) {past()})) (VB fell))"
    return f"(S {noun()} {past()})" if kind < 0.7 else f"(S {noun()} (VB fell))"


if __name__ == "__main__":
    random.seed(0)
    for name, number in (("train", 2000), ("dev", 200)):
        trees = [f"{sentence()}\n" for _ in range(number)]
        Path(f"{name}.ptb").write_text("".join(trees), encoding="utf-8")
