"""Whether printed errors hold: how often their intervals have the reference in them.

    python -m lm_latent_eval.demo --out results/world
    python benchmarks/errors.py --data results/world/test.jsonl --every 5

Every text has a reference (``references.py``), whose own error is added to that which
is judged. Texts of which no error is printed are counted. An interval is 1.96 standard
errors to either side, widened as Student's t asks where few passes told the draws'. Of
what draws alone tell, ``draws_stderr``, the same share stands beside it.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Sequence
from pathlib import Path

import torch
from estimators import estimates, holds
from references import ELSEWHERE, Reference, of_texts, texts_of

import lm_latent_eval
from lm_latent_eval.demo import CHECKPOINT
from lm_latent_eval.estimators import CorpusRate, Estimate

SETTINGS = (
    "auto,adapted,100",
    "auto,adapted,1000",
    "mixed,adapted,100",
    "mixed,smoothing,100",
    "is,adapted,100",
    "is,smoothing,100",
    "smc,adapted,100",
)


def row(setting: str, runs: Sequence[list[Estimate]], truth: list[Reference]) -> str:
    """Return a setting's line of the table."""
    held, alone, widths, numbers = [], [], [], []
    for found in runs:
        pairs = [*zip(found, truth, strict=True)]
        held += [holds(e, e.missed, t) for e, t in pairs if e.stderr is not None]
        alone += [holds(e, 0.0, t) for e, t in pairs]
        widths += [e.stderr for e in found if e.stderr is not None]
        tokens = torch.tensor([e.num_tokens for e in found])
        rate = CorpusRate.perplexity(found, tokens)
        error = rate.monte_carlo_stderr
        shown = "N/A" if error is None else f"{error:.{_digits(error)}f}"
        numbers.append(f"{rate.value:.{_digits(error or rate.value / 1e3)}f} ± {shown}")
    unknown = 1 - len(held) / (len(runs) * len(truth))
    cells = [
        setting,
        "; ".join(numbers),
        f"{sum(held) / len(held):.1%}" if held else "",
        f"{statistics.median(widths):.3f}" if widths else "",
        f"{unknown:.1%}",
        f"{sum(alone) / len(alone):.1%}",
    ]
    return f"| {' | '.join(cells)} |"


def _digits(error: float) -> int:
    return max(0, 1 - math.floor(math.log10(error))) if error else 4


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pretrained", type=Path, default=CHECKPOINT)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--every", type=int, default=1, help="score one text of these")
    parser.add_argument("--skip", type=int, default=0, help="texts before the first")
    parser.add_argument("--most", type=int, default=40, help="texts")
    parser.add_argument("--words", type=int, default=64, help="of a text, at most")
    parser.add_argument("--width", type=int, default=1000, help="of reference beams")
    parser.add_argument("--draws", type=int, default=20_000, help="of references")
    parser.add_argument("--references", type=Path, help="where they are kept")
    parser.add_argument("--reference", help="a setting instead, of another seed")
    parser.add_argument("--seeds", type=int, default=3, help="how many")
    parser.add_argument("--seed", type=int, default=0, help="the first of them")
    parser.add_argument("--settings", nargs="+", default=SETTINGS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    checkpoint = lm_latent_eval.load(arguments.pretrained).checkpoint
    texts = texts_of(
        checkpoint,
        arguments.data,
        every=arguments.every,
        most=arguments.most,
        words=arguments.words,
        skip=arguments.skip,
    )
    if arguments.reference:
        found = estimates(checkpoint, texts, arguments.reference, ELSEWHERE)
        truth = [
            Reference(e.log_evidence, e.draws_stderr, 0.0, e.num_samples) for e in found
        ]
    else:
        truth = of_texts(
            checkpoint,
            texts,
            width=arguments.width,
            most=arguments.draws,
            kept=arguments.references,
        )
    tokens = sum(len(text.words) for text in texts)
    nats = -math.fsum(t.log_p for t in truth) / tokens
    loose = sum(t.stderr > 0.02 for t in truth)
    print(
        f"{len(texts)} texts, {tokens:,} tokens; reference perplexity "
        f"{math.exp(nats):.4f}, {loose} references with an error above 0.02 nats\n\n"
        "| setting | perplexity ± Monte Carlo, by seed | intervals that hold "
        "| median ± of a text, nats | no error printed | of `draws_stderr`, hold |\n"
        "|---|---|---|---|---|---|"
    )
    for setting in arguments.settings:
        runs = [
            estimates(checkpoint, texts, setting, arguments.seed + n)
            for n in range(arguments.seeds)
        ]
        print(row(setting, runs, truth), flush=True)


if __name__ == "__main__":
    main()
