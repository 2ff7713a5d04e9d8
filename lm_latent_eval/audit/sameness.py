"""Sameness: a score depends on its request alone, not on batch, order or cache."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

from lm_latent_eval.audit.session import Pair, Reply, Requester, Session, request
from lm_latent_eval.audit.verdict import (
    BATCHES,
    CACHE,
    CUT,
    ORDER,
    PADDING,
    REPEATED,
    WITHHELD,
    Finding,
    Item,
    fails,
    holds,
    undetermined,
)
from lm_latent_eval.files import one_line

SIZES = ("1", "3")
"""Batch sizes that a model is opened with."""


class Requests:
    """Continuations and texts that are requested in several ways."""

    def __init__(self, session: Session) -> None:
        """Choose them, of many lengths."""
        rng, number = session.rng("sameness"), session.plan.mixed
        self.pairs: list[Pair] = []
        for context, rest in session.places(number, rng):
            cuts = [*session.cuts(rest), len(rest)]
            pair = (context, rest[: cuts[int(rng.integers(len(cuts)))]])
            if "".join(pair) not in map("".join, self.pairs):
                self.pairs.append(pair)
        self.texts = [*session.texts[: session.plan.texts]]
        self.cut: list[tuple[Pair, Pair]] = []
        """Pairs of cuts of one text, each in two places."""
        for context, rest in self.pairs:
            if cuts := session.cuts(rest):
                second = (context + rest[: cuts[0]], rest[cuts[0] :])
                self.cut.append(((context, rest), second))
        self.order = [int(n) for n in rng.permutation(len(self.pairs))]
        long = max(session.texts, key=len)
        self.long: Pair = (long, f" {long}" if session.spaced else long)

    def replies(self, ask: Requester) -> list[Reply]:
        """Return the answers to all, in their order."""
        return [*ask.score(self.pairs), *ask.score_texts(self.texts)]


def sameness(session: Session) -> Iterator[Finding]:
    """Test that the same requests get the same scores in several ways."""
    requests, ask = Requests(session), session.ask
    pairs, texts, order = requests.pairs, requests.texts, requests.order
    base = requests.replies(ask)
    if all(math.isnan(reply.log_p) for reply in base):
        why = f"every request was refused: {base[0].refused}"
        yield from (undetermined(item, why) for item in _ITEMS)
        return

    def compare(item: Item, others: Mapping[str, list[Reply]]) -> Finding:
        return _compared(session, item, requests, base, others)

    again = requests.replies(ask)
    twice = ask.score(pairs * 2)[len(pairs) :] + ask.score_texts(texts)
    ways = {"in a second call": again, "a second time in one call": twice}
    yield compare(REPEATED, ways)
    moved = dict(zip(order, ask.score([pairs[n] for n in order]), strict=True))
    back = [moved[n] for n in range(len(pairs))] + ask.score_texts(texts[::-1])[::-1]
    yield compare(ORDER, {"in another order": back})
    alone = ask.score_each(pairs)
    alone += [reply for text in texts for reply in ask.score_texts([text])]
    beside = [ask.score([requests.long, pair])[1] for pair in pairs]
    beside += ask.score_texts(texts)
    yield compare(PADDING, {"alone": alone, "each beside a long one": beside})
    yield _cut(session, requests)
    yield _batches(session, requests, compare)
    yield _cached(session, requests, compare)
    yield _withheld(session)


_ITEMS = (REPEATED, ORDER, PADDING, CUT, BATCHES, CACHE, WITHHELD)


def _withheld(session: Session) -> Finding:
    """Ask what tasks asked, in another order and without their documents.

    Draws may belong to documents, so that printed errors may move a score.
    """
    answered = session.answered
    if not answered:
        return undetermined(WITHHELD, "no --tasks were given")
    order = [int(n) for n in session.rng("withheld").permutation(len(answered))]
    texts = [n for n in order if answered[n].is_text]
    pairs = [n for n in order if not answered[n].is_text]
    again = session.ask.score_texts([answered[n].pair[1] for n in texts])
    again += session.ask.score([answered[n].pair for n in pairs])
    worst = 0.0
    for n, reply in zip([*texts, *pairs], again, strict=True):
        pair, first = answered[n].pair, answered[n].reply
        if first.lacking or reply.lacking or first.log_p == reply.log_p:
            continue
        gap = abs(first.log_p - reply.log_p)
        if gap > session.slack(first, reply, comparisons=len(answered)):
            return fails(
                WITHHELD,
                f"{pair[1][:30]!r} scores {first.log_p:.8g} in its task, and "
                f"{reply.log_p:.8g} without its document",
                requests=[request(pair, first), request(pair, reply)],
            )
        worst = max(worst, gap)
    return holds(WITHHELD, f"{len(answered)} requests, {worst:.1g} nats off at most")


def _cut(session: Session, requests: Requests) -> Finding:
    for one, other in requests.cut[: session.plan.texts]:
        [alone] = session.ask.score([other])
        beside = session.ask.score([one, other])[1]
        if abs(alone.log_p - beside.log_p) > session.rounding(alone, beside):
            return fails(
                CUT,
                f"{other[1][:30]!r} scores {alone.log_p:.8g} alone, and "
                f"{beside.log_p:.8g} beside {one[1][:30]!r}",
                requests=[request(other, alone), request(other, beside)],
                beside={"context": one[0], "continuation": one[1]},
            )
    if not requests.cut:
        return undetermined(CUT, "no continuation has several words")
    return holds(CUT, f"{min(len(requests.cut), session.plan.texts)} texts")


def _batches(
    session: Session, requests: Requests, compare: Callable[..., Finding]
) -> Finding:
    batches = {}
    for size in SIZES:
        try:
            other = session.ask.over(session.ask.backend.reopened(batch_size=size))
        except Exception as err:  # of code that is not ours
            why = f"it cannot be opened with batch_size={size}: {one_line(err)}"
            return undetermined(BATCHES, why)
        batches[f"with batch_size={size}"] = requests.replies(other)
    return compare(BATCHES, batches)


def _cached(
    session: Session, requests: Requests, compare: Callable[..., Finding]
) -> Finding:
    try:
        with session.ask.backend.cached() as backend:
            other = session.ask.over(backend)
            filled, kept = requests.replies(other), requests.replies(other)
            ways = {"as a cache is filled": filled, "from a cache": kept}
            return compare(CACHE, ways)
    except Exception as err:  # of code that is not ours
        return undetermined(CACHE, f"it takes no cache: {one_line(err)}")


def _compared(
    session: Session,
    item: Item,
    requests: Requests,
    base: list[Reply],
    others: Mapping[str, list[Reply]],
) -> Finding:
    worst = 0.0
    for how, replies in others.items():
        for n, (one, other) in enumerate(zip(base, replies, strict=True)):
            if bool(one.refused) is not bool(other.refused):
                detail = one.refused or other.refused
                return fails(item, f"a request is refused only {how}: {detail}")
            if one.log_p == other.log_p or one.refused:
                continue
            gap = abs(one.log_p - other.log_p)
            if gap <= session.rounding(one, other):
                worst = max(worst, gap)
                continue
            pair = [*requests.pairs, *(("", text) for text in requests.texts)][n]
            return fails(
                item,
                f"{pair[1][:30]!r} scores {one.log_p:.8g}, and {other.log_p:.8g} {how}",
                kind="loglikelihood" if n < len(requests.pairs) else "rolling",
                how=how,
                requests=[request(pair, one), request(pair, other)],
            )
    detail = f"{len(base)} requests, {worst:.1g} nats off at most"
    gap = max((session.rounding(one, one) for one in base), default=0.0)
    return holds(item, detail, f"a gap of {gap:.2g} nats")
