"""What the default's constants move, each halved and doubled.

    python -m benchmarks.constants [--texts 20] [--constants FEWEST LIKELY]

Texts are the demonstration's, as they are and with names swapped. A row says how many
95 % intervals a reference with other random numbers refutes, how many texts have none,
the median error and half-width in nats, the largest error, and CPU seconds a text. A
constant of which neither row differs from the first is of no use.
``benchmarks/large_world.py`` does the same for the limits of KGLM's candidates.
"""

from __future__ import annotations

import argparse
import statistics
from unittest import mock

import torch

import lm_latent_eval
from benchmarks.estimators import REFERENCE, Row, Scores, altered, scored
from lm_latent_eval.demo import CHECKPOINT
from lm_latent_eval.inference import cuts, discrete

MODULES = {
    "COARSE": discrete,
    "FINE": discrete,
    "FINEST": discrete,
    "AGREE": discrete,
    "LIKELY": discrete,
    "MOST_FOUND": discrete,
    "MOST_FOUND_SHARE": discrete,
    "WIDEST": discrete,
    "WIDEST_SHARE": discrete,
    "FEWEST": cuts,
}
KINDS = ("as they are", "names swapped")
METHOD = "auto,100"


def line(name: str, scores: Scores) -> str:
    """Return a row of the table."""
    half = [row["half"] for n, row in scores.rows.items() if n in scores.told]
    error = statistics.median(map(abs, scores.below.values()))
    seconds = statistics.fmean(row["seconds"] for row in scores.rows.values())
    cells = [name, f"{len(scores.refuted)}", f"{len(scores.rows) - len(half)}"]
    cells += [f"{error:.5f}", f"{statistics.median(half):.5f}" if half else "N/A"]
    return f"| {' | '.join([*cells, f'{scores.worst:.3f}', f'{seconds:.2f}'])} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--texts", type=int, default=20, help="of each kind")
    parser.add_argument(
        "--constants", nargs="*", default=[*MODULES], choices=[*MODULES]
    )
    asked = parser.parse_args()
    torch.set_num_threads(1)
    model = lm_latent_eval.load(CHECKPOINT, device="cpu").checkpoint
    kinds = altered(KINDS, asked.texts, 7).values()
    texts = [text for some in kinds for text in some]

    def rows(method: str, seed: int) -> dict[int, Row]:
        found = (scored(model, text, method, 2 * n + seed) for n, text in each)
        return dict(zip(range(len(texts)), found, strict=True))

    each = [*enumerate(texts)]
    scored(model, texts[0], METHOD, 0)  # compiles
    best = rows(REFERENCE, 1)
    head = ["constant", "refuted", "N/A", "error", "half-width", "worst", "CPU s"]
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
    print(line("as they are", Scores("", METHOD, rows(METHOD, 0), best)), flush=True)
    for name in asked.constants:
        was = getattr(MODULES[name], name)
        for factor in (0.5, 2):
            value = type(was)(was * factor)
            with mock.patch.object(MODULES[name], name, value):
                found = Scores("", METHOD, rows(METHOD, 0), best)
            print(line(f"{name} = {value:g}", found), flush=True)


if __name__ == "__main__":
    main()
