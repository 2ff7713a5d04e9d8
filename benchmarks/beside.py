"""What estimates cost beside another version of this package, in turns in one run.

    python benchmarks/beside.py CHECKOUT [--rounds 3] [WORKLOAD ...]
    python benchmarks/beside.py CHECKOUT --model DIR --texts FILE [--options K=V ...]

CHECKOUT is a clone of the other version with an environment of its own in ``.venv``.
Each version has one process with one thread, which imports and opens the model before
anything is timed. The first call, which may compile, is a column of its own; then the
two take turns, each round with another seed. A row says:

* CPU seconds of a call in this version and in the other (medians over the rounds), and
  their ratio: below 1 this version is faster;
* the median printed Monte Carlo error of a text in both, nats;
* how far estimates of one text lie apart, nats: the root mean square over texts of the
  difference of the two versions' means over the rounds.

Workloads of the demonstration's KGLM are built in. With ``--model``, the folder is one
that both versions read, and FILE has a text a line.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from lm_latent_eval.demo import CHECKPOINT, documents

WORKER = """
import json, resource, sys, time
import lm_latent_eval, torch
torch.set_num_threads(1)
job = json.loads(sys.stdin.readline())
model = lm_latent_eval.load(job["model"], device="cpu")
print("ready", flush=True)
for line in sys.stdin:
    begun = time.process_time()
    found = model.log_likelihood(job["texts"], seed=int(line), **job["options"])
    seconds = time.process_time() - begun
    log_p, errors = zip(*((each.log_evidence, each.stderr) for each in found))
    print(json.dumps([seconds, log_p, errors]), flush=True)
"""


@dataclass(frozen=True)
class Workload:
    """Texts, the model that scores them, and the settings of ``log_likelihood``."""

    texts: list[str]
    options: dict[str, Any] = field(default_factory=dict)
    model: str = str(CHECKPOINT)


class Version:
    """One version at work in a process of its own."""

    def __init__(self, python: Path, folder: Path, workload: Workload) -> None:
        """Start the process and wait until its model is open."""
        threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [python, "-c", WORKER],
            cwd=folder,
            env={**os.environ, **threads, "PYTHONPATH": str(folder)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._send(json.dumps(asdict(workload)))

    def _send(self, line: str) -> str:
        """Send a line, and return the line that answers it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        if answer := self._process.stdout.readline():
            return answer
        raise SystemExit(f"{self._process.args}: ended, see above")

    def estimates(self, seed: int) -> tuple[float, np.ndarray, np.ndarray]:
        """Return CPU seconds, and each text's log p and printed error, nats."""
        seconds, log_p, errors = json.loads(self._send(str(seed)))
        return seconds, np.array(log_p), np.array(errors, dtype=float)

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def demonstration() -> dict[str, Workload]:
    """Return the workloads of the demonstration's KGLM, by name."""
    texts = [each["text"] for each in documents("test")]
    joined = " ".join(texts).split()
    paper = {"estimator": "is", "proposal": "peeking"}
    return {
        "default, batches": Workload(texts[:200]),
        "default, one by one": Workload(texts[:50], {"batch_size": 1}),
        "default, 231 words": Workload([" ".join(joined[:231])]),
        "default, 3,000 words": Workload([" ".join(joined[:3000])]),
        "is, K = 1": Workload(texts[:50], {**paper, "num_samples": 1}),
        "is, K = 100": Workload(texts[:50], {**paper, "num_samples": 100}),
    }


def row(name: str, workload: Workload, other: Path, rounds: int) -> str:
    """Run both versions in turns and return their line of the table."""
    here = Path(__file__).resolve().parent.parent
    versions = [
        Version(Path(sys.executable), here, workload),
        Version(other / ".venv/bin/python", other, workload),
    ]
    first = [version.estimates(0)[0] for version in versions]
    runs = [
        [version.estimates(seed) for version in versions]
        for seed in range(1, rounds + 1)
    ]
    for version in versions:
        version.close()
    cpu = [median(run[side][0] for run in runs) for side in (0, 1)]
    log_p = [np.mean([run[side][1] for run in runs], 0) for side in (0, 1)]
    errors = [np.nanmedian([run[side][2] for run in runs]) for side in (0, 1)]
    apart = float(np.sqrt(np.mean((log_p[0] - log_p[1]) ** 2)))
    cells = [name, *(f"{each:.2f}" for each in (*first, *cpu))]
    cells += [f"{cpu[0] / cpu[1]:.3f}", *(f"{each:.5f}" for each in errors)]
    return f"| {' | '.join([*cells, f'{apart:.5f}'])} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model")
    parser.add_argument("--texts", type=Path)
    parser.add_argument("--options", nargs="*", default=[])
    parser.add_argument("workloads", nargs="*")
    asked = parser.parse_intermixed_args()
    known = demonstration()
    if asked.model:
        options = dict(option.split("=", 1) for option in asked.options)
        numbers = {k: int(v) if v.isdecimal() else v for k, v in options.items()}
        texts = asked.texts.read_text().splitlines()
        known = {
            asked.model: Workload(texts, numbers, str(Path(asked.model).resolve()))
        }
    names = asked.workloads or [*known]
    if unknown := {*names} - {*known}:
        parser.error(f"{min(unknown)!r} is not one of {', '.join(map(repr, known))}")
    head = ["workload", "first", "other's first", "CPU s", "other's", "ratio"]
    head += ["error", "other's error", "apart"]
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for name in names:
        print(
            row(name, known[name], asked.checkout.resolve(), asked.rounds), flush=True
        )


if __name__ == "__main__":
    main()
