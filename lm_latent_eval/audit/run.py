"""A complete audit: its parts, their cost, and the page of findings."""

from __future__ import annotations

import shlex
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import lm_latent_eval
from lm_latent_eval.audit.chain import causality, chain_rule
from lm_latent_eval.audit.normalization import normalization
from lm_latent_eval.audit.outputs import errors, samples, units
from lm_latent_eval.audit.sameness import sameness
from lm_latent_eval.audit.session import (
    LEVEL,
    TOLERANCE,
    Reply,
    Session,
    half_precision,
)
from lm_latent_eval.audit.verdict import (
    PARTS,
    SIGN,
    Finding,
    Kind,
    Verdict,
    fails,
    holds,
)

RUNS = {
    "normalization": normalization,
    "causality": causality,
    "chain": chain_rule,
    "sameness": sameness,
    "units": units,
    "samples": samples,
    "errors": errors,
}
REFUSED = 2
"""Largest ratio of requests to those announced: refused ones are repeated."""
TRIED = 8
"""Requests that are made twice before the others, to time the second time."""
WIDTH = 110


@dataclass(frozen=True)
class Audit:
    model: str
    kind: Kind
    findings: Sequence[Finding]
    requests: int
    seconds: float
    command: Sequence[str]
    """Command that repeats the audit."""
    seed: int
    tolerance: float
    precision: str | None
    """The floating type that scores are taken to be computed in; None: not known."""
    hidden: str
    """Differences that half precision hides, in a line; empty for other scores."""

    @property
    def alarms(self) -> list[Finding]:
        """Failures that a scorer of its kind must not have."""
        return [one for one in self.findings if one.is_alarm(self.kind)]

    @property
    def tells_nothing(self) -> bool:
        """Whether no item has a verdict."""
        return all(one.verdict is Verdict.UNDETERMINED for one in self.findings)

    @property
    def failed(self) -> bool:
        """Whether there is an alarm, or no verdict at all."""
        return bool(self.alarms) or self.tells_nothing

    def repeats(self, finding: Finding) -> str:
        """Return the command that shows a failure again."""
        return shlex.join([*self.command, "--only", finding.item.part])

    def as_dict(self) -> dict[str, Any]:
        return {
            "lm_latent_eval": lm_latent_eval.__version__,
            "model": self.model,
            "kind": self.kind.value,
            "verdict": "fails" if self.failed else "holds",
            "level": LEVEL,
            "tolerance": self.tolerance,
            "precision": self.precision,
            "hidden": self.hidden or None,
            "seed": self.seed,
            "requests": self.requests,
            "seconds": round(self.seconds, 1),
            "items": [
                {
                    "part": one.item.part,
                    "item": one.item.title,
                    "verdict": one.verdict.value,
                    "expected": "may fail"
                    if self.kind in one.item.may_fail
                    else "holds",
                    "alarm": one.is_alarm(self.kind),
                    "said": one.detail,
                    "sees": one.sees or None,
                    "witness": dict(one.witness),
                    **(
                        {"command": self.repeats(one)}
                        if one.verdict is Verdict.FAILS
                        else {}
                    ),
                }
                for one in self.findings
            ],
        }


def audit(
    session: Session,
    *,
    model: str = "",
    command: Sequence[str] = (),
    only: Collection[str] = (),
    say: Callable[[str], object] = lambda _: None,
) -> Audit:
    """Audit a scorer.

    Args:
        session: Backend, texts and numbers of requests.
        model: Name of the model.
        command: Command that repeats this audit.
        only: Parts; none is all.
        say: Is given the forecast cost, before it begins.

    Raises:
        OverBudgetError: If it takes more requests than were announced.
    """
    names = [name for name in PARTS if not only or name in only]
    planned = sum(session.plan.parts[name] for name in names) + 2 * TRIED
    session.ask.most = session.ask.requests + REFUSED * planned
    begun = time.monotonic()
    say(_cost(session, planned))
    findings: list[Finding] = []
    for name in names:
        session.begin()
        findings += RUNS[name](session)
    findings[:0] = _sign(session)
    return Audit(
        model,
        session.kind,
        findings,
        session.ask.requests,
        time.monotonic() - begun,
        command,
        session.seed,
        session.rounding(),
        session.precision,
        _hidden(session),
    )


def _sign(session: Session) -> Iterator[Finding]:
    """Look at the largest log p of all that were answered."""
    if session.ask.likeliest is None:
        return
    request, reply = session.ask.likeliest
    slack = session.slack(reply, comparisons=max(1, session.ask.requests))
    if reply.log_p > slack:
        detail = f"{str(request)[-60:]} scores {reply.log_p:+.6g} nats"
        yield fails(SIGN, detail, request=request, log_p=reply.log_p)
    else:
        detail = f"the largest of {session.ask.requests:,} is {reply.log_p:.3g}"
        yield holds(SIGN, detail, f"a log p of {slack:.2g}")


