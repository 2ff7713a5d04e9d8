r"""Normalization: p of mutually exclusive options totals at most 1.

E-processes against a total of at most 1: betting on scores of drawn options.

Options y of a set are drawn without replacement, y_t from r_t over those unseen. With
S_t the total of those seen,

.. math:: X_t = S_t + p(y_t) / r_t(y_t)

has the mean :math:`\sum_y p(y)` whatever was seen before, and is never negative: it
is p/q for the mixture q of what is known and a floor r_t, with the known part taken for
its mean. So if p totals at most 1 in every set, the wealth

.. math:: W_T = \prod_{t \le T} (1 + \lambda_t (X_t - 1)), \qquad \lambda_t \in [0, 1]

with :math:`\lambda_t` chosen from the past alone is a non-negative supermartingale that
begins at 1, and exceeds :math:`1/\alpha` at any time with probability at most
:math:`\alpha` (Ville). :math:`\lambda_t` is the mean of a grid, each weighted by what
betting it would have earned, so that :math:`W_T` is the mean of the grid's wealths:
within a factor of the grid's size of the best.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from lm_latent_eval.audit.session import (
    ERROR_UNKNOWN,
    PROMISED_TOTAL,
    Reply,
    Scored,
    Session,
    inside_words,
    request,
)
from lm_latent_eval.audit.verdict import (
    CODE_POINTS,
    COMPLETE,
    LARGE,
    LISTS,
    Finding,
    Item,
    fails,
    holds,
    undetermined,
)

BETS = (0.01, 0.03, 0.1, 0.3, 0.6, 1.0)
PRINTABLE = [chr(code) for code in range(0x20, 0x7F)]
SURROGATES = range(0xD800, 0xE000)
"""Code points that are no characters."""
NUM_CODE_POINTS = 0x110000
BATCH = 25
"""Draws that are asked for together."""


class Wealth:
    """The wealth of a bettor against totals of at most 1.

    Example:
        >>> wealth = Wealth()
        >>> for _ in range(100):
        ...     wealth.bet(1.05)  # every draw says that the total is 1.05
        >>> wealth.log > 3
        True
    """

    def __init__(self) -> None:
        self._logs = [0.0] * len(BETS)
        self.most = 0.0
        """The logarithm of the most it was."""
        self.draws, self._sum = 0, 0.0
        self._ratios: list[float] = []

    @property
    def log(self) -> float:
        most = max(self._logs)
        total = math.fsum(math.exp(log - most) for log in self._logs)
        return most + math.log(total / len(BETS))

    def bet(self, ratio: float) -> None:
        """Take in one X, of mean at most 1 under the claim."""
        ratio = min(ratio, 1e300)
        for n, bet in enumerate(BETS):
            kept = 1 + bet * (ratio - 1)
            self._logs[n] += math.log(kept) if kept > 0 else -math.inf
        self.draws, self._sum = self.draws + 1, self._sum + ratio
        self.most = max(self.most, self.log)
        self._ratios.append(ratio)

    @property
    def mean(self) -> float:
        """The mean X: an unbiased estimate of the average total."""
        return self._sum / self.draws if self.draws else math.nan

    def exceeds(self, level: float) -> bool:
        """Whether it ever was above 1 / level."""
        return self.most > -math.log(level)

    def smallest(self, level: float) -> float:
        """Return the factor by which all p would have to be too high to be noticed.

        It is one of 1.01, 1.01^2 and so on; infinite if 1e4 would not be enough.
        """
        ratios = np.minimum(np.asarray(self._ratios), 1e100)
        bets = np.asarray(BETS)[:, None]

        def noticed(power: int) -> bool:
            grown = 1 + bets * (1.01**power * ratios - 1)
            with np.errstate(divide="ignore"):
                logs = np.log(np.maximum(grown, 0.0)).cumsum(1)
            return bool((logsumexp(logs, axis=0) - math.log(len(BETS))).max() > limit)

        limit, most = -math.log(level), round(math.log(1e4) / math.log(1.01))
        if not len(ratios) or not noticed(most):
            return math.inf
        return 1.01 ** bisect_left(range(most), True, key=noticed)


class DrawnSet:
    """A set of options that is too large to score in full, sampled instead.

    Args:
        weights: Weights of the draws, shape (N,), positive, up to a constant: the
            nearer to p, the sooner a total above 1 is found.
        floor: Share of a uniform distribution that is mixed in.
    """

    def __init__(
        self, weights: Sequence[float] | NDArray[np.float64], floor: float = 0.1
    ) -> None:
        rates = np.asarray(weights, dtype=float)
        rates = (1 - floor) * rates / rates.sum() + floor / len(rates)
        self._rates, self._ends = rates, rates.cumsum()
        self._seen: set[int] = set()
        self._seen_rate = 0.0
        self.total = 0.0
        """Total p of the options seen."""

    def draw(self, number: int, rng: np.random.Generator) -> list[tuple[int, float]]:
        """Draw unseen options, each with the rate r at which it was drawn.

        The answers to them may all be waited for: none decides which is drawn.
        """
        drawn: list[tuple[int, float]] = []
        while len(drawn) < number and len(self._seen) < len(self._rates):
            left = 1 - self._seen_rate
            if left < 1e-9:
                break
            index = self._unseen(rng)
            drawn.append((index, float(self._rates[index]) / left))
            self._seen.add(index)
            self._seen_rate += float(self._rates[index])
        return drawn

    def _unseen(self, rng: np.random.Generator) -> int:
        while True:
            position = np.searchsorted(
                self._ends, rng.random() * self._ends[-1], "right"
            )
            index = min(int(position), len(self._rates) - 1)
            if index not in self._seen:
                return index

    def ratio(self, p: float, rate: float) -> float:
        """Take in the p of an option, in the order drawn; return X."""
        ratio = self.total + p / rate
        self.total += p
        return ratio


def normalization(session: Session) -> Iterator[Finding]:
    """Ask for totals of lists, of large sets and of code points."""
    rng = session.rng("normalization")
    lists = [
        session.listed(context, rest, _written(session, context), rng)
        for context, rest in session.contexts(rng)
    ]
    yield _largest(session, lists)
    yield _complete(session, lists)
    yield _large(session, lists, rng)
    yield _code_points(session, rng)


def _written(session: Session, context: str) -> Sequence[str]:
    """Return what the backend writes after a context, where no list was given."""
    if session.options:
        return ()
    return session.written(context, session.plan.written) or ()


def _total(session: Session, scored: Scored) -> tuple[float, float]:
    """Return a total, and what rounding and printed errors may add to it.

    Options of a list may share their draws, so their errors are added up.
    """
    total = math.fsum(reply.p for _, reply in scored)
    error = math.fsum(
        reply.p * math.expm1(_slack(session, reply, len(scored)))
        for _, reply in scored
        if reply.p
    )
    return total, error


MOST_SLACK = 700.0
"""Nats, so that no float overflows."""


def _slack(session: Session, reply: Reply, comparisons: int) -> float:
    """Return what a score may be too high by, nats; a bound of p is never.

    ``inf`` where its error is not known.
    """
    if reply.is_lower_bound:
        return session.rounding(reply)
    slack = session.slack(reply, comparisons=comparisons)
    return min(slack, MOST_SLACK) if math.isfinite(slack) else math.inf


def as_far_as(item: Item, detail: str, total: float) -> Finding:
    """Return that an item holds, if it would have seen the total that is promised."""
    sees = f"a total of {total:.3g}" if math.isfinite(total) else "no total"
    if total <= PROMISED_TOTAL:
        return holds(item, detail, sees)
    return undetermined(item, f"{detail}, so {sees} is the least that it sees", sees)


def _refusal(lists: Sequence[Scored]) -> str | None:
    """Return why nothing was answered; None if something was."""
    replies = [reply for scored in lists for _, reply in scored]
    if any(not math.isnan(reply.log_p) for reply in replies):
        return None
    return next((r.refused for r in replies if r.refused), "no answer is a number")


def _wrong(
    item: Item, detail: str, scored: Scored, total: float, error: float, **more: object
) -> Finding:
    """Return a failure with the most probable options."""
    ranked = sorted(scored, key=lambda one: -one[1].p)
    return fails(
        item,
        detail,
        context=scored[0][0][0],
        total=total,
        rounding=error,
        most_probable=[request(*one) for one in ranked[:5]],
        **more,
    )


def _largest(session: Session, lists: Sequence[Scored]) -> Finding:
    if (why := _refusal(lists)) is not None:
        return undetermined(LISTS, f"every request was refused: {why}")
    bad = [
        (pair, reply)
        for scored in lists
        for pair, reply in scored
        if math.isnan(reply.log_p) and not reply.refused
    ]
    if bad:
        return fails(LISTS, "an answer is NaN", request=request(*bad[0]))
    every = [(*_total(session, scored), scored) for scored in lists if scored]
    finite = [one for one in every if math.isfinite(one[1])]
    if not finite:
        return undetermined(LISTS, ERROR_UNKNOWN)
    total, error, scored = max(finite, key=lambda one: one[0] - one[1])
    number = sum(len(one[2]) for one in finite)
    if total <= 1 + error:
        most = max(one[0] for one in finite)
        detail = (
            f"at most {most:.4g}, over {number / len(finite):.0f} options after each "
            f"of {len(finite)} contexts"
        )
        smallest = min((1 + one[1]) / one[0] if one[0] else math.inf for one in finite)
        return as_far_as(LISTS, detail, smallest)
    detail = f"{len(scored)} options after {scored[0][0][0][-40:]!r} total {total:.6g}"
    options = [pair[1] for pair, _ in scored]
    return _wrong(LISTS, detail, scored, total, error, options=options)


def _complete(session: Session, lists: Sequence[Scored]) -> Finding:
    if not session.complete:
        return undetermined(
            COMPLETE, "no list was given as complete (--options, --complete)"
        )
    for scored in lists:
        total, error = _total(session, scored)
        if refused := [reply for _, reply in scored if reply.refused]:
            return undetermined(
                COMPLETE, f"an option was refused: {refused[0].refused}"
            )
        if not math.isfinite(error) or any(r.is_lower_bound for _, r in scored):
            return undetermined(COMPLETE, ERROR_UNKNOWN)
        if abs(total - 1) > error:
            detail = f"after {scored[0][0][0][-40:]!r} it totals {total:.6g}"
            return _wrong(COMPLETE, detail, scored, total, error)
    return holds(COMPLETE, f"after each of {len(lists)} contexts")


def _large(
    session: Session, lists: Sequence[Scored], rng: np.random.Generator
) -> Finding:
    """Bet on pairs of options, or on a long list, drawn as frequent as they seem."""
    usable = [
        scored for scored in lists if _refusal([scored]) is None and len(scored) > 1
    ]
    if not usable:
        return undetermined(LARGE, "no list was answered")
    if 0 < len(session.options) <= session.plan.width:
        return holds(LARGE, "the list given is no larger")
    wealth, worst, is_limited = Wealth(), ("", 0.0, ""), False
    share = math.ceil(session.plan.draws / len(usable))
    for scored in usable:
        context = scored[0][0][0]
        every, weights = _candidates(session, scored)
        drawn_set = DrawnSet(weights)
        done = 0
        while done < share and not wealth.exceeds(session.level / 2):
            drawn = drawn_set.draw(min(BATCH, share - done), rng)
            if not drawn:
                break
            replies = session.score_options(
                context, [every[place] for place, _ in drawn]
            )
            for (_, rate), (pair, reply) in zip(drawn, replies, strict=True):
                # Less by rounding and printed errors: only more than those is reported.
                slack = _slack(session, reply, share)
                is_limited = is_limited or math.isfinite(slack)
                sure = reply.p * math.exp(-slack)
                ratio = drawn_set.ratio(sure, rate)
                wealth.bet(ratio)
                if ratio > worst[1]:
                    worst = (context, ratio, pair[1])
            done += len(drawn)
    if not is_limited:
        return undetermined(LARGE, ERROR_UNKNOWN)
    if not wealth.exceeds(session.level / 2):
        return as_far_as(
            LARGE,
            f"wealth {math.exp(wealth.most):.3g} of {2 / session.level:g}, in "
            f"{wealth.draws} draws that estimate {wealth.mean:.3g}",
            wealth.smallest(session.level / 2),
        )
    return fails(
        LARGE,
        f"wealth {_power(wealth.most)}: {wealth.draws} draws estimate a total of "
        f"{wealth.mean:.4g}",
        context=worst[0],
        continuation=worst[2],
        estimated_total=wealth.mean,
        log_wealth=wealth.most,
        draws=wealth.draws,
    )


def _power(log: float) -> str:
    return f"{math.exp(log):.3g}" if log < 300 else f"10^{log / math.log(10):.0f}"


def _candidates(session: Session, scored: Scored) -> tuple[list[str], list[float]]:
    """Return the options that can be drawn, and the weight of each."""
    context = scored[0][0][0]
    if len(session.options) > session.plan.width and not session.complete:
        every = [*session.options]
        return every, [1 / (1 + rank) for rank in range(len(every))]
    probabilities = [
        (pair[1], reply.p) for pair, reply in scored if not math.isnan(reply.log_p)
    ]
    most = max(p for _, p in probabilities) or 1.0
    rates = [p / most + 1e-6 for _, p in probabilities]
    firsts = [option for option, _ in probabilities]
    # After nothing the first word has no space before it, the second one has.
    seconds = firsts if context or session.options else [f" {o}" for o in firsts]
    every = [a + b for a, b in product(firsts, seconds)]
    return every, [a * b for a, b in product(rates, rates)]


def _code_points(session: Session, rng: np.random.Generator) -> Finding:
    """Total what can be the next code point: some for sure, of the others draws."""
    text = session.texts[int(rng.integers(len(session.texts)))]
    places = inside_words(text) or [len(text)]
    cut = places[int(rng.integers(len(places)))]
    context = text[:cut]
    own = [*dict.fromkeys("".join(session.texts))]
    likely = [*dict.fromkeys([text[cut : cut + 1] or " ", *own, *PRINTABLE])]
    head = likely[: session.plan.code_points]
    scored = session.score_options(context, head)
    if (why := _refusal([scored])) is not None:
        return undetermined(CODE_POINTS, f"inside words, requests are refused: {why}")
    total, error = _total(session, scored)
    if not math.isfinite(error):
        return undetermined(CODE_POINTS, ERROR_UNKNOWN)
    if total > 1 + error:
        detail = f"{len(head)} of them after {context[-40:]!r} total {total:.6g}"
        return _wrong(CODE_POINTS, detail, scored, total, error)
    weights = np.ones(NUM_CODE_POINTS)
    weights[:0x250] = 500.0  # Latin
    weights[0x250:0x3000] = 10.0
    every = np.ones(NUM_CODE_POINTS, dtype=bool)
    every[SURROGATES.start : SURROGATES.stop] = False
    every[[ord(character) for character in head]] = False
    rest = np.flatnonzero(every)
    drawn_set, wealth = DrawnSet(weights[rest], floor=0.0), Wealth()
    drawn_set.total = max(total - error, 0.0)
    drawn = drawn_set.draw(session.plan.code_points, rng)
    replies = session.score_options(context, [chr(rest[place]) for place, _ in drawn])
    for (_, rate), (_, reply) in zip(drawn, replies, strict=True):
        sure = reply.p * math.exp(-_slack(session, reply, len(drawn)))
        wealth.bet(drawn_set.ratio(sure, rate))
    # The wealth of the other sets has the other half of the part's level.
    if wealth.exceeds(session.level / 2):
        return fails(
            CODE_POINTS,
            f"wealth {_power(wealth.most)}: draws estimate {wealth.mean:.4g}",
            context=context,
            estimated_total=wealth.mean,
            log_wealth=wealth.most,
        )
    smallest = min(
        (1 + error) / total if total else math.inf, wealth.smallest(session.level / 2)
    )
    detail = f"{len(head)} total {total:.4g}, all by draws {wealth.mean:.4g}"
    return as_far_as(CODE_POINTS, detail, smallest)
