"""Audits of simulated scorers, one after the other."""

from __future__ import annotations

from lm_latent_eval.audit.run import Audit, audit
from lm_latent_eval.audit.session import Plan, Requester, Session
from lm_latent_eval.audit.verdict import Kind
from lm_latent_eval.harness.audit import Model
from tests.audit import faulty

NOISE = {"errors": 0.05}
"""Fault -> the Monte Carlo error of a scorer that has it, nats."""


def audited(world: int, plan: Plan | None = None, **arguments: object) -> Audit:
    """Audit the bigram model of a world."""
    noise = NOISE.get(str(arguments.get("fault")), 0.0)
    model = Model.open(faulty.NAME, {"world": world, "noise": noise, **arguments})
    session = Session(
        Requester(model), Kind.WORDS, plan or Plan(), faulty.texts(world), seed=world
    )
    return audit(session, model=faulty.NAME)


def alarms(found: Audit) -> set[str]:
    """The items that fail and must not."""
    return {one.item.title for one in found.alarms}
