"""What models ask a device for: launches and waits, counted on the simulated one.

``python -m tests.device_work`` prints the table that ``test_device_work`` bounds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from lm_latent_eval.inference import estimator_named
from lm_latent_eval.inference.particles import Particles
from lm_latent_eval.latent import WholeText
from lm_latent_eval.testing import SIMULATED, Case, Work, simulated_device
from lm_latent_eval.testing.model_laws import keys
from lm_latent_eval.text.words import END
from tests.test_laws import TINY_MODELS, UNNORMALISED

SHORT, LONG = 4, 8
"""Words of two texts; what the longer one costs more is the cost of its words."""
SAMPLES = 4


@dataclass(frozen=True)
class Cost:
    """What something costs once and a word."""

    launches: float
    waits: float
    once: int
    """Waits that a text of no words would cost."""
    where: Counter[str]
    """Waits of the longer text."""


def cost(run: Callable[[int], None]) -> Cost:
    """Count what a run over a number of words asks for."""
    counted(run, LONG)  # what is remembered of a model is remembered now
    work = {length: counted(run, length) for length in (SHORT, LONG)}
    words = LONG - SHORT
    waits = (work[LONG].num_waits - work[SHORT].num_waits) / words
    launches = (work[LONG].num_launches - work[SHORT].num_launches) / words
    once = round(work[SHORT].num_waits - waits * SHORT)
    return Cost(launches, waits, once, work[LONG].waits)


def counted(run: Callable[[int], None], length: int) -> Work:
    """Count one run."""
    with simulated_device() as work:
        run(length)
    return work


def runs() -> Iterator[tuple[str, Callable[[int], None]]]:
    """List models with their estimators, and how each reads texts of some words."""
    for name, tiny in TINY_MODELS.items():
        with simulated_device():
            case = tiny.case()
            case.model.to(SIMULATED)
        proposal = case.proposal()
        stepwise = proposal
        if isinstance(proposal, WholeText):
            stepwise = proposal.left_to_right
        for estimator in case.model.estimators:
            if estimator == "auto":  # one of the others
                continue
            method = estimator_named(estimator, case.model.estimators)(SAMPLES)
            draw = stepwise if estimator == "smc" else proposal
            yield f"{name} {estimator}", partial(_whole_texts, case, method, draw)
            if estimator == "is" and name not in {*UNNORMALISED, "lda"}:
                run = partial(_contexts, case, method, stepwise)
                yield f"{name} contexts", run


@torch.no_grad()
def _whole_texts(case: Case, method: Any, proposal: Any, length: int) -> None:
    text = [*case.some_words(length), END]
    batch = case.batch([text, text], SIMULATED)
    method.log_weights(case.model, proposal, batch, keys(2)).cpu()


@torch.no_grad()
def _contexts(case: Case, method: Any, proposal: Any, length: int) -> None:
    text = case.some_words(length)
    batch, begin = case.batch([text, text], SIMULATED), Particles.begin(2, SIMULATED)
    read = method.extend(case.model, proposal, batch, keys(2), [0, 0], begin)
    read.next_token(case.model, batch.targets[:, -1]).cpu()


def main() -> None:
    """Print the table."""
    for name, run in runs():
        try:
            found = cost(run)
        except Exception as err:
            print(f"{name:28} {type(err).__name__} {str(err)[:90]}")
            continue
        print(
            f"{name:28} {found.launches:8.1f} launches {found.waits:7.2f} waits a word "
            f"{found.once:5d} once  {found.where.most_common(4)}",
            flush=True,
        )


if __name__ == "__main__":
    main()
