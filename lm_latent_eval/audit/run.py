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
from lm_latent_eval.audit.verdict import PARTS, Finding, Kind, Verdict

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
"""How many times the requests announced are made at most: refused ones are repeated."""
TRIED = 8
"""Requests that are made twice before the others, to time the second time."""
WIDTH = 110
TITLE = 46


@dataclass(frozen=True)
class Audit:
    """Findings of an audit."""

    model: str
    kind: Kind
    findings: Sequence[Finding]
    requests: int
    seconds: float
    command: Sequence[str]
    """That repeats it."""
    seed: int
    tolerance: float
    precision: str | None
    """The floating type that scores are taken to be computed in; None: not known."""
    hidden: str
    """What half precision hides, in a line; empty where scores have more."""

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
        """Return it as JSON."""
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
        model: Its name.
        command: What repeats this audit.
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
    """Say what is taken for the rounding of half precision."""
    near, far = (session.rounding(*[Reply(-nats)] * 2) for nats in (10.0, 100.0))
    if near == far:
        return ""
    return (
        f"computed in {session.precision}: two scores of -10 may be {near:.2g} nats "
        f"apart by rounding, of -100 {far:.2g}; dtype=float32 tells smaller faults"
    )


def page(audit: Audit) -> str:
    """Return the page; that of a clean scorer fits on a screen."""
    return "\n".join(_lines(audit))


def _lines(audit: Audit) -> Iterator[str]:
    yield f"{audit.model}, as {audit.kind.value}: {audit.kind.claim}"
    if audit.hidden:
        yield audit.hidden
    part = ""
    for one in audit.findings:
        if one.item.part != part:
            part = one.item.part
            yield part
        yield from _item(audit, one)
    yield ""
    yield _verdict(audit)
    if audit.alarms and audit.precision is None and audit.tolerance == TOLERANCE:
        yield (
            "its precision is not known: if a server computes in half precision, "
            "--tolerance 0.5 may tell rounding from faults"
        )
    yield f"{audit.requests:,} requests, {audit.seconds / 60:.1f} minutes"
    for finding in {one.item.part: one for one in audit.alarms}.values():
        yield f"again: {audit.repeats(finding)}"


def _item(audit: Audit, one: Finding) -> Iterator[str]:
    named = one.verdict is Verdict.FAILS and not one.is_alarm(audit.kind)
    verdict = f"fails, as {audit.kind.value} may" if named else one.verdict.value
    if one.is_alarm(audit.kind):
        verdict = "FAILS"
    shown = f"  {one.item.title:<{TITLE}} {verdict}: {one.detail}"
    if one.is_alarm(audit.kind):
        yield from textwrap.wrap(shown, WIDTH, subsequent_indent=" " * 6)
    else:
        yield shown if len(shown) <= WIDTH else f"{shown[: WIDTH - 3]}..."


def _verdict(audit: Audit) -> str:
    if audit.tells_nothing:
        return "FAILS: no item can be judged, for the reasons above"
    if audit.failed:
        items = "; ".join(one.item.title for one in audit.alarms)
        return f"FAILS: not a likelihood of {audit.kind.value}: {items}"
    number = Counter(one.verdict for one in audit.findings)
    return (
        f"holds: {number[Verdict.HOLDS]} items hold, {number[Verdict.FAILS]} fail as "
        f"{audit.kind.value} may, {number[Verdict.UNDETERMINED]} are undetermined; a "
        "clean scorer fails in 5 % of audits at most"
    )
