"""Long texts through every backend: 10,000 words, a word and a line of a megabyte.

    python -m benchmarks.long_texts [--words 10000] [--samples 2] [BACKEND ...]

Models are the tiny ones of the tests, with random weights, and each text has a process
of one thread to itself. Prints CPU seconds, and resident memory before and at the peak.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.scale import peak

PLACES = 256
"""Tokens that the wrapped networks read at once, but for those of thoughts."""
MEGABYTE = 1_000_000
WRAPPED = ("tokens", "mdm", "cot")
MODELS = ("kglm", "entitynlm", "nklm", "lrlm", "rnng", "lstm", "rnn")
KINDS = {
    "words": "{words:,} words",
    "one word": "a word of 1 MB",
    "line": "a line of 1 MB",
}
"""Kind of text -> its name; a line of so many words is for the wrappers alone."""


def text_of(kind: str, words: int, letters: str) -> str:
    """Return a long text."""
    if kind == "one word":
        return "ab" * (MEGABYTE // 2)
    some = letters.split()
    if kind == "line":
        words = MEGABYTE * len(some) // (len(letters) + 1)
    return " ".join(some[n % len(some)] for n in range(words))


def model(name: str, samples: int) -> tuple[Callable[[str], Any], str]:
    """Return what scores a text, and words that it knows."""
    import lm_latent_eval
    from tests.fuzz.models import WRITE

    spelled = f"{name}_spelled" if f"{name}_spelled" in WRITE else name
    folder = Path(tempfile.mkdtemp())
    opened = lm_latent_eval.load(WRITE[spelled](folder / name))
    drawn = {} if name in ("lstm", "rnn") else {"estimator": "is"}
    given = {**drawn, "num_samples": samples} if drawn else {}
    return (
        lambda text: opened.log_likelihood([text], **given)[0].log_evidence,
        "the fox saw Ada .",
    )


def tokens(samples: int) -> tuple[Callable[[str], Any], str]:
    """Sum over tokenizations, by a GPT-2 of a few letters."""
    from lm_latent_eval.wrappers.tokens.model import SegmentedLM
    from tests import tiny_causal

    network = tiny_causal.network(tiny_causal.spaced(), positions=PLACES)
    return whole(SegmentedLM(network).scorer({"num_samples": samples})), "ab aab b"


def mdm(samples: int) -> tuple[Callable[[str], Any], str]:
    """Bound log p by random masks, by a BERT of a few words."""
    from transformers import BertConfig, BertForMaskedLM

    from lm_latent_eval.networks.network import Network
    from lm_latent_eval.wrappers.mdm.model import MaskedDiffusion
    from tests.wrappers.mdm import tiny

    size = tiny.SIZE | {"max_position_embeddings": PLACES}
    network = tiny.lopsided(BertForMaskedLM(BertConfig(**size)))
    read = Network.of(network, tiny.tokenizer(), max_length=PLACES)
    scorer = MaskedDiffusion(read).scorer({"num_samples": samples})
    return whole(scorer), "the fox saw Ada ."


def cot(samples: int) -> tuple[Callable[[str], Any], str]:
    """Think about a long question, by a GPT-2 that has places for it."""
    from transformers import GPT2Config, GPT2LMHeadModel

    from lm_latent_eval.networks.network import Network
    from lm_latent_eval.scoring.texts import Query
    from lm_latent_eval.wrappers.cot.model import ThinkingLM
    from tests.wrappers.cot import tiny

    config = tiny.network().model.config.to_dict() | {"n_positions": 1 << 14}
    network = GPT2LMHeadModel(GPT2Config(**config))
    read = Network.of(network, tiny.tokenizer())
    options = {**tiny.OPTIONS, "close": "forced", "num_samples": samples}
    scorer = ThinkingLM(read).scorer(options)

    def score(text: str) -> float:
        [answer] = scorer.score_continuations([Query(0, "text/0", " c", text)])
        return answer.estimate.log_evidence

    return score, "a b c"


def whole(scorer: Any) -> Callable[[str], float]:
    """Return what scores a whole text."""
    from lm_latent_eval.scoring.texts import Query

    def score(text: str) -> float:
        [answer] = scorer.score_texts([Query(0, "text/0", text)])
        return answer.estimate.log_evidence

    return score


def measure(args: argparse.Namespace) -> None:
    """Score one text and print a row of the table."""
    torch.set_num_threads(1)
    (name,), kind = args.backends, args.kind
    if name in WRAPPED:
        score, letters = {"tokens": tokens, "mdm": mdm, "cot": cot}[name](args.samples)
    else:
        score, letters = model(name, args.samples)
    score(text_of("words", 4, letters))  # what is loaded late is no part of it
    text, before = text_of(kind, args.words, letters), peak()

    def outcome() -> str:
        try:
            return f"{score(text):.6g} nats"
        except ValueError as err:
            return f"refused: {err!s:.80}"

    begun = time.process_time()
    found = outcome()
    seconds, what = time.process_time() - begun, KINDS[kind].format(words=args.words)
    cells = (name, what, f"{seconds:.1f}", f"{before:.0f}", f"{peak():.0f}", found)
    print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("backends", nargs="*", metavar="BACKEND")
    parser.add_argument("--words", type=int, default=10_000)
    parser.add_argument("--samples", type=int, default=2)
    parser.add_argument("--limit", type=int, default=1800, help="seconds of a text")
    parser.add_argument("--kind", choices=[*KINDS], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.kind:
        measure(args)
        return
    print("| backend | text | CPU seconds | MB before | MB at the peak | found |")
    print("|---|---|---|---|---|---|", flush=True)
    for name in args.backends or [*WRAPPED, *MODELS]:
        for kind in KINDS if name in WRAPPED else [*KINDS][:2]:
            command = [sys.executable, "-m", "benchmarks.long_texts", name]
            command += ["--kind", kind, "--words", str(args.words)]
            command += ["--samples", str(args.samples)]
            try:
                done = subprocess.run(command, timeout=args.limit, check=False)
            except subprocess.TimeoutExpired:
                print(f"| {name} | {kind} | over {args.limit} | | | |", flush=True)
            else:
                if done.returncode:
                    print(f"| {name} | {kind} | failed | | | |", flush=True)


if __name__ == "__main__":
    main()
