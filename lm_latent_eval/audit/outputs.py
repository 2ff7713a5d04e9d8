"""Outputs beside scores: units, samples and printed errors.

Counts of bytes and words against the text, strings that score the same, ``is_greedy``
against totals, frequencies of samples against scores, and Monte Carlo errors against
what other seeds make of the same requests.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta, binom, chi2

from lm_latent_eval.audit.session import (
    ERROR_UNKNOWN,
    PROMISED_TEMPERATURE,
    PROMISED_TOTAL,
    SAMPLED,
    Reply,
    Scored,
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
TEMPERATURES = tuple(t / 100 for t in range(95, 25, -5))
"""Temperatures of scores that are more peaked than samples, the mildest first."""


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
    return holds(COUNTS, "; ".join(detail), "one byte or word")


def _variants(text: str) -> dict[str, tuple[str, str]]:
    """Return pairs of different strings, by what tells them apart."""
    cuts = word_ends(text)
    cut = cuts[len(cuts) // 2] if cuts else len(text)
    accented = f"{text[:cut]} caf\u00e9{text[cut:]}"
    variants = {
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
    return {name: pair for name, pair in variants.items() if pair[0] != pair[1]}


def _charged(session: Session) -> Finding:
    text = session.texts[0]
    variants = _variants(text)
    strings = [string for pair in variants.values() for string in pair]
    replies = session.ask.score_texts(strings)
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


# -- greedy ---------------------------------------------------------------------------


def _greedy(session: Session, rng: np.random.Generator) -> Finding:
    """Look for ``is_greedy`` answers that no distribution can give.

    Of a list of which one option at most can be true, at most one is what greedy
    decoding writes. An option of p above 1/2 has only units of p above 1/2, each the
    most probable. What is greedy is what greedy decoding writes, and the other way
    round, where that is the most probable of the list. Where options are single units
    (words of a vocabulary) the greedy one is the most probable.
    """
    compared, written = 0, 0
    # This item has half of the part's level, as the other one.
    comparisons = 2 * session.plan.contexts * (session.plan.width + 2)
    for context, rest in session.contexts(rng):
        [text] = session.written(context, 1, sample=False) or [""]
        listed = session.listed(context, rest, [text] if text else ())
        scored = [one for one in listed if not one[1].refused]
        if not scored:
            continue
        compared, written = compared + len(scored), written + (text != "")
        greedy = [one for one in scored if one[1].is_greedy]
        likely = [
            one
            for one in scored
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
        best = max(scored, key=lambda one: one[1].p)
        sure = text and not best[1].error and not tied
        if sure and text == best[0][1] and not best[1].is_greedy:
            detail = f"{text!r} is written greedily and is the most probable, but is "
            return _wrong(f"{detail}not greedy", [best])
        if len(greedy) != 1:
            continue
        [(pair, reply)] = greedy
        gap = best[1].log_p - reply.log_p
        slack = session.slack(best[1], reply, comparisons=comparisons)
        if session.kind is Kind.WORDS and gap > slack:
            detail = f"{pair[1]!r} is greedy and {best[0][1]!r} more probable"
            return _wrong(detail, [(pair, reply), best])
        if text and not reply.error and not tied:
            shared = _begins(text, pair[1]) or _begins(pair[1], text)
            if not shared:
                detail = f"{pair[1]!r} is greedy, and greedily {text!r} is written"
                return _wrong(detail, [(pair, reply)])
    if not compared:
        return undetermined(GREEDY, "every request was refused")
    return holds(
        GREEDY,
        f"{compared} options of {session.plan.contexts} lists, {written} of them with "
        "what is written greedily",
        "one wrong answer",
    )


def _wrong(detail: str, scored: Scored) -> Finding:
    context = scored[0][0][0]
    return fails(
        GREEDY,
        f"after {context[-30:]!r}, {detail}",
        requests=[
            {**request(pair, reply), "is_greedy": reply.is_greedy}
            for pair, reply in scored
        ],
    )


def _begins(text: str, option: str) -> bool:
    """Whether a text begins with an option, by a backend that may strip its texts."""
    return text.startswith(option) or text.lstrip().startswith(option.lstrip())


# -- samples --------------------------------------------------------------------------


@dataclass(frozen=True)
class Compared:
    """Options of one context, the most probable first, and how many samples are one."""

    scored: Scored
    p: NDArray[np.float64]
    """p of each, less what rounding and printed errors may add to it."""
    counts: NDArray[np.int64]
    """Samples that are each option."""
    number: int
    """Samples."""
    unseen: float
    """The most that an option has which is probably not listed."""

    @property
    def sizes(self) -> list[int]:
        """How many of the most probable options are compared together."""
        every = len(self.p)
        return sorted({every, *(2**n for n in range(every.bit_length()))})

    def most(self, level: float) -> NDArray[np.float64]:
        """Return the largest totals that the samples allow, one for each size."""
        together = self.counts.cumsum()[np.array(self.sizes) - 1]
        rest = np.maximum(self.number - together, 1e-12)
        return np.asarray(beta.isf(level, together + 1, rest))

    def totals(self, temperature: float = 1.0) -> NDArray[np.float64]:
        """Return totals of p, one for each size, if scores had another temperature."""
        rest = max(0.0, 1 - float(self.p.sum()))
        peaked = self.p ** (1 / temperature)
        if temperature != 1.0:
            peaked /= peaked.sum() + rest * self.unseen ** (1 / temperature - 1)
        return np.asarray(peaked.cumsum()[np.array(self.sizes) - 1])


def _frequencies(session: Session, rng: np.random.Generator) -> Finding:
    """Test whether samples are a list's most probable options as often as p says.

    A third of the samples chooses the options, the others are counted. A scorer of one
    sequence of tokens a string, or of words with their spacing, scores a part of what
    writes the string: it may be written more often than it scores, never less often. So
    the test is one-sided, of the best option, the two best, the four best and so on;
    of strings each option by itself must not be written more often, either.
    """
    if session.kind is Kind.ANSWERS:
        return undetermined(SAMPLES, "what is written before an answer is not scored")
    places = session.places(SAMPLED, rng) or [(session.texts[0], "")]
    contexts = []
    for context, rest in places:
        one = _compared(session, context, rest, rng)
        if isinstance(one, Finding):
            return one
        contexts.append(one)
    # Half of the part's level is that of greedy answers.
    tests = 2 * sum(len(one.sizes) + len(one.p) for one in contexts)
    level = session.level / tests
    factor, temperature = math.inf, 0.0
    for one in contexts:
        most, totals = one.most(level), one.totals()
        if (totals > most).any():
            k = int((totals / most).argmax())
            size = one.sizes[k]
            return _unlike(one.scored[:size], one.counts[:size], one.number, most[k])
        if session.kind is Kind.STRINGS:
            for n, ((_, reply), count) in enumerate(
                zip(one.scored, one.counts, strict=True)
            ):
                slack = session.slack(reply, comparisons=tests)
                high = math.exp(min(reply.log_p + slack, 0.0))
                if binom.sf(count - 1, one.number, high) < level:
                    return _unlike(
                        [one.scored[n]], one.counts[n : n + 1], one.number, high
                    )
        factor = min(factor, float((most / np.maximum(totals, 1e-300)).min()))
        seen = (t for t in TEMPERATURES if (one.totals(t) > most).any())
        temperature = max(temperature, next(seen, 0.0))
    number = sum(one.number for one in contexts)
    options = sum(len(one.p) for one in contexts)
    detail = f"{number} samples, {options} options of {len(contexts)} contexts"
    sees = f"p times {factor:.3g}"
    sees += f", a temperature of {temperature:g}" if temperature else ""
    if factor > PROMISED_TOTAL or temperature < PROMISED_TEMPERATURE:
        return undetermined(SAMPLES, f"{detail}: {sees} is the least seen", sees)
    return holds(SAMPLES, detail, sees)


def _compared(
    session: Session, context: str, rest: str, rng: np.random.Generator
) -> Compared | Finding:
    """Choose options by some samples, and count the others; say why that cannot be."""
    number = session.plan.samples // SAMPLED
    texts = session.written(context, number)
    if texts is None:
        return undetermined(SAMPLES, "it writes no samples")
    chosen, tested = texts[: number // 3], texts[number // 3 :]
    # What is not written at once is not counted; nor is a word that is unknown.
    listed = [
        o for o in session.listed(context, rest, chosen, rng) if o[0][1] in chosen
    ]
    scored = [one for one in listed if not math.isnan(one[1].log_p)]
    if not scored:
        return undetermined(SAMPLES, "no option was scored")
    scored = [one for one in scored if math.isfinite(one[1].error)]
    if not scored:
        return undetermined(SAMPLES, ERROR_UNKNOWN)
    scored = sorted(scored, key=lambda one: -one[1].p)
    tests = 4 * SAMPLED * len(scored)
    slacks = [session.slack(reply, comparisons=tests) for _, reply in scored]
    p = [r.p * math.exp(-s) for (_, r), s in zip(scored, slacks, strict=True)]
    counts = [tested.count(option) for (_, option), _ in scored]
    unseen = max(min(1 / max(1, len(chosen)), p[0]), 1e-12)
    return Compared(scored, np.array(p), np.array(counts), len(tested), unseen)


def _unlike(
    scored: Scored, counts: NDArray[np.int64], number: int, bound: float
) -> Finding:
    total = math.fsum(reply.p for _, reply in scored)
    context, first = scored[0][0]
    what = f"{first!r} has" if len(scored) == 1 else f"{len(scored)} options total"
    return fails(
        SAMPLES,
        f"after {context[-30:]!r} {what} p = {total:.4g}, and {counts.sum()} of "
        f"{number} samples are that (p at most {bound:.4g} by them)",
        context=context,
        total=total,
        count=int(counts.sum()),
        samples=number,
        requests=[request(*one) for one in scored],
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
            "errors printed "
            f"{math.sqrt(chi2.isf(session.level, degrees) / statistic):.2g} times too "
            "small",
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
