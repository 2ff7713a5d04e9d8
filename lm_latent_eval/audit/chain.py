"""Causality and the chain rule: scores of wholes against scores of their parts."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np

from lm_latent_eval.audit.session import (
    ODD_CHARACTERS,
    Pair,
    Reply,
    Session,
    inside_words,
    request,
    word_ends,
)
from lm_latent_eval.audit.verdict import (
    BORDERS,
    DOCUMENTS,
    EXCESS,
    FOLLOWS,
    INSIDE,
    ROLLING,
    START,
    WINDOWS,
    Finding,
    Item,
    fails,
    holds,
    undetermined,
)

LONG = (300, 1200, 4800)
"""Characters of long texts: somewhere there most windows are full."""
PIECES = (1, 2, 4, 8)
"""Continuations that a long text is cut into, until none is refused as too long."""
LONGEST_WINDOW = 4096
"""Tokens of a window that is still filled, to see what its edges cost."""
FEWEST_WORDS = 8
"""Words that are one token, which would total their number if they cost nothing."""
TRIES = 20
"""Texts that are made, until a word of one ends where a window does."""
SEEN = 1.5
"""A total that fails; below it, other windows may have moved the words before."""
WORDS = 40
"""The most words of a text that is scored word by word."""


def causality(session: Session) -> Iterator[Finding]:
    """Test that a score does not depend on later text or on other requests."""
    yield _follows(session, session.rng("causality"))
    yield _documents(session)


def chain_rule(session: Session) -> Iterator[Finding]:
    """Test that the log p of a whole is the sum over its parts."""
    rng = session.rng("chain")
    yield _splits(session, BORDERS, _at_borders(session, rng))
    whole = session.places(session.plan.splits, rng)
    yield _splits(session, START, [("", *place) for place in whole])
    yield _splits(session, INSIDE, _inside(session, rng))
    rolling, ended = _rolling(session)
    yield rolling
    yield from _windows(session, ended=ended)


def difference(whole: Reply, *parts: Reply) -> float:
    """Return log p of a whole minus the log p of its parts, nats.

    Where both sides say that it cannot be, they agree; where one does, they are
    infinitely far apart. NaN where something was refused, or an error is not known.
    """
    if any(reply.lacking for reply in (whole, *parts)):
        return math.nan
    total = math.fsum(part.log_p for part in parts)
    if whole.log_p == total:
        return 0.0
    return whole.log_p - total


def _nats(gap: float) -> str:
    """Say which gap between two scores an item would have seen."""
    return f"a gap of {gap:.2g} nats"


# -- causality ------------------------------------------------------------------------


def _follows(session: Session, rng: np.random.Generator) -> Finding:
    """Compare log p(ab) - log p(b | a) over several b."""
    compared, refused, widest = 0, "", 0.0
    for context, rest in session.places(session.plan.contexts, rng):
        a = rest[: next(iter(session.cuts(rest)), len(rest))]
        followers = _followers(session, rest[len(a) :], rng)
        wholes = [(context, a + b) for b in followers]
        afters = [(context + a, b) for b in followers]
        whole, after = map(session.ask.score_each, (wholes, afters))
        sides = [*zip(whole, after, strict=True)]
        implied = [difference(*side) for side in sides]
        refused = next((r.lacking for r in (*whole, *after) if r.lacking), refused)
        usable = [n for n, value in enumerate(implied) if not math.isnan(value)]
        compared += len(usable)
        for n in usable[1:]:
            first, value = usable[0], implied[n]
            slack = session.slack(
                *sides[n], *sides[first], comparisons=session.plan.contexts * len(sides)
            )
            widest = max(widest, slack)
            if value != implied[first] and not abs(value - implied[first]) <= slack:
                return fails(
                    FOLLOWS,
                    f"{a!r} after {context[-30:]!r} scores {implied[first]:.6g} before "
                    f"{followers[first]!r} and {value:.6g} before {followers[n]!r}",
                    requests=_requests(
                        [wholes[first], afters[first], wholes[n], afters[n]],
                        [*sides[first], *sides[n]],
                    ),
                    scores=[implied[first], value],
                )
    if not compared:
        why = f"no request can be judged: {refused}"
        return undetermined(FOLLOWS, why if refused else "no text has several words")
    detail = f"{compared} continuations of {session.plan.contexts} texts"
    return holds(FOLLOWS, detail, _nats(widest))


def _followers(session: Session, rest: str, rng: np.random.Generator) -> list[str]:
    """Return continuations: the text's own, then words of other texts."""
    own = [rest] if rest else []
    words = session.after(rest or "a")
    others = [words[int(n)] for n in rng.permutation(len(words))]
    different = [other for other in others if other not in own]
    return [*own, *different][: session.plan.followers]


