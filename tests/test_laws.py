"""What every latent LM owes, whatever its latents are.

A model joins by one line in ``TINY_MODELS``: how to build one that is small enough to
list every latent, how to list them, and which texts are all that can happen. Most laws
are those of ``lm_latent_eval.testing``, which other packages call on their models; what
is true of one model only stands with its own tests.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from lm_latent_eval import testing
from lm_latent_eval.inference import ParticleFilter
from lm_latent_eval.inference.interface import Texts
from lm_latent_eval.inference.streams import Streams
from lm_latent_eval.latent import NO_LATENT, Normalization
from lm_latent_eval.models import MODELS, checkpoint, model_class
from lm_latent_eval.testing.case import keys
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.words import END, SPECIAL_WORDS, START, UNKNOWN, WordTokenizer
from tests import tiny_models
from tests.kglm_space import walks_of
from tests.models.entitynlm import tiny as tiny_entitynlm
from tests.models.entitynlm.tiny import every_chain
from tests.models.lda import tiny as tiny_lda
from tests.models.lrlm import tiny as tiny_lrlm
from tests.models.nklm import tiny as tiny_nklm
from tests.models.rnng import reference as tiny_rnng
from tests.models.rnng.reference import every_prefix
from tests.simulated_device import SIMULATED, simulated_device

LONG, LONG_SENTENCE = 200, 40
"""Words of texts that are not."""


@dataclass(frozen=True)
class Tiny:
    """How to build a case of the laws, anew for every test."""

    build: Callable[[], Any]
    latents: Callable[[Any, list[int]], Any]
    words: tuple[int, ...]
    proposals: tuple[str, ...]
    reads_on: tuple[str, ...] = ()
    copied: int | None = None
    goes_on: bool = True
    ends: bool = True
    spelled: bool = False

    def case(self) -> testing.Case:
        fields = {k: v for k, v in vars(self).items() if k not in ("build", "latents")}
        model = self.build()
        return testing.Case(model, partial(self.latents, model), **fields)


def without_latents(build: Callable[[], Any]) -> Tiny:
    words = (UNKNOWN, tiny_models.KNOWN)
    return Tiny(build, lambda model, text: NO_LATENT, words, ("none",))


TINY_MODELS = {
    "entitynlm": Tiny(
        tiny_entitynlm.entitynlm,
        lambda model, text: every_chain(len(text), tiny_entitynlm.MAX_LENGTH),
        (UNKNOWN, 4, 5),
        ("adapted", "peeking", "nonpeeking", "prior"),
    ),
    "kglm": Tiny(
        lambda: tiny_models.kglm(tiny_models.full_graph(), spread=0.5),
        lambda model, text: walks_of(model, len(text)),
        (UNKNOWN, tiny_models.KNOWN, tiny_models.COPIED),
        ("adapted", "smoothing", "peeking", "nonpeeking", "prior"),
        reads_on=("adapted", "smoothing"),
        copied=tiny_models.COPIED,
    ),
    "lda": Tiny(
        tiny_lda.lda,
        lambda model, text: tiny_lda.every_topic(len(text)),
        (UNKNOWN, 4, 5),
        ("document", "adapted", "prior"),
        reads_on=("document",),
    ),
    "lrlm": Tiny(
        tiny_lrlm.lrlm,
        lambda model, text: tiny_lrlm.every_reading(model, len(text)),
        (UNKNOWN, tiny_models.KNOWN, tiny_models.COPIED),
        ("posterior", "adapted"),
        reads_on=("posterior", "adapted"),
        copied=tiny_models.COPIED,
    ),
    "lstm": without_latents(tiny_models.lstm),
    "nklm": Tiny(
        tiny_nklm.nklm,
        tiny_nklm.every_copy,
        (UNKNOWN, tiny_models.KNOWN, tiny_models.COPIED),
        ("adapted", "peeking"),
        reads_on=("adapted",),
        copied=tiny_models.COPIED,
    ),
    "rnng": Tiny(
        tiny_rnng.tiny,
        lambda model, text: every_prefix(len(text), end=text[-1] == END),
        (UNKNOWN, 4, 5),
        ("crf", "adapted", "prior"),
        reads_on=("crf",),
        goes_on=False,
    ),
    "srnn": without_latents(tiny_models.srnn),
}


def written(name: str, directory: Path) -> str:
    """Write a checkpoint of a tiny model with a vocabulary."""
    write_with_words(TINY_MODELS[name].build(), directory)
    return str(directory)


def write_with_words(model: Any, directory: Path) -> None:
    """Write a checkpoint of a model with as many words as it has."""
    config = model.config
    uttered = ["the", "fox"][: config.vocab_size - len(SPECIAL_WORDS)]
    copied = ["Ada"][: config.num_words - config.vocab_size]
    words = WordTokenizer.train([" ".join(uttered * 2)], copied=copied)
    assert (words.vocab_size, words.num_words) == (config.vocab_size, config.num_words)
    checkpoint.save(model, words, directory, model.state_dict())


UNNORMALISED = {"srnn"}
"""Whose scores are no log-probabilities, but owe the rest."""
WITHOUT_LATENTS = ("lstm", "srnn")

PAIRS = [
    (name, which) for name, tiny in TINY_MODELS.items() for which in tiny.proposals
]


def proposals(*but: str | tuple[str, str]) -> Any:
    """Every model with each of its proposals, but some models, proposals or pairs.

    What an estimator does with one step, it does with all: with the first of a model
    that is left in, and with the others nightly.
    """
    pairs = [pair for pair in PAIRS if not {*but} & {*pair, pair}]
    first = dict(reversed(pairs))
    marked = [
        pytest.param(*pair, marks=() if pair in first.items() else pytest.mark.nightly)
        for pair in pairs
    ]
    return pytest.mark.parametrize(("name", "which"), marked)


every_normalised_model = pytest.mark.parametrize(
    "name", [name for name in TINY_MODELS if name not in UNNORMALISED]
)
OF_ENGINE = {
    "beams_go_on_where_they_were_cut",
    "device_moves_no_number",
    "drawing_from_is_resampling_first",
    "first_samples_are_those_of_fewer",
    "only_random_numbers_move_draws",
    "wide_searches_are_exact",
}
"""Laws that are tested with one proposal of a model, and with the others nightly."""
VARYING = ("smoothing", "peeking", "nonpeeking")
"""Proposals of random weights by which thousands of draws tell a mean: those of
estimates by them are nightly."""


def listed(name: str, laws: list[testing.Law], tested: Iterable[str] = ()) -> list[Any]:
    """Return laws of a model for pytest: nightly ones, too, those tested elsewhere."""
    found, before = [], {*tested}
    seldom = OF_ENGINE | before
    for law in laws:
        kind, _, of = str(law).partition("-")
        varies = kind == "bounds_are_true" and of.startswith(VARYING)
        marks = pytest.mark.nightly if varies or kind in seldom & before else ()
        found.append(pytest.param(law, id=f"{name}-{law}", marks=marks))
        before.add(kind)
    return found


LAWS = [
    law
    for name, tiny in TINY_MODELS.items()
    for law in listed(name, testing.laws(tiny.case(), SIMULATED))
]


@pytest.mark.parametrize("law", LAWS)
def test_it_keeps_the_law(law):
    with simulated_device() if str(law).startswith("device_") else nullcontext():
        law()


def opened(name: str, which: str | None = None):
    """Return a case, its model and a proposal."""
    case = TINY_MODELS[name].case()
    return case, case.model, case.proposal(which)


def test_every_model_keeps_the_laws():
    assert TINY_MODELS.keys() == MODELS.keys()


@pytest.mark.parametrize("name", TINY_MODELS)
def test_all_that_can_happen_totals_one_or_the_model_says_so(name):
    case, model, _ = opened(name)
    assert isinstance(model, model_class(name))
    says_so = model.normalization is Normalization.UNNORMALISED
    assert says_so == (name in UNNORMALISED)
    if model.normalization is not Normalization.ONE:  # which is a law
        away = abs(case.total() - 1)
        assert away > 0.1 if says_so else away < 1e-10


@pytest.mark.parametrize("name", TINY_MODELS)
def test_filters_are_the_same_in_any_company(name):
    """By one proposal of steps: filters are the same code for all."""
    case, whole = TINY_MODELS[name].case(), ("crf", "document", "posterior")
    which = next(each for each in case.proposals if each not in whole)
    proposal = case.proposal(which, 2.0)
    texts = case.readable(proposal)[::4]
    if case.goes_on:
        texts = [text[: 1 + n % case.length] for n, text in enumerate(texts)]
    method, names = ParticleFilter(20), keys(len(texts))

    def weigh(texts, names):
        return method.log_weights(Texts(case.model, proposal, case.batch(texts), names))

    together = weigh(texts, names)
    reverse = weigh(texts[::-1], names[::-1]).flip(0)
    torch.testing.assert_close(reverse, together, rtol=0, atol=1e-10)
    for n, text in enumerate(texts):
        alone = weigh([text], [names[n]])
        torch.testing.assert_close(together[n], alone[0], rtol=0, atol=1e-10)


@every_normalised_model
def test_company_moves_float32_by_a_walk_of_roundings(name):
    """Relatively by less than sqrt(T) roundings of float32 in texts of T tokens.

    A token's log-probability is rounded, and so is the recurrent state that it is
    predicted from, once a token before it: independent roundings add up like steps of
    a random walk. The sum over tokens is taken in float64 and adds none.
    """
    case, model, proposal = opened(name)
    model.float()
    length = LONG if case.goes_on else LONG_SENTENCE
    texts = [
        [*(case.words[(n + t * t) % 3 % len(case.words)] for t in range(length)), END]
        for n in range(3)
    ]
    batch, every = case.batch(texts), torch.arange(3)
    stepwise = proposal.left_to_right
    latents = stepwise.sample(stepwise.encode(batch), Streams(keys(3), 3), 3).latents

    def log_joint(some: torch.Tensor) -> torch.Tensor:
        if isinstance(latents, torch.Tensor):
            mine = latents if name in WITHOUT_LATENTS else latents[some]
        else:
            mine = type(latents)(*(part[some] for part in latents))
        return model.log_joint(model.encode(batch.select(some)), mine)

    alone = torch.cat([log_joint(n) for n in every.split(1)])
    limit = math.sqrt(length + 1) * torch.finfo(torch.float32).eps
    torch.testing.assert_close(alone, log_joint(every), rtol=limit, atol=0)


@every_normalised_model
def test_what_an_unknown_word_costs_is_not_rounded(name):
    """Tens of nats a word, hundreds of words: added in float64 by float32 models."""
    case, model, _ = opened(name)
    model.float()
    cost, text = -10 * math.pi, [UNKNOWN, 4, UNKNOWN]
    free, dear = (
        model.log_joint(
            model.encode(TokenBatch.collate([text], [[c, 0.0, c]], first=START)),
            case.latents(text),
        )
        for c in (0.0, cost)
    )
    torch.testing.assert_close(dear, free + 2 * cost, rtol=1e-12, atol=0)
