"""Outputs beside scores: units, samples and printed errors.

Counts of bytes and words against the text, strings that score the same, ``is_greedy``
against totals, frequencies of samples against scores, and Monte Carlo errors against
what other seeds make of the same requests.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterator, Sequence

import numpy as np
from scipy.stats import binom, chi2

from lm_latent_eval.audit.session import (
    ERROR_UNKNOWN,
    Asked,
    Pair,
    Reply,
    Session,
    request,
    word_ends,
)
from lm_latent_eval.audit.verdict import (
    CHARGED,
    COUNTS,
    ERRORS,
    GREEDY,
    SAMPLES,
    Finding,
    Kind,
    Verdict,
    fails,
    holds,
    undetermined,
)
from lm_latent_eval.files import one_line

UNKNOWN = ("qzxvk", "wvvjqzzkx")
"""Two strings that are no words."""
TOKENS = 14
"""Of a sample; options that are judged are no longer than this less two, in bytes."""


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
    detail = [f"{compared} counts of answers"] if compared else []
    detail += [finding.detail for finding in session.counted]
    if not detail:
        return undetermined(COUNTS, "answers count nothing, and no --tasks were given")
    return holds(COUNTS, "; ".join(detail))


def _variants(text: str) -> dict[str, tuple[str, str]]:
    """Return pairs of different strings, by what tells them apart."""
    cuts = word_ends(text)
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
    first = text[: next(iter(word_ends(text)), len(text))]
    [whole, begun] = session.ask.score([("", text), ("", first)])
    if begun.log_p > -1e-9 and not math.isnan(whole.log_p):
        free["the first word"] = ("", first)
    if all(math.isnan(reply.log_p) for reply in [*replies, whole, begun]):
        return undetermined(CHARGED, f"every text was refused: {replies[0].refused}")
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


def samples(session: Session) -> Iterator[Finding]:
    """Compare generated samples with the scores of the same backend."""
    rng = session.rng("samples")
    yield _greedy(session, rng)
    yield _frequencies(session, rng)


def _asked(session: Session, context: str) -> Asked:
    options = session.following(context)[: session.plan.width]
    return session.asked(context, options)


# -- greedy ---------------------------------------------------------------------------


def _greedy(session: Session, rng: np.random.Generator) -> Finding:
    """Look for ``is_greedy`` answers that no distribution can give.

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
        likely = [
            one
            for one in asked
            if math.log(0.5) + session.slack(one[1], comparisons=comparisons)
            < one[1].log_p
        ]
        # In half precision the two best tokens often tie: each pass may prefer another.
        half = session.rounding(Reply(-1.0)) > session.rounding()
        tied = half and not any(one in likely for one in greedy)
        if len(greedy) > 1 and not tied:
            return _wrong(
                "two options that cannot both be written are greedy", greedy[:2]
            )
        for pair, reply in likely:
            if not reply.is_greedy:
                detail = f"{pair[1]!r} has p = {reply.p:.4g} > 1/2 and is not greedy"
                return _wrong(detail, [(pair, reply)])
        if len(greedy) != 1:
            continue
        [(pair, reply)] = greedy
        best = max(asked, key=lambda one: one[1].p)
        gap = best[1].log_p - reply.log_p
        slack = session.slack(best[1], reply, comparisons=comparisons)
        if session.kind is Kind.WORDS and gap > slack:
            detail = f"{pair[1]!r} is greedy and {best[0][1]!r} more probable"
            return _wrong(detail, [(pair, reply), best])
        if reply.error or tied:
            continue
        texts = session.ask.write(context, 1, tokens=TOKENS, sample=False)
        if texts is None or session.kind is Kind.ANSWERS:
            continue
        [text] = texts
        shared = _begins(text, pair[1]) or text.strip() == ""
        if not shared and len(pair[1].encode()) <= TOKENS - 2:
            detail = f"{pair[1]!r} is greedy, and greedily {text[:20]!r} is written"
            return _wrong(detail, [(pair, reply)])
    if not compared:
        return undetermined(GREEDY, "every request was refused")
    return holds(GREEDY, f"{compared} options of {session.plan.contexts} lists")


