"""What a weight costs: CPU seconds and memory of importance sampling, a row a workload.

    python benchmarks/speed.py [--samples 1 20 100 1000] [--rounds 3] [--minutes 12]
                               [WORKLOAD ...]

``workloads.py`` lists the workloads; few samples come first. A row that would not end
in time, as its workload grew with K so far, is left out and named; one that has begun
is waited for. Beside the CPU seconds of K samples of all texts stand two ratios,
measured in the same process:

* one by one: what as many samples cost if each is drawn and scored alone, as the
  original programs do;
* arithmetic: what the multiplications of matrices that were done would take at the rate
  of a large one. 1 is the floor of this algorithm.

``--originals DIR`` adds what the original programs took a sample and text, which
``DIR/MODEL/timing.json`` tells, over what a sample alone takes here. Every workload has
a process of its own, so memory is its peak.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode
from workloads import SEED, WORDS, WORKLOADS, build

from lm_latent_eval.inference.streams import Streams, stream_key

ALONE = 4
"""Samples that are drawn one by one: what all of them would take is in proportion."""


def of_lstm(inputs: torch.Size, *others: Any, **_: Any) -> int:
    """Count the multiplications and additions of an LSTM, which torch does not."""
    from_input, from_hidden = others[:2]
    tokens = math.prod(inputs[:-1])
    return 2 * tokens * (math.prod(from_input) + math.prod(from_hidden))


LSTM = {torch.ops.aten.mkldnn_rnn_layer: of_lstm}
HEAD = (
    "workload",
    "K",
    "texts x words",
    "vocabulary",
    "CPU s",
    "peak GiB",
    "one by one",
    "arithmetic",
)


def row(name: str, samples: int, rounds: int) -> tuple[list[str], float]:
    """Return a line of the table, and the seconds of one sample of one text alone."""
    torch.set_num_threads(1)
    workload = WORKLOADS[name]
    model, batch = build(workload)
    proposal = model.proposal(workload.proposal, workload.temperature)
    keys = [stream_key(SEED, str(text)) for text in range(workload.num_texts)]

    def weigh(first: int, number: int) -> None:
        p, q = model.encode(batch), proposal.encode(batch)
        draws = proposal.sample(q, Streams(keys, number, first), number)
        model.log_joint(p, draws.latents)

    with torch.no_grad():
        weigh(0, samples)  # fills what is kept between calls
        together, alone, floor = [], [], []
        with FlopCounterMode(display=False, custom_mapping=LSTM) as counted:
            weigh(0, samples)
        for _ in range(rounds):
            together.append(seconds(lambda: weigh(0, samples)))
            one = seconds(lambda: [weigh(k, 1) for k in range(ALONE)]) / ALONE
            alone.append(one)
            floor.append(counted.get_total_flops() / rate())
    cpu, one = statistics.median(together), statistics.median(alone)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    cells = [
        name,
        f"{samples}",
        f"{workload.num_texts} x {workload.length}",
        f"{WORDS}",
        f"{cpu:.3f}",
        f"{peak:.1f}",
        f"{one * samples / cpu:.1f}",
        f"{cpu / statistics.median(floor):.1f}",
    ]
    return cells, one / workload.num_texts


def seconds(work: Callable[[], object]) -> float:
    """Return the CPU seconds that something takes."""
    start = time.process_time()
    work()
    return time.process_time() - start


def rate() -> float:
    """Return the floating-point operations a second of a product of large matrices."""
    a, b = torch.ones(1024, 512), torch.ones(1024, 512)
    return 2 * 1024 * 512 * 1024 / min(seconds(lambda: F.linear(a, b)) for _ in "....")


def original(folder: Path, name: str) -> float:
    """Return the CPU seconds of an original program a sample and text."""
    model = name.split(",")[0]
    timing = json.loads((folder / model / "timing.json").read_text())
    if model == "rnng":
        run = timing["runs_quiet_machine"][0]
        return run["sec_per_sentence_cpu"] / run["K"]
    return timing["rows"][0]["both"]["cpu_median_s"]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, nargs="+", default=[1, 20, 100, 1000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=12)
    parser.add_argument("--originals", type=Path)
    parser.add_argument("workloads", nargs="*", default=[*WORKLOADS])
    arguments = parser.parse_args()
    if unknown := {*arguments.workloads} - {*WORKLOADS}:
        parser.error(
            f"{min(unknown)!r} is not one of {', '.join(map(repr, WORKLOADS))}"
        )
    head = [*HEAD, *(["original / alone"] if arguments.originals else [])]
    print(f"{platform.processor() or platform.machine()}, torch {torch.__version__}\n")
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn, max_tasks_per_child=1) as processes:
        end = time.perf_counter() + 60 * arguments.minutes
        took = dict.fromkeys(arguments.workloads, (1, 0.0))
        for samples, name in product(sorted(arguments.samples), arguments.workloads):
            fewer, long = took[name]
            start, at_most = time.perf_counter(), long * samples / fewer
            if start + at_most > end:
                print(f"{name}, K = {samples}: left out", file=sys.stderr)
                continue
            found = processes.submit(row, name, samples, arguments.rounds)
            cells, alone = found.result()
            took[name] = samples, time.perf_counter() - start
            if arguments.originals:
                cells += [f"{original(arguments.originals, name) / alone:.1f}"]
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
