"""Laws of every latent language model.

A law takes a ``Case``: a model that is small enough to list every latent of a short
text. Sums over that list are the truth, and share nothing with what is tested but
``log_joint``, which the first law holds to a total of one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from lm_latent_eval.devices import wide_zeros
from lm_latent_eval.inference.particles import Particles
from lm_latent_eval.latent import LeftToRight, Normalization, Searches
from lm_latent_eval.testing.case import PREDICTED, Case, equal, hold, keys
from lm_latent_eval.testing.laws_of_left_to_right import (
    beams_go_on_where_they_were_cut,
    drawing_from_is_resampling_first,
    draws_from,
    filters_are_unbiased,
    pieces_are_scored_as_the_whole,
    reading_once_is_reading_again,
    reads_once,
    says_steps,
    thinned_searches_are_unbiased,
)
from lm_latent_eval.testing.laws_of_proposals import (
    beams_are_bounds_and_become_exact,
    company_moves_no_weight,
    device_moves_no_number,
    first_samples_are_those_of_fewer,
    importance_sampling_is_unbiased,
    latents_are_told_apart,
    total_is_one_and_covers_the_model,
)
from lm_latent_eval.text.words import END, START


@dataclass(frozen=True)
class Law:
    """One law and what it is to hold of: call it."""

    holds: Callable[[], None]
    of: str

    def __call__(self) -> None:
        """Raise a ``LawError`` if it does not hold."""
        self.holds()

    def __str__(self) -> str:
        return self.of


def laws(case: Case, device: str | None = None) -> list[Law]:
    """List the laws that a model and each of its proposals owe.

    Args:
        case: The model.
        device: An accelerator, such as ``cuda``, whose numbers are then held against
            those of the case, which is on the CPU. None: there is none.
    """
    goes_on = isinstance(case.model, LeftToRight)
    of_model = [*OF_MODELS, *(law for law in OF_PREDICTIONS if goes_on)]
    found = [Law(partial(law, case), law.__name__) for law in of_model]
    for name in case.proposals:
        stepwise = isinstance(case.proposal(name), LeftToRight)
        listed = isinstance(case.proposal(name), Searches)
        owed = [*OF_PROPOSALS, *(law for law in OF_SEARCHES if listed)]
        owed += [law for law in OF_LEFT_TO_RIGHT if stepwise]
        read = stepwise and name not in case.reads_on
        owed += [law for law in OF_PIECES if read]
        owed += [law for law in OF_CUT_SEARCHES if read and listed]
        once = stepwise and reads_once(case, name)
        owed += [law for law in OF_READING_ONCE if once]
        late = stepwise and draws_from(case, name)
        owed += [law for law in OF_DRAWING_FROM if late]
        by_steps = stepwise and says_steps(case, name)
        owed += [thinned_searches_are_unbiased] if by_steps else []
        found += [
            Law(partial(law, case, name), f"{law.__name__}-{name}") for law in owed
        ]
        if device is not None:
            law = partial(device_moves_no_number, case, name, device)
            found.append(Law(law, f"{device_moves_no_number.__name__}-{name}"))
    return found


PREDICTIONS = 50
"""Predictions from real-valued latents that are averaged."""


def total_is_that_of_its_normalization(case: Case) -> None:
    """Probabilities of all that can happen add up to one, or less if it says so."""
    mass, total = case.model.normalization, case.total()
    if mass is Normalization.ONE:
        hold(abs(total - 1) < case.exact(), f"a model that is {mass} totals {total}")
    if mass is Normalization.BELOW_ONE:
        hold(total <= 1 + case.exact(), f"a model that is {mass} totals {total}")


def predictions_are_ratios_of_prefixes(case: Case) -> None:
    """``next_token`` after latents that are all there, against sums over lists.

    Of real-valued latents the next one is drawn, so the mean of some predictions is
    held against the integral, by five standard errors of its own.
    """
    if case.model.normalization is Normalization.UNNORMALISED:
        return
    repeats = 1 if case.log_cell is None else PREDICTIONS
    for length in range(case.length):
        text = case.some_words(length)
        found = torch.stack([_predicted(case, text, key) for key in keys(repeats)])
        off = found.logsumexp(-1).abs().max().item()
        hold(off < PREDICTED or repeats > 1, f"after {text}: no total")
        prefix = case.log_p(text).item() if text else 0.0
        ends = () if not case.goes_on and not text else (END,)
        for word in (*case.words, *ends):
            exact = case.log_p([*text, word]).item() - prefix
            of_word, what = found[:, word], f"log p({word} | {text})"
            if repeats == 1:
                equal(of_word.item(), exact, PREDICTED, what)
                continue
            ratio = (of_word - exact).exp()
            error = ratio.std().item() / math.sqrt(repeats)
            equal(
                ratio.mean().item(), 1.0, 5 * error + case.exact(), f"ratio to {what}"
            )


def _predicted(case: Case, text: list[int], key: int) -> Tensor:
    state, log_w = None, wide_zeros((1, 1), case.device)
    if text:
        latents, encoded = (
            case.every_latent(text),
            case.model.encode(case.batch([text])),
        )
        log_w = case.model.log_joint(encoded, latents)
        # Cells have one size, so that weights need not know of it.
        state = case.model.advance(encoded, latents)
    here = Particles(state, state, log_w, log_w, log_w.long())
    last = torch.tensor([[START, *text][-1]], device=case.device)
    ahead = here.ahead(case.model, last, case.batch([text]).given)
    return ahead.next_token(case.model, [key], [len(text)])[0]


OF_MODELS = (total_is_that_of_its_normalization,)
OF_PREDICTIONS = (predictions_are_ratios_of_prefixes,)
OF_PROPOSALS = (
    total_is_one_and_covers_the_model,
    importance_sampling_is_unbiased,
    company_moves_no_weight,
    first_samples_are_those_of_fewer,
)
OF_SEARCHES = (beams_are_bounds_and_become_exact, latents_are_told_apart)
OF_LEFT_TO_RIGHT = (filters_are_unbiased,)
OF_PIECES = (pieces_are_scored_as_the_whole,)
OF_CUT_SEARCHES = (beams_go_on_where_they_were_cut,)
OF_READING_ONCE = (reading_once_is_reading_again,)
OF_DRAWING_FROM = (drawing_from_is_resampling_first,)