def _wrong(detail: str, asked: Asked) -> Finding:
    context = asked[0][0][0]
    return fails(
        GREEDY,
        f"after {context[-30:]!r}, {detail}",
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
    """Test how often samples begin with each option against its p.

    Exact binomial tests, whose level is shared equally. A scorer of one sequence of
    tokens a string, or of words with their spacing, scores a part of what writes the
    string: it may be written more often than it scores, never less often. A vocabulary
    of words scores unknown ones, and writes none: only those that it has written count.
    """
    if session.kind is Kind.ANSWERS:
        return undetermined(SAMPLES, "what is written before an answer is not scored")
    places = session.places(1, rng)
    context = places[0][0] if places else ""
    number = session.plan.samples
    texts = session.ask.write(context, number, tokens=TOKENS, sample=True)
    if texts is None:
        return undetermined(SAMPLES, "it writes no samples")
    asked = [
        (pair, reply)
        for pair, reply in _asked(session, context)
        if not math.isnan(reply.log_p) and len(pair[1].encode()) <= TOKENS - 2
    ]
    if not asked:
        return undetermined(SAMPLES, "no option was scored")
    asked = [(pair, reply) for pair, reply in asked if math.isfinite(reply.error)]
    if not asked:
        return undetermined(SAMPLES, ERROR_UNKNOWN)
    if not any(text[:1].isspace() for text in texts):
        texts = [f" {text}" for text in texts] if context else texts
    more, tests = None, 4 * (len(asked) + 1)
    rows = [(*one, _count(texts, one[0][1], session.kind)) for one in asked]
    if session.kind is Kind.WORDS:
        rows = [row for row in rows if row[2] > 0]
        if not rows:
            return undetermined(SAMPLES, f"none of {len(asked)} options was written")
    for pair, reply, count in rows:
        slack = session.slack(reply, comparisons=tests)
        low, high = (math.exp(min(reply.log_p + s, 0.0)) for s in (-slack, slack))
        few = binom.cdf(count, number, low)
        many = binom.sf(count - 1, number, high)
        if few < session.level / tests:
            return _unlike(pair, reply, count, number, few)
        if many < session.level / tests:
            more = more or (pair, reply, count, many)
    total = math.fsum(reply.p for _, reply, _ in rows)
    together = sum(count for *_, count in rows)
    sure = math.fsum(r.p * math.exp(-session.rounding(r)) for _, r, _ in rows)
    few = binom.cdf(together, number, min(sure, 1.0))
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
    return _unlike(*more[:3], number, more[3])


def _unlike(
    pair: Pair, reply: Reply, count: int, number: int, chance: float
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


def errors(session: Session) -> Iterator[Finding]:
    r"""Test printed Monte Carlo errors against the spread over seeds.

    With m requests, R seeds and errors :math:`s_{ir}`, the sum of
    :math:`(x_{ir} - \bar x_i)^2 / \bar{s_i^2}` is chi-square with m (R - 1) degrees of
    freedom if errors are normal and as printed. Only errors that are too small fail.
    """
    yield _errors(session)


def _errors(session: Session) -> Finding:
    # What is asked twice is answered alike, and counts once.
    places = session.places(session.plan.seeded, session.rng("errors"))
    pairs = [*dict.fromkeys(places)]
    replies = [session.ask.score(pairs)]
    if not any(reply.error for reply in replies[0]):
        return undetermined(ERRORS, "it prints none")
    for seed in range(1, session.plan.seeds):
        try:
            other = session.ask.backend.reopened(seed=str(seed))
        except Exception as err:  # of code that is not ours
            return undetermined(ERRORS, f"it takes no seed: {one_line(err)}")
        replies.append(session.ask.over(other).score(pairs))
    scores = np.array([[reply.log_p for reply in row] for row in replies])
    printed = np.array([[reply.error for reply in row] for row in replies])
    usable = np.isfinite(scores + printed).all(0) & (printed > 0).all(0)
    if not usable.any():
        return undetermined(ERRORS, "no request has one with every seed")
    spread = scores[:, usable].var(0, ddof=1)
    squares = (printed[:, usable] ** 2).mean(0)
    degrees = int(usable.sum()) * (len(replies) - 1)
    statistic = float((spread / squares).sum() * (len(replies) - 1))
    ratio = math.sqrt(statistic / degrees)
    if statistic <= chi2.isf(session.level, degrees):
        return holds(
            ERRORS,
            f"{len(replies)} seeds, {int(usable.sum())} requests: spread is "
            f"{ratio:.2g} of what is printed",
        )
    worst = int(np.argmax(np.where(usable, scores.var(0, ddof=1), -1)))
    return fails(
        ERRORS,
        f"{len(replies)} seeds spread {ratio:.3g} times as far as printed errors say",
        context=pairs[worst][0],
        continuation=pairs[worst][1],
        log_p=scores[:, worst].tolist(),
        stderr=printed[:, worst].tolist(),
    )
