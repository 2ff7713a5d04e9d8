"""Printed intervals of defaults, held against texts whose latents can all be listed.

    python -m benchmarks.enumerable
    python -m benchmarks.enumerable --kinds "RNNG" --num-samples 20 --seeds 8

draws models of random weights, small and of several spreads, and random texts of them.
The truth is the sum over every latent. For each kind of model the table says how many
95 % intervals do not hold it, how many texts have none, the median error and half-width
in nats, the texts that more than half of the seeds refute, and CPU seconds a text.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from scipy.stats import t as student

from lm_latent_eval.estimators import Estimate
from lm_latent_eval.inference.interface import Texts
from lm_latent_eval.inference.streams import stream_key
from lm_latent_eval.models.lda.modeling import LDA
from lm_latent_eval.scoring.budget import method_of
from lm_latent_eval.scoring.options import ScoringOptions
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.words import END, START, UNKNOWN
from tests.models.entitynlm import tiny as tiny_entitynlm
from tests.models.lda import tiny as tiny_lda
from tests.models.rnng import reference as tiny_rnng
from tests.tiny_models import randomised

MODELS, TEXTS = 10, 10
SPREADS = (0.7, 1.0, 1.5)
"""Standard deviations of weights."""
NOTHING = 1e-6
"""Nats that rounding moves a sum by."""
LISTED = 1 << 14
"""Latents that are scored together."""


@dataclass(frozen=True)
class Kind:
    """Models of one kind."""

    build: Callable[[int, float], Any]
    """Seed and spread -> a model."""
    latents: Callable[[int], Any]
    """Words of a text -> every latent."""
    words: tuple[int, int]
    """The shortest and the longest text."""
    end: tuple[int, ...] = ()


def entitynlm(seed: int, spread: float) -> Any:
    """Return a model of which nearly every token is a mention."""
    return randomised(tiny_entitynlm.entitynlm(), seed, spread)


def lda(seed: int, spread: float) -> LDA:
    """Return a model of three topics."""
    model, draw = tiny_lda.lda(), torch.Generator().manual_seed(seed)
    model.log_topics.normal_(0, spread, generator=draw)
    model.log_alpha.uniform_(math.log(0.05), math.log(2), generator=draw)
    return model


def rnng(*, ends: bool) -> Kind:
    """Return grammars with or without sentence ends."""
    how = "eos" if ends else "no_eos"
    return Kind(
        lambda seed, spread: tiny_rnng.tiny(
            seed=seed, spread=spread, sentence_ends=ends
        ),
        lambda words: tiny_rnng.trees([tiny_rnng.every_tree(words)], how),
        (7, 10),
        (END,) * ends,
    )


KINDS = {
    "RNNG": rnng(ends=True),
    "RNNG without sentence ends": rnng(ends=False),
    "EntityNLM": Kind(
        entitynlm,
        lambda words: tiny_entitynlm.every_chain(words, tiny_entitynlm.MAX_LENGTH),
        (5, 7),
    ),
    "LDA": Kind(lda, tiny_lda.every_topic, (6, 10)),
}


def log_p(model: Any, text: list[int], latents: Any) -> float:
    """Sum over every latent of a text."""
    encoded = model.encode(TokenBatch.collate([text], first=START))
    parts = (latents,) if isinstance(latents, torch.Tensor) else latents
    rows = zip(*(part.split(LISTED, 1) for part in parts), strict=True)
    found = [
        model.log_joint(encoded, row[0] if parts == (latents,) else type(latents)(*row))
        for row in rows
    ]
    return torch.cat(found, 1).logsumexp(1).item()


def half_width(estimate: Estimate) -> float | None:
    """Return half of a 95 % interval, nats."""
    if estimate.stderr is None or estimate.missed is None:
        return None
    wide = student.ppf(0.975, min(estimate.draws_degrees, 1e9))
    return math.hypot(wide * estimate.draws_stderr, 1.96 * estimate.missed)


@dataclass(frozen=True)
class Trial:
    """One estimate of a text."""

    text: tuple[int, int]
    """Model and text."""
    error: float
    half: float | None
    seconds: float

    @property
    def is_refuted(self) -> bool:
        """Whether an interval is printed that does not hold the truth."""
        return self.half is not None and abs(self.error) > self.half + NOTHING


def trials(kind: Kind, options: ScoringOptions, seeds: int) -> Iterator[Trial]:
    """Estimate texts by the default of their model."""
    for seed in range(MODELS):
        model = kind.build(seed, SPREADS[seed % len(SPREADS)])
        proposal = model.proposal()
        method = method_of(options, model.estimators, proposal)
        draw = random.Random(seed)
        for n in range(TEXTS):
            words = draw.choices([UNKNOWN, 4, 5], k=draw.randint(*kind.words))
            text = [*words, *kind.end]
            truth = log_p(model, text, kind.latents(len(words)))
            batch = TokenBatch.collate([text], first=START)
            for again in range(seeds):
                begin = time.process_time()
                key = stream_key(again, f"{seed}/{n}")
                [row] = method.log_weights(Texts(model, proposal, batch, [key]))
                estimate = method.estimate(row, len(text))
                seconds = time.process_time() - begin
                error = estimate.log_evidence - truth
                yield Trial((seed, n), error, half_width(estimate), seconds)


def main() -> None:
    """Print a row for each kind of model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", nargs="+", default=[*KINDS], choices=[*KINDS])
    parser.add_argument("--num-samples", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--estimator", help="another than the default")
    args = parser.parse_args()
    torch.set_num_threads(1)
    options = ScoringOptions(num_samples=args.num_samples, estimator=args.estimator)
    print("| model | not held | N/A | error | half-width | by most seeds | CPU s |")
    print("|---|---|---|---|---|---|---|")
    for name in args.kinds:
        with torch.inference_mode():
            found = list(trials(KINDS[name], options, args.seeds))
        told = [trial.half for trial in found if trial.half is not None]
        refuted = [trial.text for trial in found if trial.is_refuted]
        often = {text for text in refuted if refuted.count(text) > args.seeds / 2}
        error = statistics.median(abs(trial.error) for trial in found)
        half = statistics.median(told) if told else math.nan
        seconds = statistics.fmean(trial.seconds for trial in found)
        print(
            f"| {name} | {len(refuted)} of {len(told)} | {len(found) - len(told)} "
            f"| {error:.4f} | {half:.4f} | {len(often)} | {seconds:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
