"""Sums over tokenizations beside those of genlm-bytes, with the same network.

    pip install genlm-bytes
    python benchmarks/genlm_bytes.py [--bytes 20 40 80 160] [WORKLOAD ...]

prints, for the first bytes of a text, CPU seconds of one thread: a pass of the network
over the usual tokens, ``latent_tokens`` with K = 32, and genlm-bytes with a beam of 32;
and log p by each, in nats. That of genlm-bytes is the sum over what its beam holds at
the last byte, of tokenizations that end there: a lower bound.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import torch
from genlm.backend.llm.hf import AsyncTransformer
from genlm.bytes import BeamParams, ByteBeamState
from workloads import SEGMENTED, segmented

from lm_latent_eval.networks.network import Network
from lm_latent_eval.scoring.texts import Query
from lm_latent_eval.wrappers.tokens.model import SegmentedLM

T = TypeVar("T")
K, ROUNDS = 32, 3


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bytes", type=int, nargs="+", default=[20, 40, 80, 160])
    parser.add_argument("workloads", nargs="*", default=[*SEGMENTED])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print("| network | bytes | a pass | ours | genlm-bytes | log p | its log p |")
    print("|---|---|---|---|---|---|---|")
    for name in arguments.workloads:
        model, text = segmented(SEGMENTED[name])
        model.network.tokenizer.bos_token = model.network.tokenizer.eos_token
        for number in arguments.bytes:
            part = text.encode()[:number].decode(errors="ignore")
            print(f"| {name} | {number} | {' | '.join(line(model, part))} |")


def line(model: SegmentedLM, text: str) -> list[str]:
    """Return the seconds and sums of a text."""
    scorer = model.scorer({"num_samples": K}, quiet=True)
    queries = [Query(0, "text", text)]
    read, _ = seconds(lambda: _usual(model.network, text))
    summed, found = seconds(lambda: [*scorer.score_texts(queries)])
    theirs, beam = seconds(lambda: asyncio.run(_beam(model.network, text)))
    [answer] = found
    sums = f"{answer.estimate.log_evidence:.4f}", f"{beam:.4f}"
    return [f"{read:.4f}", f"{summed:.3f}", f"{theirs:.2f}", *sums]


def _usual(network: Network, text: str) -> float:
    """Return log p of the usual tokens, by one pass."""
    tokens = torch.tensor([[network.prefix_token, *network.tokenizer.encode(text)]])
    with torch.inference_mode():
        log_p = network.model(tokens[:, :-1]).logits.log_softmax(-1)
        return log_p.gather(-1, tokens[:, 1:, None]).sum().item()


async def _beam(network: Network, text: str) -> float:
    """Return log of the sum over what genlm-bytes keeps; nothing of it is cached."""
    model = AsyncTransformer(network.model, network.tokenizer)
    state = await ByteBeamState.initial(model, BeamParams(K=K))
    for byte in text.encode():
        state = await (state.prune() << byte)
    ended = await state.extend(state.logZ)
    return float(np.logaddexp.reduce([each.weight for each in ended]))


def seconds(work: Callable[[], T]) -> tuple[float, T]:
    """Return the median CPU seconds of calls after a first one, and a result."""
    took, found = [], work()
    for _ in range(ROUNDS):
        start = time.process_time()
        found = work()
        took.append(time.process_time() - start)
    return statistics.median(took), found


if __name__ == "__main__":
    main()
