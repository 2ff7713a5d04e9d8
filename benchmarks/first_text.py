"""What a run pays before its first number, beside lm-eval's own ``dummy`` model.

    python benchmarks/first_text.py --runs 3

Runs ``lm_eval --tasks wikitext`` on three short texts of its own with both models by
turns, and ``lm_latent_eval.load`` of the demonstration model beside the import of the
class that every model of transformers derives from, each in a process of its own. CPU
seconds, because others may share the machine.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from statistics import fmean

from lm_latent_eval.harness.offline import write_dataset

PROJECT = Path(__file__).parents[1]
TEXTS = (
    "It is known for its plums and its gardeners.",
    "The town lies on a river.",
    "She was born in a village.",
)
LOAD = """
import lm_latent_eval
from lm_latent_eval.demo import CHECKPOINT
lm_latent_eval.load(CHECKPOINT)
"""
WIKITEXT = ("-m", "lm_eval", "--tasks", "wikitext", "--model")
COMMANDS = {
    "lm_eval --model dummy": (*WIKITEXT, "dummy"),
    "lm_eval --model latent_kglm": (*WIKITEXT, "latent_kglm"),
    "import PreTrainedModel": ("-c", "from transformers import PreTrainedModel"),
    "lm_latent_eval.load": ("-c", LOAD),
}


def cpu_seconds(arguments: tuple[str, ...], folder: str) -> float:
    """Run Python on one thread; return the CPU seconds that it took."""
    path = os.pathsep.join(filter(None, (str(PROJECT), os.environ.get("PYTHONPATH"))))
    environment = {
        **os.environ,
        "PYTHONPATH": path,
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    before = os.times()
    subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        check=True,
        capture_output=True,
    )
    after = os.times()
    return sum(after[2:4]) - sum(before[2:4])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=3, help="of each command")
    runs = parser.parse_args().runs

    with tempfile.TemporaryDirectory() as folder:
        pages = [{"page": text} for text in TEXTS]
        splits = dict.fromkeys(("train", "validation", "test"), pages)
        write_dataset(
            Path(folder, "EleutherAI", "wikitext_document_level"),
            {"wikitext-2-raw-v1": splits},
        )
        for arguments in COMMANDS.values():
            cpu_seconds(arguments, folder)  # warms the file cache
        spent: dict[str, list[float]] = {name: [] for name in COMMANDS}
        for _ in range(runs):
            for name, arguments in COMMANDS.items():
                spent[name].append(cpu_seconds(arguments, folder))

    packages = ("lm_eval", "torch", "transformers")
    print(f"hardware  {platform.machine()}, {os.cpu_count()} logical cores")
    print(
        f"versions  Python {platform.python_version()}, "
        + ", ".join(f"{name} {version(name)}" for name in packages)
    )
    print(f"command   python benchmarks/first_text.py --runs {runs}")
    print("seed      0\n")
    for name, seconds in spent.items():
        print(
            f"{name:28} {fmean(seconds):6.2f} CPU seconds "
            f"({min(seconds):.2f} to {max(seconds):.2f})"
        )


if __name__ == "__main__":
    main()
