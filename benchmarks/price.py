"""What the default costs beside importance sampling of as many histories.

    python -m benchmarks.price [--models RNNG] [--texts 5] [--num-samples 100]

Texts are the demonstration's, and random words under small models of random weights, as
``enumerable.py`` has them. A row says how many histories the default holds of a text,
those of checks included; CPU seconds a text of the default and of ``is`` with as many
draws, the second of two calls; on how many texts both agree within 0.05 nats, and the
median ratio of their seconds on these (on all, if there are none).
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from typing import Any

import torch

import lm_latent_eval
from benchmarks.enumerable import KINDS
from benchmarks.estimators import altered
from lm_latent_eval.demo import CHECKPOINT
from lm_latent_eval.inference.importance import ImportanceSampling
from lm_latent_eval.inference.interface import Estimator, Texts
from lm_latent_eval.latent import Proposal
from lm_latent_eval.scoring.budget import method_of
from lm_latent_eval.scoring.options import ScoringOptions
from lm_latent_eval.scoring.scorer import Scorer
from lm_latent_eval.scoring.texts import Query
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.words import START, UNKNOWN

KGLM = "KGLM, demonstration"
PROPOSALS = {KGLM: "adapted", "EntityNLM": "adapted", "RNNG": "crf"}
AGREE = 0.05
"""Nats."""


def batches(name: str, number: int, length: int) -> tuple[Any, list[TokenBatch]]:
    """Return a model and texts, one in each batch."""
    if name != KGLM:
        kind, draw = KINDS[name], random.Random(0)
        words = [draw.choices([UNKNOWN, 4, 5], k=length) for _ in range(number)]
        texts = [[*text, *kind.end] for text in words]
        return kind.build(0, 0.5), [TokenBatch.collate([t], first=START) for t in texts]
    model = lm_latent_eval.load(CHECKPOINT, device="cpu").checkpoint
    scorer = Scorer(model, ScoringOptions(), quiet=True)
    asked = enumerate(altered(["as they are"], number, 0)["as they are"])
    cut = (scorer.cut.whole(Query(n, f"text/{n}", text)) for n, text in asked)
    return model.model, [scorer.evaluation.collate(text) for text in cut]


def timed(
    method: Estimator, model: Any, proposal: Proposal, batch: TokenBatch
) -> tuple[float, float]:
    """Return log p of a text, and CPU seconds of a second call."""
    for _ in range(2):
        begin = time.process_time()
        [row] = method.log_weights(Texts(model, proposal, batch, [0]))
        seconds = time.process_time() - begin
    length = int(batch.on_host[1])
    return method.estimate(row, length).log_evidence, seconds


def main() -> None:
    """Print a row for each model."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--texts", type=int, default=5)
    parser.add_argument("--words", type=int, default=10, help="of random texts")
    parser.add_argument("--num-samples", type=int, default=100)
    parser.add_argument(
        "--models", nargs="+", default=[*PROPOSALS], choices=[*PROPOSALS]
    )
    asked = parser.parse_args()
    torch.set_num_threads(1)
    options = ScoringOptions(num_samples=asked.num_samples)
    print("| model | histories | auto, s | is, s | agree | auto / is |")
    print("|---|---|---|---|---|---|")
    for name in asked.models:
        model, texts = batches(name, asked.texts, asked.words)
        default, other = model.proposal(), model.proposal(PROPOSALS[name])
        method = method_of(options, model.estimators, default)
        plain = ImportanceSampling(method.num_samples + method.beside)
        with torch.inference_mode():
            found = [
                timed(method, model, default, text) + timed(plain, model, other, text)
                for text in texts
            ]
        agree = [row for row in found if abs(row[0] - row[2]) <= AGREE]
        ratio = statistics.median(row[1] / row[3] for row in agree or found)
        seconds = (statistics.fmean(row[i] for row in found) for i in (1, 3))
        cells = [name, f"{plain.num_samples}", *(f"{each:.2f}" for each in seconds)]
        cells += [f"{len(agree)} of {len(found)}", f"{ratio:.1f}"]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
