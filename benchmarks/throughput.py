"""Words scored a second, on a processor or a GPU.

    python benchmarks/throughput.py --num-samples 10 100
    python benchmarks/throughput.py --device cuda --num-samples 100 1000
    python benchmarks/throughput.py --threads

Scores documents of the embedded world, or of ``--data``, once to warm up and once to
measure. On a GPU it prints seconds and the peak of its memory, on a processor CPU
seconds. ``--threads`` prints what LSTMs of several sizes take by one thread over two,
in turns, by the clock: above 1 a second thread is worth something.
"""

from __future__ import annotations

import argparse
import itertools
import os
import platform
import statistics
import time
from pathlib import Path

import torch

import lm_latent_eval
from lm_latent_eval.demo import CHECKPOINT
from lm_latent_eval.demo import texts as demo_texts
from lm_latent_eval.scoring.model import LatentModel
from lm_latent_eval.text.corpora import TextFile


def seconds(device: torch.device) -> float:
    """Return seconds: of the clock where a GPU works, else of this process's CPU."""
    if device.type != "cuda":
        return time.process_time()
    torch.cuda.synchronize(device)
    return time.perf_counter()


def measure(
    model: LatentModel, texts: list[str], device: torch.device, **options: object
) -> str:
    """Score texts twice; describe the second time."""
    for _ in range(2):
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        before = seconds(device)
        estimates = model.log_likelihood(texts, **options)
        spent = seconds(device) - before
    words = sum(estimate.num_tokens for estimate in estimates)
    memory = ""
    if device.type == "cuda":
        memory = f"  {torch.cuda.max_memory_allocated(device) / 2**20:8.0f} MiB"
    return f"{words:8,} words  {spent:8.2f} s  {words / spent:10.1f} words/s{memory}"


def threads(rounds: int = 9) -> None:
    """Print how much a second thread gains, an LSTM's size a line."""
    print("| weights | one text | 64 texts |\n|---|---|---|")
    for width in (32, 128, 256, 512, 1024):
        lstm = torch.nn.LSTM(width, width, batch_first=True)
        words = torch.nn.Linear(width, 5000)
        weights = sum(
            each.numel() for each in (*lstm.parameters(), *words.parameters())
        )
        gains = []
        for num_texts in (1, 64):
            inputs = torch.randn(num_texts, 30, width)
            took: dict[int, list[float]] = {1: [], 2: []}
            with torch.inference_mode():
                for number in [1, 2] * rounds:
                    torch.set_num_threads(number)
                    begun = time.perf_counter()
                    words(lstm(inputs)[0]).log_softmax(-1)
                    took[number].append(time.perf_counter() - begun)
            gains.append(statistics.median(took[1]) / statistics.median(took[2]))
        print(f"| {weights:,} | {gains[0]:.2f} | {gains[1]:.2f} |", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pretrained", default=str(CHECKPOINT))
    parser.add_argument("--data", type=Path, help="texts, as `estimate` reads them")
    parser.add_argument("--texts", type=int, default=24)
    parser.add_argument("--num-samples", type=int, nargs="+", default=[100])
    parser.add_argument("--estimator", nargs="+", default=["is", "auto"])
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    parser.add_argument("--threads", action="store_true", help="one over two")
    args = parser.parse_args()
    if args.threads:
        return threads()

    if args.data is None:
        texts = demo_texts("test")[: args.texts]
    else:
        texts = list(itertools.islice(TextFile(args.data), args.texts))
    unit = "seconds" if args.device.type == "cuda" else "CPU seconds"
    name = (
        torch.cuda.get_device_name(args.device)
        if args.device.type == "cuda"
        else f"{platform.machine()}, {os.cpu_count()} cores, "
        f"{torch.get_num_threads()} thread(s)"
    )
    print(f"hardware  {name}; s are {unit}")
    print(f"versions  Python {platform.python_version()}, torch {torch.__version__}")
    print(f"model     {args.pretrained}, {len(texts)} texts, seed 0\n")
    model = lm_latent_eval.load(args.pretrained, device=args.device)
    for estimator, number in itertools.product(args.estimator, args.num_samples):
        found = measure(
            model, texts, args.device, estimator=estimator, num_samples=number
        )
        print(f"{estimator:8}K = {number:<6}{found}", flush=True)


if __name__ == "__main__":
    main()
