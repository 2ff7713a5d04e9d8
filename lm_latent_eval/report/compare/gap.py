"""Where the difference of two models is: in which texts, and in what kinds of words."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from lm_latent_eval.estimators.paired import PairedDifference
from lm_latent_eval.report.compare.comparison import Part, TextComparison
from lm_latent_eval.report.compare.writing import bits
from lm_latent_eval.scoring.spans import Aligned

MOST = 5
"""Texts that are shown on either side."""
SEVERAL, ENDS = "several words", "ends of texts"
ROUNDING = 1e-3
"""Nats of a text that two ways to add up its words may differ by."""
KINDS = ("numbers", "names", "punctuation", "rare words", "other words", SEVERAL, ENDS)
_NUMBER, _LETTER = re.compile(r"\d"), re.compile(r"[^\W\d_]")
_FULL_STOP = re.compile(r"[.!?][\"')\]]*\s*$")


@dataclass(frozen=True)
class Kind:
    """What words of one kind have of a difference."""

    name: str
    words: int
    difference: PairedDifference
    """Of nats a byte of all text, so that kinds add up; with both errors."""
    share: float
    """Of the difference of all words."""


def texts_of(found: TextComparison, most: int = MOST) -> list[Part]:
    """Return the texts with most of the difference, on either side."""
    ordered = sorted(found.parts, key=lambda part: part.nats)
    ends = ordered[:most] + ordered[-most:] if len(ordered) > 2 * most else ordered
    return sorted(ends, key=lambda part: -abs(part.nats))


def words_of(part: Part) -> Iterator[tuple[str, Aligned | None]]:
    """Yield a text word by word, with what each has of the difference, if known.

    Words that no end of both models' parts tells apart stay together.
    """
    raw = part.text.encode("utf-8", "replace")
    joined: list[Aligned] = []
    for span in [*part.spans, None]:
        text = raw[span.start : span.end].decode("utf-8", "replace") if span else " "
        if joined and text[:1].isspace():
            word = raw[joined[0].start : joined[-1].end].decode("utf-8", "replace")
            error = math.hypot(*(each.draws_stderr for each in joined))
            nats = math.fsum(each.nats for each in joined)
            yield word, Aligned(joined[0].start, joined[-1].end, nats, error)
            joined = []
        if span:
            joined.append(span)
    done = part.spans[-1].end if part.spans else 0
    if rest := raw[done:].decode("utf-8", "replace"):
        yield rest, None


def kinds(found: TextComparison) -> list[Kind]:
    """Return what each kind of words has of the difference; none without spans."""
    parts = [part for part in found.parts if part.spans]
    if len(parts) < len(found.parts) or not parts:
        return []
    often = Counter(word for part in parts for word in _bare(part.text.split()))
    units = torch.tensor([part.bytes for part in parts])
    taken = {name: torch.zeros(len(parts), dtype=torch.float64) for name in KINDS}
    squares = {name: torch.zeros(len(parts), dtype=torch.float64) for name in KINDS}
    number: Counter[str] = Counter()
    for place, part in enumerate(parts):
        before = ""
        for text, span in words_of(part):
            if span is None:
                continue
            name = _kind(text, before, often)
            taken[name][place] += span.nats
            squares[name][place] += span.draws_stderr**2
            number[name] += 1
            before += text
        # What no word has: the end of a text, which one model may be charged for.
        left = part.nats - math.fsum(span.nats for span in part.spans)
        if abs(left) > ROUNDING:
            taken[ENDS][place] = left
            squares[ENDS][place] = part.draws_stderr**2
            number[ENDS] += 1
    total = sum(float(each.sum()) for each in taken.values())
    clusters = None if found.clusters is None else found.clusters.names
    return [
        Kind(
            name,
            number[name],
            PairedDifference.of(
                taken[name], units, draws_stderr=squares[name].sqrt(), clusters=clusters
            ),
            float(taken[name].sum()) / total if total else math.nan,
        )
        for name in KINDS
        if number[name]
    ]


def _bare(words: Sequence[str]) -> Iterator[str]:
    return (word.strip(".,;:!?\"'()[]") for word in words)


def _kind(text: str, before: str, often: Counter[str]) -> str:
    """Say what kind a part is; names are not told from words that begin a sentence."""
    words = text.split()
    if len(words) > 1:
        return SEVERAL
    [word] = words or [""]
    if _NUMBER.search(word):
        return "numbers"
    if not _LETTER.search(word):
        return "punctuation"
    begins = not before.strip() or bool(_FULL_STOP.search(before))
    if word[0].isupper() and word != "I" and not begins:
        return "names"
    [bare] = _bare([word])
    return "rare words" if often[bare] == 1 else "other words"


def lines(found: TextComparison) -> list[str]:
    """Say in a few lines where the difference is."""
    a, b = (side.name for side in found.sides)
    total = math.fsum(part.nats for part in found.parts)
    same = [part for part in found.parts if part.nats * total > 0]
    same.sort(key=lambda part: -abs(part.nats))
    reached = accumulate(part.nats for part in same)
    half = sum(abs(each) < abs(total) / 2 for each in reached) + 1
    said = []
    if same:
        said.append(
            f"  Half of {a} - {b} is in {half:,} of {len(found.parts):,} texts; most "
            "in "
            + ", ".join(
                f"{part.document} ({bits(part.nats):+.1f} ± "
                f"{bits(part.draws_stderr):.1g} bits)"
                for part in same[:3]
            )
            + "."
        )
    for kind in kinds(found):
        d = kind.difference
        said.append(
            f"  {kind.name} ({kind.words:,}): {bits(d.value):+.4f} ± "
            f"{bits(d.stderr):.4f} bits a byte (draws ± {bits(d.draws_stderr):.4f})"
        )
    return said
