"""Laws notice what an estimator says of itself that is not so."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch

import lm_latent_eval
from lm_latent_eval.estimators import Bound, Estimate
from lm_latent_eval.inference import ImportanceSampling
from lm_latent_eval.testing import Case, LawError, estimator_laws
from lm_latent_eval.text.words import UNKNOWN
from tests.models.entitynlm import tiny
from tests.models.entitynlm.tiny import every_chain
from tests.test_laws import written

CASE = Case(
    tiny.entitynlm(),
    lambda text: every_chain(len(text), tiny.MAX_LENGTH),
    (UNKNOWN, 4, 5),
    ("prior",),
    length=2,
)


@dataclass(frozen=True)
class Sound(ImportanceSampling):
    """The estimator that the others change in one place."""

    name: ClassVar[str] = "sound"


class MedianOfMeans(Sound):
    """Robust, and recorded as if it were log p(x)."""

    def estimate(self, log_w, num_tokens):
        means = log_w.view(-1, len(log_w) // 2 or 1).logsumexp(1)
        return Estimate.exact(means.median().item(), num_tokens=num_tokens)


class Raised(Sound):
    """Adds what its logarithm is too low by, and is no lower bound any more."""

    def estimate(self, log_w, num_tokens):
        found = super().estimate(log_w, num_tokens)
        return replace(found, log_evidence=found.log_evidence + 0.5)


class Strict(Sound):
    """Takes a bound on average for one that always holds."""

    bound = Bound.STRICT_LOWER


class OneOfEach(Sound):
    """Says of every estimate that it is a strict lower bound."""

    def estimate(self, log_w, num_tokens):
        return replace(super().estimate(log_w, num_tokens), bound=Bound.STRICT_LOWER)


class MeanOfLogs(Sound):
    """A lower bound that is none: the mean of logarithms, raised."""

    bound = Bound.ESTIMATED_LOWER

    def estimate(self, log_w, num_tokens):
        found = super().estimate(log_w, num_tokens)
        return replace(found, log_evidence=log_w.mean().item() + 5)


class Unchecked(Sound):
    """Prints the error that its own draws tell."""

    def estimate(self, log_w, num_tokens):
        found = super().estimate(log_w, num_tokens)
        return replace(found, stderr=found.draws_stderr)


class Fixed(Sound):
    """Draws, and says that random numbers move nothing."""

    seeded = False


class Restless(Sound):
    """Draws from the global generator as well."""

    def log_weights(self, texts):
        log_w = super().log_weights(texts)
        return log_w + 1e-3 * (torch.rand_like(log_w) - 0.5)


class Backwards(Sound):
    """Numbers its draws from the last one."""

    def log_weights(self, texts):
        return super().log_weights(texts).flip(1)


class Unwilling(Sound):
    """Refuses a model without saying which."""

    def log_weights(self, texts):
        raise ValueError("does not work")


@dataclass(frozen=True)
class Large(Sound):
    """Takes more samples than there are."""

    def __post_init__(self):
        raise ValueError(f"num_samples={self.num_samples}: at least 10")


@dataclass(frozen=True)
class Multiplied(Sound):
    """Multiplies p-hat by a random number of mean 1, whose logarithm this returns."""

    @staticmethod
    def log_factor(uniform):
        raise NotImplementedError

    def log_weights(self, texts):
        uniform = [random.Random(key).random() for key in texts.keys]
        factors = torch.tensor([self.log_factor(u) for u in uniform])
        return super().log_weights(texts) + factors[:, None].double()


class HeavyTailed(Multiplied):
    """Unbiased and of infinite variance: a Pareto tail of k = 0.9."""

    @staticmethod
    def log_factor(uniform):
        return math.log(0.1) - 0.9 * math.log(uniform)


class LightTailed(Multiplied):
    """Too low by a fifth, and of finite variance: a Pareto tail of k = 0.2."""

    @staticmethod
    def log_factor(uniform):
        return math.log(0.8 * 0.8) - 0.2 * math.log(uniform)


BROKEN = {
    MedianOfMeans: "log p-hat that is exact",
    Raised: "^mean of p-hat",
    LightTailed: "^mean of p-hat",
    Strict: "a strict lower bound exceeds",
    OneOfEach: "a strict lower bound exceeds",
    MeanOfLogs: "the mean of log p-hat is above",
    Unchecked: "nothing checks what the draws miss",
    Fixed: "weights that are not seeded",
    Restless: "weights by the same random numbers",
    Backwards: "the first 2 samples",
    Unwilling: "an error names neither unwilling nor prior|names neither",
    Large: "no number of samples is taken",
}


def test_a_sound_estimator_keeps_the_laws():
    for law in estimator_laws(Sound, CASE):
        law()


@pytest.mark.parametrize("kind", BROKEN, ids=lambda kind: kind.__name__)
def test_what_an_estimator_claims_is_noticed(kind):
    with pytest.raises(LawError, match=BROKEN[kind]):
        for law in estimator_laws(kind, CASE):
            law()


def test_a_heavy_tail_is_not_called_a_bias():
    """Its first 800 factors have a mean of 0.54, and tell an error of 0.07."""
    unbiased, *others = estimator_laws(HeavyTailed, CASE)
    with pytest.raises(LawError, match=r"^undetermined: heavy tail: the largest"):
        unbiased()
    for law in others:
        law()


def test_exact_is_refused_of_another_packages_estimator_that_draws(tmp_path):
    model = lm_latent_eval.load(written("entitynlm", tmp_path))
    by = f"{__name__}:{MedianOfMeans.__name__}"
    for ask in (
        lambda: model.log_likelihood(["the fox"], estimator=by),
        lambda: model.log_likelihood(["fox"], contexts=["the "], estimator=by),
    ):
        with pytest.raises(ValueError, match=r"estimator=sound: Estimate.exact of a "):
            ask()
    [found] = model.log_likelihood(["the fox"], estimator="dpf", num_samples=500)
    assert found.bound is Bound.EXACT, "ours know that nothing was left out"
