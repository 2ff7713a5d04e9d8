"""Gap between the canonical segmentation and the string, by text and by place.

    gap = log p(s) - log p(canonical) = -log(share of p(s) on the canonical one)

The other segmentations differ from it in places: canonical tokens that one of them
writes as other tokens. A place counts for the share of p(s) that the segmentations with
it have, and the gap of a text is divided among its places in proportion to that.

python -m lm_latent_eval.wrappers.tokens DIR --data texts.jsonl --option num_samples=32
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lm_latent_eval.estimators import Estimate
from lm_latent_eval.models.checkpoint import directory_of
from lm_latent_eval.scoring.options import parse_device, parse_dtype
from lm_latent_eval.scoring.texts import Query
from lm_latent_eval.text.corpora import read_texts
from lm_latent_eval.wrappers.tokens.lattice import OVERRUN
from lm_latent_eval.wrappers.tokens.model import SegmentedLM, TokensScorer
from lm_latent_eval.wrappers.tokens.proposals import Stretch
from lm_latent_eval.wrappers.tokens.search import SegmentationWalk

TokenPath = list[tuple[int, int]]
"""Tokens, each with the node after it."""
Place = tuple[tuple[int, ...], tuple[int, ...]]
"""Canonical tokens, and those that another segmentation has instead."""
PLACES = 10


@dataclass(frozen=True)
class Gap:
    """A text by its canonical segmentation, and by all."""

    estimate: Estimate
    """Log p of the string, nats."""
    canonical: float
    """Log p of its canonical segmentation, nats."""
    num_bytes: int
    places: dict[Place, float]
    """Where others differ -> the share of p(s) that differs there."""

    @property
    def nats(self) -> float:
        """The gap; its error is the estimate's."""
        return self.estimate.log_evidence - self.canonical

    @property
    def share(self) -> float:
        """Of p(s) on the canonical segmentation."""
        return math.exp(min(-self.nats, 0.0))

    @classmethod
    def total(cls, gaps: Sequence[Gap]) -> Gap:
        """Put texts together; places are counted in nats of the gap then."""
        places = defaultdict[Place, float](float)
        for gap in gaps:
            everywhere = math.fsum(gap.places.values())
            for place, share in gap.places.items():
                places[place] += gap.nats * share / everywhere
        return cls(
            Estimate.product([gap.estimate for gap in gaps]),
            math.fsum(gap.canonical for gap in gaps),
            sum(gap.num_bytes for gap in gaps),
            dict(sorted(places.items(), key=lambda item: -item[1])),
        )


def find(scorer: TokensScorer, texts: Sequence[str]) -> Iterator[Gap]:
    """Yield the gap of every text, in their order.

    Args:
        scorer: Of any estimator but ``canonical``.
        texts: Strings.

    Raises:
        ValueError: If a text cannot be scored.
    """
    queries = [Query(n, f"text/{n}", text) for n, text in enumerate(texts)]
    for answer, walks in scorer.explore(queries):
        places = defaultdict[Place, float](float)
        for walk in walks:
            for path, share in _shares(walk):
                for place in _places(walk.stretch, path):
                    places[place] += share
        yield Gap(
            answer.estimate,
            answer.canonical or 0.0,
            len(texts[answer.index].encode()),
            dict(places),
        )


def _shares(walk: SegmentationWalk) -> Iterator[tuple[TokenPath, float]]:
    """Yield segmentations, found and drawn, with their estimated shares of p(s)."""
    inside = {spot.ending for spot in walk.found}
    outside = [
        (spot.path, log_w - math.log(len(walk.draws)))
        for spot, log_w in zip(walk.draws, walk.log_w.tolist(), strict=True)
        if spot.ending not in inside
    ]
    everything = [(spot.path, spot.log_p) for spot in walk.found] + outside
    log_p = np.array([log for _, log in everything])
    shares = np.exp(log_p - np.logaddexp.reduce(log_p))
    yield from zip((path for path, _ in everything), shares.tolist(), strict=True)


def _places(stretch: Stretch, path: TokenPath) -> Iterator[Place]:
    """Yield where a segmentation differs from the canonical one.

    A token that overruns the string stands for all that do, and is no other one.
    """
    nodes = stretch.lattice.nodes(stretch.canonical)
    plain = dict(zip(nodes, stretch.canonical, strict=True))
    theirs = {node: token for token, node in path}
    common = sorted(plain.keys() & theirs.keys())
    before = stretch.lattice.start
    for node in common:
        one, other = _between(plain, before, node), _between(theirs, before, node)
        if one != other and OVERRUN not in other:
            yield one, other
        before = node


def _between(tokens: dict[int, int], first: int, last: int) -> tuple[int, ...]:
    return tuple(tokens[node] for node in sorted(tokens) if first < node <= last)


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
    bits = -1 / math.log(2) / gap.num_bytes
    percent = -100 / gap.canonical  # of the canonical segmentation's bits
    error = gap.estimate.stderr
    said = "N/A" if error is None else f"{percent * error:.4f}"
    share = f"{gap.share:.4f}" if name != "all" else ""
    return (
        f"{name:6} {gap.num_bytes:7} {bits * gap.canonical:20.5f} "
        f"{bits * gap.estimate.log_evidence:9.5f} {percent * gap.nats:8.4f} ± "
        f"{said:7} {share:>10}"
    ).rstrip()


if __name__ == "__main__":
    main()
