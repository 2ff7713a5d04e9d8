"""What a weight costs beside the original programs, a row a workload.

    python benchmarks/speed.py [--samples 1 100] [--rounds 3] [--minutes 10]
                               [WORKLOAD ...]

``workloads.py`` lists the workloads. What has one K comes first, then few samples. A
row that would not end in time, as its workload grew with K so far, is left out and
named; one that has begun is waited for. Every workload has a process of its own, so
memory is its peak. CPU seconds are those of K samples of all texts: of the first call,
when nothing is kept yet, and the median of later ones. Beside them:

* original / ours: CPU seconds of the original program a sample, over ours. Originals
  are not run here: what they took on another machine is ``stored``, and such a row says
  nothing exactly. Tokenizations are compared with a pass of the network over the same
  text, which ``runs`` in the same process; there the ratio is passes, K = 32, and after
  it stand seconds of ``estimator=canonical`` over those of ``--model hf``. Masked
  diffusion is compared with the loop of LLaDA's program in batches as large, which
  ``runs``, too: K masked texts of each text by its loop, over as many by ``elbo``;
* one by one: what as many samples cost if each is drawn and scored alone, as the
  original programs do;
* arithmetic: what the multiplications of matrices that were done would take at the rate
  of a large one. 1 is the floor of this algorithm;
* loop: milliseconds of a loop that never changes, measured at the same time. Rows of
  machines or hours whose loops differ do not compare.

The row ``start`` is what one takes: CPU seconds until a model is open, over those of
importing torch and the class of transformers that every model is one of.

``--originals DIR`` reads what the original programs took: ``DIR/MODEL/timing.json``.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.models.huggingface import HFLM
from torch import Tensor
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode
from workloads import DENOISED, SEED, SEGMENTED, WORKLOADS, build, denoised, segmented

import lm_latent_eval
from lm_latent_eval.estimators import Estimate
from lm_latent_eval.harness.wrappers.tokens import LatentTokens
from lm_latent_eval.inference.streams import Streams, stream_key
from lm_latent_eval.networks.masked import MaskedReader
from lm_latent_eval.networks.network import Network
from lm_latent_eval.scoring.texts import Query
from lm_latent_eval.wrappers.mdm.estimators import elbo, llada_counts
from lm_latent_eval.wrappers.mdm.orders import PLAIN
from lm_latent_eval.wrappers.mdm.targets import TargetTokens, answer_all
from lm_latent_eval.wrappers.mdm.unmasking import Requests

ALONE = 4
"""Samples that are drawn one by one: what all of them would take is in proportion."""


def of_lstm(inputs: torch.Size, *others: Any, **_: Any) -> int:
    """Count the multiplications and additions of an LSTM, which torch does not."""
    from_input, from_hidden = others[:2]
    tokens = math.prod(inputs[:-1])
    return 2 * tokens * (math.prod(from_input) + math.prod(from_hidden))


STORED = {"kglm": 0.3006, "entitynlm": 0.7382, "rnng": 0.00784}
"""CPU seconds of the original programs a sample and text: one thread of a Xeon at 2.8
GHz, medians of 15 and 25 runs, and of 100 samples in two batches."""
START = "start"
DEMO = Path(lm_latent_eval.__file__).parent / "demo" / "checkpoint"
SEGMENTATIONS = 32
"""K of tokenizations."""
MASKED, MASKED_TOGETHER = 128, 32
"""Masked texts a text, and how many the network reads together."""
LSTM = {torch.ops.aten.mkldnn_rnn_layer: of_lstm}
HEAD = (
    "workload",
    "K",
    "texts x words",
    "first CPU s",
    "CPU s",
    "peak GiB",
    "original / ours",
    "original",
    "one by one",
    "arithmetic",
    "loop ms",
)


def row(name: str, samples: int, rounds: int, stored: float) -> list[str]:
    """Return a line of the table; ``stored`` is what the original takes a sample."""
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
        first = seconds(lambda: weigh(0, samples))  # fills what is kept between calls
        together, alone, floor, loops = [], [], [], []
        with FlopCounterMode(display=False, custom_mapping=LSTM) as counted:
            weigh(0, samples)
        for _ in range(rounds):
            loops.append(seconds(loop))
            together.append(seconds(lambda: weigh(0, samples)))
            one = seconds(lambda: [weigh(k, 1) for k in range(ALONE)]) / ALONE
            alone.append(one)
            floor.append(counted.get_total_flops() / rate())
    cpu, one = statistics.median(together), statistics.median(alone)
    return [
        name,
        f"{samples}",
        f"{workload.num_texts} x {workload.length}",
        f"{first:.3f}",
        f"{cpu:.3f}",
        f"{peak():.1f}",
        f"{stored * samples * workload.num_texts / cpu:.1f}",
        "stored",
        f"{one * samples / cpu:.1f}",
        f"{cpu / statistics.median(floor):.1f}",
        f"{1e3 * statistics.median(loops):.1f}",
    ]


def passes(name: str, rounds: int) -> list[str]:
    """Return a line of tokenizations: K = 32 over a pass of the network, as ``hf``."""
    torch.set_num_threads(1)
    model, text = segmented(SEGMENTED[name])
    options = {"num_samples": SEGMENTATIONS}
    scorer, queries = model.scorer(options, quiet=True), [Query(0, "text", text)]
    network = model.network
    tokens = torch.tensor([[network.prefix_token, *network.tokenizer.encode(text)]])

    def read() -> None:
        with torch.inference_mode():
            log_p = network.model(tokens[:, :-1]).logits.log_softmax(-1)
            log_p.gather(-1, tokens[:, 1:, None]).sum().item()

    first = seconds(lambda: [*scorer.score_texts(queries)])
    summed, once, loops = [], [], []
    read()
    for _ in range(rounds):
        loops.append(seconds(loop))
        once.append(seconds(lambda: [read() for _ in "....."]) / 5)
        summed.append(seconds(lambda: [*scorer.score_texts(queries)]))
    cpu = statistics.median(summed)
    cells = [name, f"{SEGMENTATIONS}", f"1 x {tokens.shape[1] - 1} tokens"]
    cells += [f"{first:.3f}", f"{cpu:.3f}", f"{peak():.1f}"]
    ratio = f"{cpu / statistics.median(once):.0f} passes"
    ratio += f", canonical {canonical_cost(network, text, rounds):.2f}"
    return [*cells, ratio, "runs", "", "", f"{1e3 * statistics.median(loops):.1f}"]


def canonical_cost(network: Network, text: str, rounds: int) -> float:
    """Return CPU seconds of ``canonical`` over those of ``hf``, for parts of a text."""
    words = text.split()
    parts = [" ".join(words[n : n + 60]) for n in range(0, len(words), 20)]
    asked = [
        Instance("loglikelihood_rolling", {}, (t,), n) for n, t in enumerate(parts)
    ]
    with TemporaryDirectory() as folder:
        network.model.save_pretrained(folder)
        network.tokenizer.save_pretrained(folder)
        how = {"pretrained": folder, "device": "cpu", "batch_size": 8}
        models = [LatentTokens(**how, estimator="canonical"), HFLM(**how)]

    def ask(lm: LM) -> float:
        return seconds(lambda: lm.loglikelihood_rolling(asked, disable_tqdm=True))

    costs = [[ask(lm) for lm in models] for _ in range(1 + rounds)]
    return statistics.median(ours / theirs for ours, theirs in costs[1:])


def masked(name: str, rounds: int) -> list[str]:
    """Return a line of masked diffusion: LLaDA's loop over ``elbo``, a masked text."""
    torch.set_num_threads(1)
    reader, targets = denoised(DENOISED[name], MASKED_TOGETHER)

    def ours() -> int:
        jobs: list[tuple[TargetTokens, Requests[Estimate]]] = [
            (target, elbo(len(target), MASKED, places)) for target in targets
        ]
        return sum(found.passes for _, found in answer_all(reader, PLAIN, jobs))

    def theirs() -> int:
        return sum(llada_loop(reader, target) for target in targets)

    first = seconds(ours)
    theirs()
    bound, loops, ratios = [], [], []
    for _ in range(rounds):
        loops.append(seconds(loop))
        costs = {}
        for way in (ours, theirs):
            begun = time.process_time()
            number = way()
            costs[way] = (time.process_time() - begun) / number
        bound.append(costs[ours] * MASKED * len(targets))
        ratios.append(costs[theirs] / costs[ours])
    cells = [name, f"{MASKED}", f"{len(targets)} x {len(targets[0])} tokens"]
    cells += [f"{first:.3f}", f"{statistics.median(bound):.3f}", f"{peak():.1f}"]
    ratio = f"{statistics.median(ratios):.2f}"
    return [*cells, ratio, "runs", "", "", f"{1e3 * statistics.median(loops):.1f}"]