def _documents(session: Session) -> Finding:
    texts = [*session.texts[: session.plan.texts]]
    alone = [session.ask.score_texts([text])[0] for text in texts]
    if all(math.isnan(reply.log_p) for reply in alone):
        return undetermined(DOCUMENTS, f"every text was refused: {alone[0].refused}")
    forward = session.ask.score_texts(texts)
    backward = session.ask.score_texts(texts[::-1])[::-1]
    twice = session.ask.score_texts([*texts, *texts])[len(texts) :]
    for how, replies in (
        ("after others", forward),
        ("in another order", backward),
        ("a second time", twice),
    ):
        for text, one, other in zip(texts, alone, replies, strict=True):
            if math.isnan(one.log_p) or one.log_p == other.log_p:
                continue
            if not abs(one.log_p - other.log_p) <= session.rounding(one, other):
                return fails(
                    DOCUMENTS,
                    f"{text[:30]!r} scores {one.log_p:.8g} alone and "
                    f"{other.log_p:.8g} {how}",
                    texts=texts,
                    text=text,
                    how=how,
                    log_p=[one.log_p, other.log_p],
                )
    detail = f"{len(texts)} texts alone, together, reversed, twice"
    return holds(DOCUMENTS, detail, _nats(session.rounding(*alone[:1] * 2)))


# -- chain rule -----------------------------------------------------------------------

Split = tuple[str, str, str]
"""Context, a, b."""


def _at_borders(session: Session, rng: np.random.Generator) -> list[Split]:
    found = []
    for context, rest in session.places(session.plan.splits, rng):
        # A last word is followed by another text.
        if not session.cuts(rest):
            rest += f" {session.texts[0]}" if session.spaced else session.texts[0]
        cuts = session.cuts(rest)
        cut = cuts[int(rng.integers(len(cuts)))] if cuts else len(rest)
        found.append((context, rest[:cut], rest[cut:]))
    return [split for split in found if split[2]]


