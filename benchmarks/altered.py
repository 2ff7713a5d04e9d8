"""Texts that fit the demonstration's model badly: what each estimator finds, and costs.

``python benchmarks/altered.py`` alters demonstration texts (words shuffled, names
replaced, lower case, five texts joined) and prints, kind by kind, nats a text below the
best estimate (ten passes' worth of a wide discrete filter with another seed), intervals
that a strict beam refutes, and CPU seconds.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

import lm_latent_eval
from lm_latent_eval.demo import CHECKPOINT
from lm_latent_eval.demo.__main__ import main as write_demo

ESTIMATORS = (("auto", 100), ("beam", 100), ("beam", 1600), ("dpf", 100), ("dpf", 500))
REFERENCE = ("dpf", 5000)
STRICT = ("beam", 1600)

Alter = Callable[[str, random.Random], str]


def demonstration() -> list[str]:
    """Return the demonstration's texts."""
    with tempfile.TemporaryDirectory() as folder:
        write_demo(["--out", folder])
        lines = (Path(folder) / "test.jsonl").read_text().splitlines()
    return [json.loads(line)["text"] for line in lines]


def alterations(texts: list[str]) -> dict[str, Alter]:
    """Return what is done to a text, by name."""
    words = {word.strip(".,") for text in texts for word in text.split()[1:]}
    names = sorted(word for word in words if word[:1].isupper())

    def shuffled(text: str, dice: random.Random) -> str:
        return " ".join(dice.sample(text.split(), len(text.split())))

    def renamed(text: str, dice: random.Random) -> str:
        return " ".join(
            dice.choice(names) if word[:1].isupper() and dice.random() < 0.7 else word
            for word in text.split()
        )

    def joined(text: str, dice: random.Random) -> str:
        return " ".join([text, *dice.sample(texts, 4)])

    return {
        "as they are": lambda text, dice: text,
        "shuffled": shuffled,
        "names replaced": renamed,
        "lower case": lambda text, dice: text.lower(),
        "five joined": joined,
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    model, texts = lm_latent_eval.load(CHECKPOINT, device="cpu"), demonstration()
    model.log_likelihood(texts[:1], estimator="is", num_samples=1)
    print("| texts | estimator | nats below the best | refuted | N/A | CPU s |")
    print("|---|---|---|---|---|---|")
    for kind, alter in alterations(texts).items():
        dice = random.Random(asked.seed)
        some = [alter(text, dice) for text in dice.sample(texts, asked.texts)]

        def scored(method: tuple[str, int], seed: int = 0):
            name, number = method
            begin = time.process_time()
            found = model.log_likelihood(
                some,  # noqa: B023
                estimator=name,
                num_samples=number,
                seed=seed,
            )
            return found, time.process_time() - begin

        best, sure = scored(REFERENCE, seed=1)[0], scored(STRICT)[0]
        for method in ESTIMATORS:
            found, seconds = scored(method)
            below = [
                b.log_evidence - f.log_evidence
                for b, f in zip(best, found, strict=True)
            ]
            errors = [_error(each) for each in found]
            known = [
                (f, e, s) for f, e, s in zip(found, errors, sure, strict=True) if e
            ]
            refuted = sum(f.log_evidence + 3 * e < s.log_evidence for f, e, s in known)
            unknown = sum(e is None for e in errors)
            print(
                f"| {kind} | {method[0]}, {method[1]} | {sum(below) / len(below):.3f} "
                f"| {refuted} of {len(known)} | {unknown} | {seconds:.1f} |",
                flush=True,
            )


def _error(estimate: lm_latent_eval.Estimate) -> float | None:
    """Return a printed error, or the spread of passes; None: there is none."""
    if estimate.stderr is not None:
        return estimate.stderr
    drawn = estimate.draws_stderr
    return drawn if 0 < drawn < math.inf and estimate.estimator == "dpf" else None


if __name__ == "__main__":
    main()