def places(replicate: int, number: int) -> Tensor:
    """Return numbers of (0, 1) that masks are drawn by."""
    return torch.rand(number, dtype=torch.float64)


def llada_loop(reader: MaskedReader, target: TargetTokens) -> int:
    """Do what eval_llada.py does for a text, in our own words; return its passes."""
    text = target.all_tokens
    length = len(target)
    for _ in range(MASKED // MASKED_TOGETHER):
        first = float(torch.randint(1, length + 1, ()))
        count = llada_counts(length, MASKED_TOGETHER, int(first))
        hidden = torch.arange(length) < count[:, None]
        hidden = torch.stack([row[torch.randperm(length)] for row in hidden])
        masked = target.placed(hidden)
        texts = text.expand(MASKED_TOGETHER, -1).masked_fill(masked, reader.mask)
        with torch.inference_mode():
            logits = reader.scores(texts)
        nats = F.cross_entropy(
            logits[masked], text.expand(MASKED_TOGETHER, -1)[masked], reduction="none"
        )
        share = (length / count).repeat_interleave(count)
        float((nats * share).sum() / MASKED_TOGETHER)
    return MASKED


def start(rounds: int) -> list[str]:
    """Return the line of opening a model: CPU seconds, over its hosts' own imports."""
    hosts = "import torch; from transformers import PreTrainedModel"
    ours = f"{hosts}; import lm_latent_eval; lm_latent_eval.load({str(DEMO)!r})"
    took: dict[str, list[float]] = {hosts: [], ours: []}
    for _ in range(rounds):
        for code, found in took.items():
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([sys.executable, "-c", code], check=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            found.append(after.ru_utime + after.ru_stime)
            found[-1] -= before.ru_utime + before.ru_stime
    one, other = (statistics.median(found) for found in took.values())
    ratio = f"{other - one:+.2f} s"
    loops = f"{1e3 * seconds(loop):.1f}"
    return ["start", "", "", "", f"{other:.3f}", "", ratio, "runs", "", "", loops]


def loop() -> None:
    """Do what never changes: products of small matrices, one by one."""
    a = torch.eye(64)
    for _ in range(2000):
        a = a @ a


def peak() -> float:
    """Return the most memory that this process has had, GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def seconds(work: Callable[[], object]) -> float:
    """Return the CPU seconds that something takes."""
    start = time.process_time()
    work()
    return time.process_time() - start


def rate() -> float:
    """Return the floating-point operations a second of a product of large matrices."""
    a, b = torch.ones(1024, 512), torch.ones(1024, 512)
    return 2 * 1024 * 512 * 1024 / min(seconds(lambda: F.linear(a, b)) for _ in "....")


def original(folder: Path | None, name: str) -> float:
    """Return the CPU seconds of an original program a sample and text."""
    model = name.split(",")[0]
    if folder is None:
        return STORED[model]
    timing = json.loads((folder / model / "timing.json").read_text())
    if model == "rnng":
        run = timing["runs_quiet_machine"][0]
        return float(run["sec_per_sentence_cpu"] / run["K"])
    return float(timing["rows"][0]["both"]["cpu_median_s"])


def main() -> None:
    """Print the table."""
    known = [*WORKLOADS, *SEGMENTED, *DENOISED, START]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, nargs="+", default=[1, 100])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--originals", type=Path)
    parser.add_argument("workloads", nargs="*", default=known)
    arguments = parser.parse_args()
    if unknown := {*arguments.workloads} - {*known}:
        parser.error(f"{min(unknown)!r} is not one of {', '.join(map(repr, known))}")
    print(f"{platform.processor() or platform.machine()}, torch {torch.__version__}\n")
    print(f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}")
    asked = [(name, 1) for name in arguments.workloads if name not in WORKLOADS]
    asked += [
        (name, samples)
        for samples, name in product(sorted(arguments.samples), arguments.workloads)
        if name in WORKLOADS
    ]
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn, max_tasks_per_child=1) as processes:
        end = time.perf_counter() + 60 * arguments.minutes
        took = dict.fromkeys(arguments.workloads, (1, 0.0))
        for name, samples in asked:
            fewer, long = took[name]
            calls = 2 + arguments.rounds
            if time.perf_counter() + calls * long * samples / fewer > end:
                print(f"{name}, K = {samples}: left out", file=sys.stderr)
                continue
            if name == START:
                found = processes.submit(start, arguments.rounds)
            elif name in DENOISED:
                found = processes.submit(masked, name, arguments.rounds)
            elif name in SEGMENTED:
                found = processes.submit(passes, name, arguments.rounds)
            else:
                stored = original(arguments.originals, name)
                found = processes.submit(row, name, samples, arguments.rounds, stored)
            cells = found.result()
            took[name] = samples, float(cells[HEAD.index("CPU s")])
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