def _inside(session: Session, rng: np.random.Generator) -> list[Split]:
    """Split inside words, and inside characters of several code points."""
    found = []
    for n in range(session.plan.splits):
        text = session.texts[int(rng.integers(len(session.texts)))]
        cuts = word_ends(text)
        begin = cuts[int(rng.integers(len(cuts)))] if cuts else 0
        if n % 4 == 3:
            word = ODD_CHARACTERS[n // 4 % len(ODD_CHARACTERS)]
            middle = 1 + int(rng.integers(len(word) - 1))
            found.append((text[:begin], f" {word[:middle]}", word[middle:]))
            continue
        places = [place for place in inside_words(text) if place > begin + 1]
        if places:
            cut = places[int(rng.integers(len(places)))]
            found.append((text[:begin], text[begin:cut], text[cut:]))
    return found


def _splits(session: Session, item: Item, splits: Sequence[Split]) -> Finding:
    wholes: list[Pair] = [(c, a + b) for c, a, b in splits]
    firsts: list[Pair] = [(c, a) for c, a, _ in splits]
    seconds: list[Pair] = [(c + a, b) for c, a, b in splits]
    # Each alone: beside the same text cut elsewhere, some backends err (CUT).
    replies = map(session.ask.score_each, (wholes, firsts, seconds))
    worst, widest, compared, refused = 0.0, 0.0, 0, ""
    for n, found in enumerate(zip(*replies, strict=True)):
        refused = next((reply.lacking for reply in found if reply.lacking), refused)
        gap = difference(*found)
        if math.isnan(gap):
            continue
        compared += 1
        worst = max(worst, abs(gap))
        # Four items share the level of the part.
        slack = session.slack(*found, comparisons=4 * len(splits))
        widest = max(widest, slack)
        if abs(gap) > slack:
            _, a, b = splits[n]
            return fails(
                item,
                f"{a[-20:]!r} and {b[:20]!r} together score {gap:+.4g} nats more than "
                "one after the other",
                requests=_requests([wholes[n], firsts[n], seconds[n]], found),
                difference=gap,
            )
    if not compared:
        why = f"no split can be judged: {refused}" if splits else "no text has a place"
        return undetermined(item, why)
    others = f"; of others none can be judged: {refused}" if refused else ""
    detail = f"{compared} splits, {worst:.1g} nats off at most{others}"
    return holds(item, detail, _nats(widest))


def _rolling(session: Session) -> tuple[Finding, bool]:
    """Return what was found, and whether the end of a text is charged."""
    texts = [_clipped(text) for text in session.texts[: session.plan.texts]]
    wholes = session.ask.score_texts(texts)
    parts = session.ask.score([("", text) for text in texts])
    ends = []
    for text, whole, part in zip(texts, wholes, parts, strict=True):
        gap = difference(whole, part)
        slack = session.slack(whole, part, comparisons=4 * len(texts))
        if math.isnan(gap):
            continue
        if gap > slack:
            found = fails(
                ROLLING,
                f"{text[:30]!r} scores {gap:.4g} nats more as a rolling text than as a "
                "continuation of nothing",
                requests=_requests([("", text), ("", text)], [whole, part]),
                difference=gap,
            )
            return found, False
        # A closed list may hold an end itself.
        ended = -gap > slack and not session.options
        over = _over(session, text, slack - gap) if ended else None
        if over is not None:
            return over, True
        ends.append(-gap if -gap > slack else 0.0)
    if not ends:
        why = next((r.lacking for r in [*wholes, *parts] if r.lacking), "")
        return undetermined(ROLLING, f"no text can be judged: {why}"), False
    sees = _nats(slack)
    if not any(ends):
        detail = f"{len(ends)} texts; their ends are not charged"
        return holds(ROLLING, detail, sees), False
    mean = sum(ends) / len(ends)
    detail = f"{len(ends)} texts, and {mean:.3g} nats on average for the end of a text"
    return holds(ROLLING, detail, sees), True


def _over(session: Session, text: str, end: float) -> Finding | None:
    """Return a failure if an end of so many nats and what else follows exceed 1."""
    written = session.written(text, session.plan.written) or ()
    scored = session.listed(text, written=written)
    total = math.exp(-end) + math.fsum(
        reply.p * math.exp(-session.slack(reply, comparisons=len(scored)))
        for _, reply in scored
    )
    if total <= 1:
        return None
    return fails(
        ROLLING,
        f"{text[:30]!r} is charged at most {end:.3g} nats for its end, which totals at "
        f"least {total:.4g} with {len(scored)} other continuations",
        text=text,
        end=-end,
        total=total,
        options=[request(*one) for one in scored],
    )


def _requests(pairs: Sequence[Pair], replies: Sequence[Reply]) -> list[object]:
    return [request(*one) for one in zip(pairs, replies, strict=True)]


def _clipped(text: str) -> str:
    cuts = word_ends(text)
    return text if len(cuts) < WORDS else text[: cuts[WORDS - 1]]


def _excess(
    session: Session, text: str, gap: float, a_word: float, shown: Mapping[str, object]
) -> Finding:
    """Judge a whole that scores more than its parts.

    One that leaves tokens out does, by what each costs. Where windows forget what helps
    to predict, an honest one scores less; where that only confuses, it may score more,
    but not where it moves nothing.
    """
    if gap <= a_word / 2:
        return _edges(session)
    words = text.split() if session.spaced else [*text]
    space = " " if session.spaced else ""
    spans = [words[n : n + 16] for n in range(0, len(words) - 15, 16)][:8]
    pairs = [
        (space.join(span[begin:8]), space + space.join(span[8:]))
        for span in spans
        for begin in (0, 7)
    ]
    scores = np.array([reply.log_p for reply in session.ask.score(pairs)])
    gains = scores[::2] - scores[1::2]
    if not gains.size:
        return _edges(session)
    unused = bool((np.abs(gains) <= session.rounding()).all())
    if not unused and gains.mean() <= 2 * gains.std() / math.sqrt(len(gains)):
        return _edges(session)
    return fails(
        EXCESS,
        f"{gap:.4g} nats more than its parts where windows end; a word costs "
        f"{a_word:.3g}",
        **shown,
    )


def _edges(session: Session) -> Finding:
    """Test that the first and the last token of a window cost something.

    Texts that begin alike and go on with different words total at most what their
    beginning has. A word that is left out costs nothing, so that its alternatives total
    their number. Some backends read one token less than they say.
    """
    window = session.ask.backend.window
    if window is None or window > LONGEST_WINDOW:
        detail = f"windows of {window} tokens" if window else "of unknown length"
        return undetermined(EXCESS, f"where windows end is not looked at: {detail}")
    totals = []
    for length in (window, window - 1):
        for beginning, texts in _around_edge(session, length):
            start, *replies = session.ask.score_texts([beginning, *texts])
            if refused := next((r.lacking for r in (start, *replies) if r.lacking), ""):
                return undetermined(EXCESS, f"a full window: {refused}")
            log_p = [reply.log_p - start.log_p for reply in replies]
            totals.append(float(np.exp(np.logaddexp.reduce(log_p))))
            if totals[-1] > SEEN + session.slack(start, *replies):
                return fails(
                    EXCESS,
                    f"at the edge of a window of {length} tokens, {len(texts)} words "
                    f"total {totals[-1]:.3g}",
                    texts=texts,
                    log_p=log_p,
                )
    if not totals:
        return undetermined(EXCESS, "no word of a text ends where a window does")
    detail = f"words at edges of windows of {window} tokens total {max(totals):.3g}"
    return holds(EXCESS, detail)


def _around_edge(session: Session, length: int) -> Iterator[tuple[str, list[str]]]:
    """Yield texts that differ in the first, then in the last token at a window's edge.

    A first token ends its text. After a last token stands one more word, always the
    same: the most probable one of the first tokens.

    Yields:
        What the texts begin with, and the texts.
    """
    rng, count = session.rng("edges"), session.ask.backend.count_tokens
    space, one = " " if session.spaced else "", session.after("a")
    every = [w for t in session.texts for w in (t.split() if session.spaced else t)]
    for _ in range(TRIES):
        words = [str(word) for word in rng.choice(every, length)]
        begun = [space.join(words[:n]) for n in range(length)]
        text = begun[bisect_left(begun, length - 1, key=count)]
        longer = [text + word for word in one if count(text + word) == length]
        if count(text) != length - 1 or not longer:
            continue
        first = [w for w in one if count(longer[0] + w) == length + 1]
        if min(len(first), len(longer)) < FEWEST_WORDS:
            continue
        ends = [longer[0] + word for word in first[: session.plan.at_edges]]
        yield longer[0], ends
        scores = [reply.log_p for reply in session.ask.score_texts(ends)]
        likeliest = first[int(np.argmax(scores))]
        yield text, [t + likeliest for t in longer[: session.plan.at_edges]]
        return


def _cut(text: str, cuts: Sequence[int], num_parts: int) -> list[Pair]:
    """Cut a text into parts of about one length, each after those before it."""
    chosen = sorted({cuts[n * len(cuts) // num_parts] for n in range(1, num_parts)})
    ends = [0, *chosen, len(text)]
    return [(text[:a], text[a:b]) for a, b in pairwise(ends) if a < b]


def _windows(session: Session, *, ended: bool) -> Iterator[Finding]:
    """Compare long texts with the same text scored as a few continuations.

    Their words are shuffled, so that little is lost where a window forgets what came
    before. A scorer of windows may differ from its parts.
    """
    space, held = " " if session.spaced else "", 0
    rng, words = session.rng("windows"), [w for t in session.texts for w in t.split()]
    if not session.spaced:
        words = [*"".join(session.texts)]
    for length in LONG:
        number = 1 + length // max(1, len(space.join(words)))
        order = [int(n) for _ in range(number) for n in rng.permutation(len(words))]
        repeated = space.join(words[n] for n in order)
        cuts = [cut for cut in session.cuts(repeated) if cut <= length]
        if len(cuts) < 2:
            yield undetermined(WINDOWS, "no text has several words")
            yield undetermined(EXCESS, "no text has several words")
            return
        text = repeated[: cuts[-1]]
        [whole] = session.ask.score_texts([text])
        for number in PIECES:
            pairs = _cut(text, cuts[:-1], number)
            parts = session.ask.score(pairs)
            if not any(reply.refused for reply in parts):
                break  # none is longer than a window
        if refused := next((r.lacking for r in (whole, *parts) if r.lacking), ""):
            detail = f"up to {held} characters; of {len(text)} nothing: {refused}"
            yield undetermined(WINDOWS, detail)
            yield undetermined(EXCESS, detail)
            return
        gap = difference(whole, *parts)
        slack = session.slack(whole, *parts) + session.rounding() * len(cuts) / 10
        # An end that is charged makes the whole less probable, by an unknown amount.
        if gap > slack or (-gap > slack and not ended) or math.isnan(gap):
            shown = {
                "text": text,
                "log_p": whole.log_p,
                "parts": _requests(pairs, parts),
                "difference": gap,
            }
            between = f"between {held} and {len(text)} characters"
            yield fails(
                WINDOWS,
                f"{between} a window ends: the whole scores {gap:+.4g} nats more than "
                "its parts",
                **shown,
            )
            yield _excess(
                session, text, gap - slack, abs(whole.log_p) / len(cuts), shown
            )
            return
        held = len(text)
    yield holds(WINDOWS, f"up to {held} characters", _nats(slack))
    yield holds(EXCESS, f"no window ends up to {held} characters", _nats(slack))
