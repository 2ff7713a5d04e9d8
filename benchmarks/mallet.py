"""MALLET's left-to-right estimates, of the program of those who published them.

    git clone https://github.com/mimno/Mallet
    mkdir -p classes/com/google/errorprone/annotations
    echo 'package com.google.errorprone.annotations; public @interface Var {}' \
        > classes/com/google/errorprone/annotations/Var.java
    javac -encoding UTF-8 -cp 'Mallet/lib/*' -sourcepath Mallet/src/main/java:classes \
        -d classes benchmarks/LeftToRight.java
    python benchmarks/mallet.py --classpath 'classes:Mallet/lib/*' \
        --output tests/reference/mallet.json

writes the numbers that a test holds ours against (the annotation is the one that MALLET
takes from a package of its build). ``benchmarks/topic_models.py --mallet
'classes:Mallet/lib/*'`` adds MALLET to its table.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

TOPICS, WORDS, BETA, TOKENS = 5, 30, 0.5, 400
LENGTHS = (3, 8, 15, 25)
RUNS = {1: 20_000, 10: 4_000}
"""Particles -> runs."""


@dataclass(frozen=True)
class Topics:
    """Topics as MALLET has them: p(w | k) = (n_wk + beta) / (n_k + beta V)."""

    counts: NDArray[np.int64]
    """n, how often each topic uttered each word, (V, N)."""
    alpha: NDArray[np.float64]
    """(N,)."""
    beta: float

    @property
    def phi(self) -> NDArray[np.float64]:
        """P(word | topic), (N, V)."""
        weights = (self.counts + self.beta).T
        share: NDArray[np.float64] = weights / weights.sum(1, keepdims=True)
        return share


def left_to_right(
    classpath: str,
    topics: Topics,
    documents: Sequence[Sequence[int]],
    *,
    particles: int,
    runs: int,
) -> NDArray[np.float64]:
    """Run MALLET.

    Args:
        classpath: Of its classes and ``LeftToRight``.
        topics: The topic model.
        documents: D of them, numbers of words.
        particles: Of an estimate.
        runs: R, each with a seed of its own.

    Returns:
        log p-hat, nats, (R, D).
    """
    lines = [[*topics.counts.shape[::-1], topics.beta], topics.alpha]
    content = [*lines, *topics.counts, *documents]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "case.txt")
        path.write_text("\n".join(" ".join(map(str, line)) for line in content))
        command = ["java", "-cp", classpath, "LeftToRight", path, particles, runs]
        done = subprocess.run(
            [*map(str, command)], check=True, stdout=subprocess.PIPE, text=True
        )
    return np.array([line.split() for line in done.stdout.splitlines()], float)


def main() -> None:
    """Draw a small case and keep what MALLET says of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--classpath", required=True)
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    draw = np.random.default_rng(0)
    phi = draw.dirichlet(np.full(WORDS, 0.2), TOPICS)
    sizes = TOKENS * np.arange(1, TOPICS + 1)  # topics of different sizes
    uttered = [draw.multinomial(n, p) for n, p in zip(sizes, phi, strict=True)]
    counts = np.stack(uttered, 1)
    topics = Topics(counts, np.linspace(0.1, 0.9, TOPICS), BETA)
    documents = [
        [
            int(draw.choice(WORDS, p=topics.phi[topic]))
            for topic in draw.choice(TOPICS, length, p=draw.dirichlet(topics.alpha))
        ]
        for length in LENGTHS
    ]
    found = {}
    for particles, runs in RUNS.items():
        log_p = left_to_right(
            args.classpath, topics, documents, particles=particles, runs=runs
        )
        found[particles] = {
            "runs": runs,
            "mean": log_p.mean(0).tolist(),
            "stderr": (log_p.std(0, ddof=1) / runs**0.5).tolist(),
        }
    case = {
        "counts": counts.tolist(),
        "alpha": topics.alpha.tolist(),
        "beta": BETA,
        "documents": documents,
        "log_p": found,
    }
    args.output.write_text(json.dumps(case) + "\n")


if __name__ == "__main__":
    main()
