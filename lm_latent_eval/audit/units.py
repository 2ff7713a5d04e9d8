"""Units: what answers and results count, and what a score does not charge."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterator

from lm_latent_eval.audit import material
from lm_latent_eval.audit.requests import Reply
from lm_latent_eval.audit.session import Session
from lm_latent_eval.audit.verdict import (
    CHARGED,
    COUNTS,
    Finding,
    Verdict,
    fails,
    holds,
    untold,
)

UNKNOWN = ("qzxvk", "wvvjqzzkx")
"""Two strings that are no words."""


def units(session: Session) -> Iterator[Finding]:
    """Count bytes and words, and look for strings that score the same."""
    yield _counts(session)
    yield _charged(session)


def counted(text: str) -> dict[str, int]:
    """Count a text as rates per byte and per word should."""
    return {"bytes": len(text.encode()), "words": max(len(text.split()), 1)}


def _counts(session: Session) -> Finding:
    texts = [*session.texts[: session.plan.texts], "caf\u00e9 na\u00efve \u2014 na ja"]
    compared = 0
    for text, reply in zip(texts, session.ask.score_texts(texts), strict=True):
        for unit, number in reply.counts.items():
            compared += 1
            if number != counted(text)[unit]:
                return fails(
                    COUNTS,
                    f"{text[:30]!r} has {counted(text)[unit]} {unit}, by its answer "
                    f"{number}",
                    text=text,
                    unit=unit,
                    counted=counted(text)[unit],
                    answered=number,
                )
    for finding in session.counted:
        if finding.verdict is Verdict.FAILS:
            return finding
    said = [f"{compared} counts of answers"] if compared else []
    said += [finding.said for finding in session.counted]
    if not said:
        return untold(COUNTS, "answers count nothing, and no --tasks were given")
    return holds(COUNTS, "; ".join(said))


def _variants(text: str) -> dict[str, tuple[str, str]]:
    """Return pairs of different strings, by what tells them apart."""
    cuts = material.cuts(text)
    cut = cuts[len(cuts) // 2] if cuts else len(text)
    accented = f"{text[:cut]} caf\u00e9{text[cut:]}"
    found = {
        "white space": (text, f"{text[:cut]} {text[cut:]}"),
        "line ends": (f"{text[:cut]} a{text[cut:]}", f"{text[:cut]}\na{text[cut:]}"),
        "casing": (text, text.swapcase()),
        "unknown words": (
            f"{text[:cut]} {UNKNOWN[0]}{text[cut:]}",
            f"{text[:cut]} {UNKNOWN[1]}{text[cut:]}",
        ),
        "composed characters": (accented, unicodedata.normalize("NFD", accented)),
        "spaces at the end": (text, f"{text} "),
    }
    return {name: pair for name, pair in found.items() if pair[0] != pair[1]}


def _charged(session: Session) -> Finding:
    text = session.texts[0]
    variants = _variants(text)
    asked = [string for pair in variants.values() for string in pair]
    replies = session.ask.score_texts(asked)
    free = {
        name: pair
        for n, (name, pair) in enumerate(variants.items())
        if _alike(replies[2 * n], replies[2 * n + 1])
    }
    first = text[: next(iter(material.cuts(text)), len(text))]
    [whole, begun] = session.ask.score([("", text), ("", first)])
    if begun.log_p > -1e-9 and not math.isnan(whole.log_p):
        free["the first word"] = ("", first)
    if all(math.isnan(reply.log_p) for reply in [*replies, whole, begun]):
        return untold(CHARGED, f"every text was refused: {replies[0].refused}")
    if not free:
        return holds(CHARGED, f"{', '.join(variants)}")
    return fails(
        CHARGED,
        f"not charged: {', '.join(free)}",
        scored_alike={name: list(pair) for name, pair in free.items()},
    )


def _alike(one: Reply, other: Reply) -> bool:
    """Whether two strings score the same but for rounding in double precision."""
    return math.isfinite(one.log_p) and math.isclose(
        one.log_p, other.log_p, rel_tol=1e-10, abs_tol=1e-10
    )