def _cost(session: Session, planned: int) -> str:
    """Time some requests, and say how long all will take; see what they round to."""
    rng = session.rng("cost")
    pairs = session.places(TRIED, rng) or [("", text) for text in session.texts[:TRIED]]
    replies = session.ask.score(pairs)  # a device warms up
    if session.precision is None:
        session.precision = half_precision(reply.log_p for reply in replies)
    begun = time.monotonic()
    session.ask.score(pairs)
    minutes = (time.monotonic() - begun) / len(pairs) * planned / 60
    return (
        f"{planned:,} requests ({REFUSED * planned:,} if many are refused), about "
        f"{max(minutes, 0.1):.1f} minutes by {len(pairs)} in one call; requests alone, "
        "long texts and other seeds take longer"
    )


def _hidden(session: Session) -> str:
    """Say which gaps between scores are taken for rounding of half precision."""
    near, far = (session.rounding(*[Reply(-nats)] * 2) for nats in (10.0, 100.0))
    if near == far:
        return ""
    return (
        f"computed in {session.precision}: two scores of -10 may be {near:.2g} nats "
        f"apart by rounding, of -100 {far:.2g}; dtype=float32 tells smaller faults"
    )


def page(audit: Audit) -> str:
    """Return the page: for a clean scorer a table of twelve lines at most."""
    return "\n".join(_lines(audit))


def _lines(audit: Audit) -> Iterator[str]:
    yield f"{audit.model}, as {audit.kind.value}: {audit.kind.claim}"
    if audit.hidden:
        yield audit.hidden
    for part in dict.fromkeys(one.item.part for one in audit.findings):
        yield from _part(audit, [f for f in audit.findings if f.item.part == part])
    yield _verdict(audit)
    if audit.alarms and audit.precision is None and audit.tolerance == TOLERANCE:
        yield (
            "its precision is not known: if a server computes in half precision, "
            "--tolerance 0.5 may tell rounding from faults"
        )
    yield f"{audit.requests:,} requests, {audit.seconds / 60:.1f} minutes"
    for finding in {one.item.part: one for one in audit.alarms}.values():
        yield f"again: {audit.repeats(finding)}"


def _part(audit: Audit, findings: Sequence[Finding]) -> Iterator[str]:
    """Say in a line what a part has found, and how small a fault it would have seen.

    What fails has lines of its own.
    """
    part = f"{findings[0].item.part:<14}"
    counts = Counter(one.verdict for one in findings)
    alarms = [one for one in findings if one.is_alarm(audit.kind)]
    named = counts[Verdict.FAILS] - len(alarms)
    words = [f"{counts[Verdict.HOLDS]} hold"] if counts[Verdict.HOLDS] else []
    words += [f"{named} fail as {audit.kind.value} may"] if named else []
    words += (
        [f"{counts[Verdict.UNDETERMINED]} undetermined"]
        if counts[Verdict.UNDETERMINED]
        else []
    )
    seen: dict[str, str] = {}
    for one in findings:
        if one.sees and one not in alarms:  # the first of its kind says it for all
            seen.setdefault(one.sees[:9], one.sees)
    shown = f"{part}{'FAILS; ' if alarms else ''}{', '.join(words)}"
    if seen:
        shown += f". Sees {'; '.join(seen.values())}"
    yield from textwrap.wrap(shown, WIDTH, subsequent_indent=" " * 14)[:2]
    for one in alarms:
        shown = f"  FAILS: {one.item.title}: {one.detail}"
        yield from textwrap.wrap(shown, WIDTH, subsequent_indent=" " * 6)


def _verdict(audit: Audit) -> str:
    if audit.tells_nothing:
        why = "; ".join(dict.fromkeys(one.detail for one in audit.findings))
        return f"FAILS: no item can be judged: {textwrap.shorten(why, 300)}"
    if audit.failed:
        items = "; ".join(one.item.title for one in audit.alarms)
        return f"FAILS: not a likelihood of {audit.kind.value}: {items}"
    counts = Counter(one.verdict for one in audit.findings)
    return (
        f"holds: {counts[Verdict.HOLDS]} items hold, {counts[Verdict.FAILS]} fail as "
        f"{audit.kind.value} may, {counts[Verdict.UNDETERMINED]} are undetermined; a "
        "clean scorer fails in 5 % of audits at most"
    )
