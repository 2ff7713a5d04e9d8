r"""What systematic mask counts and balanced places are worth, and adapted orders.

    python benchmarks/mdm_masks.py --mdm results/world-mdm \
        --data results/world/test.jsonl

Variances of an estimate from 16 passes, over 40 estimates of the first 32 tokens of
each of 8 texts, as shares of that with independent counts and places; and log p-hat
of the same by importance sampling with 16 orders, nats a text.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForMaskedLM

from lm_latent_eval.estimators import log_evidence
from lm_latent_eval.inference.streams import Streams
from lm_latent_eval.networks.masked import MaskedReader
from lm_latent_eval.networks.network import Network
from lm_latent_eval.text.corpora import read_texts
from lm_latent_eval.wrappers.mdm.estimators import (
    mask_counts,
    masks,
)
from lm_latent_eval.wrappers.mdm.model import MaskedDiffusion
from lm_latent_eval.wrappers.mdm.orders import PLAIN, log_weights
from lm_latent_eval.wrappers.mdm.targets import TargetTokens, answer_all
from lm_latent_eval.wrappers.mdm.unmasking import Requests

TEXTS, TOKENS, PASSES, ESTIMATES = 8, 32, 16, 40
Masks = Callable[[int, int], Tensor]
"""(L, N) -> which places each pass masks, (N, L)."""


def independent(length: int, passes: int) -> Tensor:
    """Draw every count and every set by itself."""
    counts = torch.randint(1, length + 1, (passes,))
    return ranked(counts, length)


def systematic(length: int, passes: int) -> Tensor:
    """Draw systematic counts, and every set by itself."""
    return ranked(mask_counts(length, passes, float(torch.rand(()))), length)


def balanced(length: int, passes: int) -> Tensor:
    """Draw systematic counts, and sets that mask all places equally often."""
    return masks(length, passes, torch.rand(1 + length, dtype=torch.float64))


def ranked(counts: Tensor, length: int) -> Tensor:
    """Draw a uniform set of each count."""
    ranks = torch.rand(len(counts), length).argsort(1).argsort(1)
    return ranks < counts[:, None]


def estimate(chosen: Tensor) -> Requests[float]:
    """Estimate the bound by given sets of masked places."""
    log_p = (yield chosen).log_p.sum(-1)
    return float((log_p * chosen.shape[1] / chosen.sum(-1)).mean())


def variances(
    denoiser: MaskedReader, targets: list[TargetTokens], draw: Masks
) -> Tensor:
    """Return the variance of each target's estimate."""
    jobs = [
        (target, estimate(draw(TOKENS, PASSES)))
        for target in targets
        for _ in range(ESTIMATES)
    ]
    found = dict(answer_all(denoiser, PLAIN, jobs))
    values = torch.tensor([found[n].value for n in range(len(jobs))])
    return values.reshape(len(targets), ESTIMATES).var(1)


def evidences(
    denoiser: MaskedReader, targets: list[TargetTokens], temperature: float | None
) -> Iterator[float]:
    """Yield log p-hat of each target by orders of a proposal."""
    jobs = [
        (
            target,
            log_weights(TOKENS, PASSES, Streams([n], PASSES), temperature=temperature),
        )
        for n, target in enumerate(targets)
    ]
    for _, found in answer_all(denoiser, PLAIN, jobs):
        yield float(log_evidence(found.value))


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mdm", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    args = parser.parse_args()
    cpu = torch.device("cpu")
    network = Network.open(AutoModelForMaskedLM, args.mdm, dtype=None, device=cpu)
    scorer = MaskedDiffusion(network).scorer({}, quiet=True)
    ids = [
        network.tokenizer.encode(text, add_special_tokens=False)
        for text in read_texts(args.data)
    ]
    long = [tuple(each[:TOKENS]) for each in ids if len(each) >= TOKENS][:TEXTS]
    targets = [TargetTokens(scorer.cut.before, each, scorer.cut.after) for each in long]
    torch.manual_seed(0)
    schemes = (independent, systematic, balanced)
    found = [variances(scorer.denoiser, targets, draw).mean() for draw in schemes]
    for draw, variance in zip(schemes, found, strict=True):
        print(f"{draw.__name__:12} variance {float(variance / found[0]):.2f}")
    for name, temperature in (("uniform", None), ("adapted", 1.0), ("adapted", 4.0)):
        mean = sum(evidences(scorer.denoiser, targets, temperature)) / len(targets)
        how = "" if temperature is None else f" at temperature {temperature:g}"
        print(f"is, {name}{how}: {mean:.2f} nats a text")


if __name__ == "__main__":
    main()
