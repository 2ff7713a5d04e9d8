"""How far estimators of topic models are off, and what they cost.

    python benchmarks/topic_models.py --output docs/results/lda

Documents are drawn from a topic model, so each comes with a draw of its posterior: long
annealed chains from both ends say between which bounds log p(x) lies, and every
estimator is held against their middle. After the experiments of Wallach et al. (2009),
section 5.
"""

from __future__ import annotations

import argparse
import csv
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from lm_latent_eval.estimators import log_evidence
from lm_latent_eval.inference import (
    AnnealedImportanceSampling,
    BeamMarginalization,
    DiscreteFilter,
    ImportanceSampling,
    ParticleFilter,
)
from lm_latent_eval.inference.annealing import log_evidence_from_above
from lm_latent_eval.inference.interface import Texts
from lm_latent_eval.inference.streams import stream_key
from lm_latent_eval.models.lda.modeling import LDA, LDAConfig
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.words import START

TOPICS, WORDS = 20, 1000
ALPHA, ETA = 0.1, 0.1
DOCUMENTS, LENGTH = 30, 100
REFERENCE = 10_000
SIZES = (10, 100, 1000)


def draw_model(seed: int) -> LDA:
    """Draw topics from a Dirichlet distribution."""
    config = LDAConfig(vocab_size=4 + WORDS, num_topics=TOPICS)
    model = LDA(config).double().eval().requires_grad_(False)
    torch.manual_seed(seed)
    phi = torch.distributions.Dirichlet(torch.full((WORDS,), ETA).double())
    model.log_topics[:, 4:] = phi.sample((TOPICS,)).clamp_min(1e-300).log()
    model.log_alpha.fill_(math.log(ALPHA))
    return model


def draw_documents(model: LDA) -> tuple[TokenBatch, Tensor]:
    """Draw documents with their topics, (B, 1, T)."""
    proportions = torch.distributions.Dirichlet(model.alpha).sample((DOCUMENTS,))
    topics = proportions.multinomial(LENGTH, replacement=True)
    phi = model.log_phi().exp()[topics.flatten()]
    words = phi.multinomial(1).view(DOCUMENTS, LENGTH)
    return TokenBatch.collate(words.tolist(), first=START), topics[:, None]


def keys(purpose: str) -> list[int]:
    """Return keys of random numbers for a purpose."""
    return [stream_key(0, f"{purpose}/{n}") for n in range(DOCUMENTS)]


def estimates(
    model: LDA, batch: TokenBatch
) -> Iterator[tuple[str, int, Callable[[], Tensor]]]:
    """Name, size and what computes (B,) nats."""

    def of(method, proposal: str) -> Callable[[], Tensor]:
        def run() -> Tensor:
            q = model.proposal(proposal)
            log_w = method.log_weights(Texts(model, q, batch, keys(method.name)))
            if isinstance(method, BeamMarginalization):
                return log_w.logsumexp(-1)
            return torch.stack([log_evidence(method.unbiased(w)) for w in log_w])

        return run

    for size in SIZES:
        for proposal in ("prior", "document", "adapted"):
            name = f"importance sampling, {proposal}"
            yield name, size, of(ImportanceSampling(size), proposal)
        yield "beam, adapted", size, of(BeamMarginalization(size), "adapted")
        yield "auto, document", size, of(DiscreteFilter(4 * size), "document")
        yield "particle filter, adapted", size, of(ParticleFilter(size), "adapted")
        for proposal in ("prior", "document"):
            name = f"annealing from {proposal}"
            yield name, size, of(AnnealedImportanceSampling(size), proposal)


def main() -> None:
    """Draw a model and its documents, and hold every estimator against the bounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True, help="folder")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    model = draw_model(args.seed)
    batch, topics = draw_documents(model)
    long, q = AnnealedImportanceSampling(REFERENCE), model.proposal("document")
    below = log_evidence(long.log_weights(Texts(model, q, batch, keys("below"))))
    latents = topics.expand(-1, long.chains, -1)
    reverse = long.reverse_log_weights(Texts(model, q, batch, keys("above")), latents)
    above = log_evidence_from_above(reverse)
    truth = (below + above) / 2
    gap = above - below
    print(f"reference: {below.mean():.3f} to {above.mean():.3f} nats a document;")
    print(f"gap {gap.mean():.3f} on average, {gap.abs().max():.3f} at most")
    rows = []
    for name, size, run in estimates(model, batch):
        begin = time.perf_counter()
        error = run() - truth
        seconds = (time.perf_counter() - begin) / DOCUMENTS
        spread = error.std().item() / math.sqrt(DOCUMENTS)
        rows.append((name, size, error.mean().item(), spread, seconds))
        print(
            f"{name:30} {size:6} {error.mean():9.3f} ± {spread:.3f} "
            f"{error.abs().max():9.3f} at most {1000 * seconds:9.1f} ms",
            flush=True,
        )
    with (args.output / "topic_models.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("estimator", "size", "error", "stderr", "seconds"))
        writer.writerows(rows)
    draw(rows, args.output / "topic_models.svg")


def draw(rows: list[tuple[str, int, float, float, float]], path: Path) -> None:
    """Draw errors against cost, an estimator a line."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "topic models"
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 5))
    names = list(dict.fromkeys(row[0] for row in rows))
    colours = plt.get_cmap("tab20")
    for n, name in enumerate(names):
        mine = [row for row in rows if row[0] == name]
        axes.errorbar(
            [1000 * row[4] for row in mine],
            [row[2] for row in mine],
            [row[3] for row in mine],
            marker="o",
            markersize=4,
            label=name,
            color=colours(n),
        )
    axes.axhline(0, color="0.6", linewidth=1)
    axes.set_xscale("log")
    axes.set_yscale("symlog", linthresh=0.1)
    axes.set_xlabel("milliseconds a document of 100 words")
    axes.set_ylabel("mean error of log p(x), nats")
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})


if __name__ == "__main__":
    main()
