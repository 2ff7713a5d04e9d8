"""An audit as a page of text: a line an item, and what shows each failure."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator

from lm_latent_eval.audit.run import Audit
from lm_latent_eval.audit.verdict import Finding, Verdict

WIDTH = 110
TITLE = 46


def page(audit: Audit) -> str:
    """Return the page; that of a clean scorer fits on a screen."""
    return "\n".join(_lines(audit))


def _lines(audit: Audit) -> Iterator[str]:
    yield f"{audit.model}, as {audit.kind.value}: {audit.kind.said}"
    part = ""
    for one in audit.findings:
        if one.item.part != part:
            part = one.item.part
            yield part
        yield from _item(audit, one)
    yield ""
    yield _verdict(audit)
    yield f"{audit.requests:,} requests, {audit.seconds / 60:.1f} minutes"
    for finding in {one.item.part: one for one in audit.alarms}.values():
        yield f"again: {audit.repeats(finding)}"


def _item(audit: Audit, one: Finding) -> Iterator[str]:
    named = one.verdict is Verdict.FAILS and not one.is_alarm(audit.kind)
    verdict = f"fails, as {audit.kind.value} may" if named else one.verdict.value
    if one.is_alarm(audit.kind):
        verdict = "FAILS"
    shown = f"  {one.item.title:<{TITLE}} {verdict}: {one.said}"
    if one.is_alarm(audit.kind):
        yield from textwrap.wrap(shown, WIDTH, subsequent_indent=" " * 6)
    else:
        yield shown if len(shown) <= WIDTH else f"{shown[: WIDTH - 3]}..."


def _verdict(audit: Audit) -> str:
    if audit.answers_nothing:
        return "FAILS: not a likelihood: it answers no request, so nothing can be told"
    if audit.failed:
        items = "; ".join(one.item.title for one in audit.alarms)
        return f"FAILS: not a likelihood of {audit.kind.value}: {items}"
    number = Counter(one.verdict for one in audit.findings)
    return (
        f"holds: {number[Verdict.HOLDS]} items hold, {number[Verdict.FAILS]} fail as "
        f"{audit.kind.value} may, {number[Verdict.UNTOLD]} cannot be told; a clean "
        "scorer fails in 5 % of audits at most"
    )
