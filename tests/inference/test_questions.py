"""Questions of which the answers are known: errors of continuations, and decisions."""

import math
from functools import partial

import pytest
import torch
from scipy.stats import t as student
from torch import nn

from lm_latent_eval.estimators.choices import is_undecided
from lm_latent_eval.inference.discrete import (
    CHECKS,
    LEAST_ERROR,
    LIKELY,
    NARROWER,
    PASSES,
    DiscreteFilter,
)
from lm_latent_eval.inference.interface import Texts
from lm_latent_eval.inference.particles import Particles
from lm_latent_eval.testing.case import keys
from lm_latent_eval.text.batch import TokenBatch
from tests import tiny_steps

QUESTIONS, OPTIONS, STATES = 100, 4, 12
CONTEXT, ANSWER = 12, 4
"""Words."""


class Peaked(tiny_steps.TinyHMM):
    """A hidden Markov model of more states, each of which nearly decides the next."""

    def __init__(self, config, ahead=None):
        super().__init__(config, ahead)
        generator = torch.Generator().manual_seed(2)
        size = STATES + 1, STATES
        self.transitions = nn.Parameter(3 * torch.randn(size, generator=generator))
        size = STATES, tiny_steps.VOCABULARY
        self.emissions = nn.Parameter(2 * torch.randn(size, generator=generator))

    def begin(self, batch):
        return (torch.full_like(batch.length[:, None], STATES),)


@pytest.fixture(scope="module")
def answered():
    """Estimates and truth of every option of questions, (questions, options)."""
    model, method = tiny_steps.tiny(kind=Peaked), DiscreteFilter(100)
    generator = torch.Generator().manual_seed(7)

    def words(number):
        size = QUESTIONS, number
        drawn = torch.randint(tiny_steps.VOCABULARY, size, generator=generator)
        return drawn.tolist()

    contexts, options = words(CONTEXT), [words(ANSWER) for _ in range(OPTIONS)]
    proposal, streams = model.proposal("adapted"), keys(QUESTIONS)
    batch = TokenBatch.collate(contexts, first=2)
    begin = Particles.begin(QUESTIONS, "cpu")
    before = method.extend(Texts(model, proposal, batch, streams), begin)
    found, truth, exact = [], [], partial(tiny_steps.log_p, model)
    for option in options:
        batch = TokenBatch.collate(option, first=[context[-1] for context in contexts])
        starts = [CONTEXT] * QUESTIONS
        after = method.extend(Texts(model, proposal, batch, streams, starts), before)
        rows = zip(after.log_w, before.log_w, strict=True)
        found.append([method.difference(*row, ANSWER) for row in rows])
        texts = [[*both[0], *both[1]] for both in zip(contexts, option, strict=True)]
        log_p = zip(map(exact, texts), map(exact, contexts), strict=True)
        truth.append([whole - context for whole, context in log_p])
    return [*zip(*found, strict=True)], [*zip(*truth, strict=True)]


def test_printed_errors_hold(answered):
    held = []
    for estimates, truth in zip(*answered, strict=True):
        for estimate, exact in zip(estimates, truth, strict=True):
            if estimate.stderr is None:
                continue
            drawn = student.ppf(0.975, PASSES - 1) * estimate.draws_stderr
            wide = math.hypot(drawn, 1.96 * estimate.missed)
            held.append(abs(estimate.log_evidence - exact) <= wide)
    assert len(held) > 0.8 * QUESTIONS * OPTIONS, "few are withheld"
    # Options of a question share passes: as many trials as there are questions.
    noise = math.sqrt(0.95 * 0.05 / QUESTIONS)
    assert sum(held) / len(held) > 0.95 - 3 * noise


def test_errors_are_as_large_as_other_seeds_say():
    """Of two words that err far less than what precedes them, which cancels."""
    model, method, number = tiny_steps.tiny(kind=Peaked), DiscreteFilter(100), 200
    generator = torch.Generator().manual_seed(1)
    size = (CONTEXT + 2,)
    text = torch.randint(tiny_steps.VOCABULARY, size, generator=generator).tolist()
    batch = TokenBatch.collate([text] * number, first=2)
    whole = Texts(model, model.proposal("adapted"), batch, keys(number))
    begin = Particles.begin(number, "cpu")
    before = method.extend(whole.piece(0, CONTEXT), begin)
    after = method.extend(whole.piece(CONTEXT, len(text)), before)
    rows = zip(after.log_w, before.log_w, strict=True)
    found = [method.difference(*row, 2) for row in rows]

    truth = tiny_steps.log_p(model, text) - tiny_steps.log_p(model, text[:CONTEXT])
    log_p = torch.tensor([each.log_evidence for each in found])
    error = (log_p - truth).square()
    of_context = method.unbiased(before.log_w).logsumexp(-1).var()
    assert of_context > 4 * error.mean(), "premise: what cancels is most"
    replicates = torch.tensor([each.replicates for each in found])
    torch.testing.assert_close(replicates.mean(1), log_p)
    drawn = torch.tensor([each.draws_stderr for each in found]).square()
    stderr = torch.tensor([each.stderr for each in found]).square()
    checked = stderr - (LEAST_ERROR / method.width) ** 2
    both = 1 + LIKELY**2 * (1 + NARROWER * PASSES / CHECKS)  # as said of LIKELY
    of_replicates = replicates.var(1) / PASSES
    for printed, expected in ((of_replicates, 1), (drawn, 1), (checked, both)):
        ratio = (printed.mean() / error.mean()).item()
        noise = (printed - ratio * error).std() / math.sqrt(number) / error.mean()
        assert noise < 0.2 * expected, "premise: precise enough to notice others"
        assert abs(ratio - expected) < 4 * noise


def test_what_is_decided_is_right(answered):
    decided = wrong = 0
    for estimates, truth in zip(*answered, strict=True):
        replicates = [estimate.replicates for estimate in estimates]
        if not all(replicates) or is_undecided(replicates):
            continue
        decided += 1
        best = max(range(OPTIONS), key=lambda n: estimates[n].log_evidence)
        wrong += truth[best] < max(truth)
    assert decided > QUESTIONS / 3, "premise: most can be told apart"
    assert wrong / decided < 0.05 + 3 * math.sqrt(0.05 * 0.95 / decided)
