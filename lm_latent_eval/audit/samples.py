"""Greedy and samples: is_greedy against totals, frequencies against scores."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from scipy.stats import binom

from lm_latent_eval.audit.requests import Pair, Reply
from lm_latent_eval.audit.session import Session, request
from lm_latent_eval.audit.verdict import (
    GREEDY,
    SAMPLES,
    Finding,
    Kind,
    fails,
    holds,
    untold,
)

TOKENS = 14
"""Of a sample; options that are told are no longer than this less two, in bytes."""


def samples(session: Session) -> Iterator[Finding]:
    """Hold what a backend writes against what it scores."""
    rng = session.rng("samples")
    yield _greedy(session, rng)
    yield _frequencies(session, rng)


def _asked(session: Session, context: str) -> list[tuple[Pair, Reply]]:
    options = session.following(context)[: session.plan.width]
    pairs = [(context, option) for option in options]
    return [*zip(pairs, session.ask.score(pairs), strict=True)]


# -- greedy ---------------------------------------------------------------------------


def _greedy(session: Session, rng: np.random.Generator) -> Finding:
    """Look for what no distribution can call greedy.

    Of a prefix-free list at most one option is what greedy decoding writes. An option
    of p above 1/2 has only units of p above 1/2, each the most probable. What is greedy
    is what greedy decoding writes. Where options are single units (words of a
    vocabulary) the greedy one is the most probable.
    """
    compared = 0
    # This item has half of the part's level, as the other one.
    comparisons = 2 * session.plan.contexts * (session.plan.width + 1)
    for context in session.contexts(rng):
        asked = [one for one in _asked(session, context) if not one[1].refused]
        if not asked:
            continue
        compared += len(asked)
        greedy = [one for one in asked if one[1].is_greedy]
        if len(greedy) > 1:
            return _wrong(
                "two options that cannot both be written are greedy", greedy[:2]
            )
        for pair, reply in asked:
            over = reply.p > 0.5 * math.exp(
                session.slack(reply, comparisons=comparisons)
            )
            if over and not reply.is_greedy:
                said = f"{pair[1]!r} has p = {reply.p:.4g} > 1/2 and is not greedy"
                return _wrong(said, [(pair, reply)])
        if not greedy:
            continue
        [(pair, reply)] = greedy
        best = max(asked, key=lambda one: one[1].p)
        gap = best[1].log_p - reply.log_p
        slack = session.slack(best[1], reply, comparisons=comparisons)
        if session.kind is Kind.WORDS and gap > slack:
            said = f"{pair[1]!r} is greedy and {best[0][1]!r} more probable"
            return _wrong(said, [(pair, reply), best])
        if reply.error:
            continue
        texts = session.ask.write(context, 1, tokens=TOKENS, sample=False)
        if texts is None or session.kind is Kind.ANSWERS:
            continue
        [text] = texts
        shared = _begins(text, pair[1]) or text.strip() == ""
        if not shared and len(pair[1].encode()) <= TOKENS - 2:
            said = f"{pair[1]!r} is greedy, and greedily {text[:20]!r} is written"
            return _wrong(said, [(pair, reply)])
    if not compared:
        return untold(GREEDY, "every request was refused")
    return holds(GREEDY, f"{compared} options of {session.plan.contexts} lists")


def _wrong(said: str, asked: Sequence[tuple[Pair, Reply]]) -> Finding:
    context = asked[0][0][0]
    return fails(
        GREEDY,
        f"after {context[-30:]!r}, {said}",
        requests=[
            {**request(pair, reply), "is_greedy": reply.is_greedy}
            for pair, reply in asked
        ],
    )


def _begins(text: str, option: str) -> bool:
    """Whether a text begins with an option, by a backend that may strip its texts."""
    return text.startswith(option) or text.lstrip().startswith(option.lstrip())


# -- samples --------------------------------------------------------------------------


def _frequencies(session: Session, rng: np.random.Generator) -> Finding:
    """Count how often samples begin with each option, and hold it against its p.

    Exact binomial tests, whose level is shared equally. A scorer of one sequence of
    tokens a string, or of words with their spacing, scores a part of what writes the
    string: it may be written more often than it scores, never less often. A vocabulary
    of words scores unknown ones, and writes none: only those that it has written count.
    """
    if session.kind is Kind.ANSWERS:
        return untold(SAMPLES, "what is written before an answer is not scored")
    places = session.places(1, rng)
    context = places[0][0] if places else ""
    number = session.plan.samples
    texts = session.ask.write(context, number, tokens=TOKENS, sample=True)
    if texts is None:
        return untold(SAMPLES, "it writes no samples")
    asked = [
        (pair, reply)
        for pair, reply in _asked(session, context)
        if not math.isnan(reply.log_p) and len(pair[1].encode()) <= TOKENS - 2
    ]
    if not asked:
        return untold(SAMPLES, "no option was scored")
    if not any(text[:1].isspace() for text in texts):
        texts = [f" {text}" for text in texts] if context else texts
    more, tests = None, 4 * (len(asked) + 1)
    rows = [
        (pair, reply, _count(texts, pair[1], session.kind), reply.p)
        for pair, reply in asked
    ]
    if session.kind is Kind.WORDS:
        rows = [row for row in rows if row[2] > 0]
        if not rows:
            return untold(SAMPLES, f"none of {len(asked)} options was written")
    for pair, reply, count, p in rows:
        slack = math.exp(session.slack(reply, comparisons=tests))
        few = binom.cdf(count, number, min(p / slack, 1.0))
        many = binom.sf(count - 1, number, min(p * slack, 1.0))
        if few < session.level / tests:
            return _unlike(session, pair, reply, count, number, few)
        if many < session.level / tests:
            more = more or (pair, reply, count, many)
    total = math.fsum(p for *_, p in rows)
    together = sum(count for _, _, count, _ in rows)
    few = binom.cdf(together, number, min(total * math.exp(-session.tolerance), 1.0))
    if few < session.level / tests and not any(reply.error for _, reply in asked):
        return fails(
            SAMPLES,
            f"{len(rows)} options after {context[-30:]!r} total {total:.4g}; "
            f"{together} of {number} samples begin with one (p-value {few:.1g})",
            context=context,
            total=total,
            count=together,
            samples=number,
        )
    if more is None:
        return holds(SAMPLES, f"{number} samples, {len(rows)} options")
    if session.kind in (Kind.TOKENS, Kind.WORDS):
        return holds(
            SAMPLES,
            f"no option is too rare in {number}; {more[0][1]!r} is written "
            f"{more[2]} times at p = {more[1].p:.2g}: sub-normalized on strings",
        )
    return _unlike(session, *more[:3], number, more[3])


def _unlike(
    session: Session, pair: Pair, reply: Reply, count: int, number: int, chance: float
) -> Finding:
    return fails(
        SAMPLES,
        f"{pair[1]!r} has p = {reply.p:.4g} after {pair[0][-30:]!r}, and {count} of "
        f"{number} samples begin with it (p-value {chance:.1g})",
        **request(pair, reply),
        count=count,
        samples=number,
    )


def _count(texts: Sequence[str], option: str, kind: Kind) -> int:
    """Count the texts that begin with an option.

    Where it is a word, with it as a whole word, after whatever white space.
    """
    if kind is not Kind.WORDS:
        return sum(text.startswith(option) for text in texts)
    word = option.strip()
    goes_on = word[-1:].isalnum()
    return sum(
        text.startswith(word) and not (goes_on and text[len(word) :][:1].isalnum())
        for text in map(str.lstrip, texts)
    )
