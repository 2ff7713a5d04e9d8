"""Command that prints the gain of all segmentations, text by text and by place.

python -m lm_latent_eval.wrappers.tokens DIR --data texts.jsonl --option num_samples=32
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from lm_latent_eval.models.checkpoint import directory_of
from lm_latent_eval.scoring.options import parse_device, parse_dtype
from lm_latent_eval.text.corpora import read_texts
from lm_latent_eval.wrappers.tokens.gaps import Gap, Place, find
from lm_latent_eval.wrappers.tokens.modeling import SegmentedLM

PLACES = 10


def main(argv: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        prog="python -m lm_latent_eval.wrappers.tokens",
        description="What a causal LM gives to a string beside its canonical tokens.",
    )
    parser.add_argument("checkpoint", help="directory or hub repository of a causal LM")
    parser.add_argument("--data", type=Path, required=True, help="texts")
    parser.add_argument("--first", type=int, help="only so many texts")
    parser.add_argument("--batch-size", help="sequences read together")
    parser.add_argument("--device", help="cpu or cuda")
    parser.add_argument("--dtype", help="float32 or float64")
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="of latent_tokens; may be given again",
    )
    args = parser.parse_args(argv)
    try:
        options = dict(option.split("=", 1) for option in args.option)
    except ValueError:
        parser.error(f"--option: expected NAME=VALUE, not {args.option}")
    if options.get("estimator") == "canonical":
        parser.error("estimator=canonical looks at no other segmentation")
    try:
        texts = read_texts(args.data)[: args.first]
        model = SegmentedLM.open_directory(
            directory_of(args.checkpoint),
            dtype=parse_dtype(args.dtype),
            device=parse_device(args.device),
        )
        scorer = model.scorer(options, batch_size=args.batch_size)
        gaps = list(find(scorer, texts))
    except ValueError as err:
        parser.error(str(err))

    def written(place: Place) -> str:
        names = model.network.tokenizer.convert_ids_to_tokens
        return " -> ".join("|".join(names([*tokens])) for tokens in place)

    print(report(gaps, written))


def report(gaps: Sequence[Gap], written: Callable[[Place], str]) -> str:
    """Return a row a text, one of all, and the places that the gap comes from.

    Args:
        gaps: Of every text.
        written: How a place is shown.
    """
    rows = [
        "text     bytes  bits/byte canonical  marginal    gap %           on canonical"
    ]
    rows += [_row(str(n), gap) for n, gap in enumerate(gaps)]
    total = Gap.total(gaps)
    rows += [_row("all", total), "", "nats  of the gap, by place: canonical -> instead"]
    places = list(total.places.items())
    rows += [f"{nats:6.3f}  {written(place)}" for place, nats in places[:PLACES]]
    rest = sum(nats for _, nats in places[PLACES:])
    if rest:
        rows.append(f"{rest:6.3f}  {len(places) - PLACES} other places")
    return "\n".join(rows)


def _row(name: str, gap: Gap) -> str:
    error = gap.percent_stderr
    said = "N/A" if error is None else f"{error:.4f}"
    canonical = gap.bits_per_byte(gap.canonical)
    marginal = gap.bits_per_byte(gap.estimate.log_evidence)
    share = f"{gap.share:.4f}" if name != "all" else ""
    return (
        f"{name:6} {gap.num_bytes:7} {canonical:20.5f} {marginal:9.5f} "
        f"{gap.percent:8.4f} ± {said:7} {share:>10}"
    ).rstrip()


if __name__ == "__main__":
    main()
