"""Laws notice what they are for: models and proposals that are wrong in one place."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from lm_latent_eval import testing
from lm_latent_eval.latent import Normalization
from lm_latent_eval.testing import LawError
from lm_latent_eval.text.words import UNKNOWN
from tests import tiny_models
from tests.kglm_space import every_walk
from tests.models.entitynlm import tiny
from tests.models.entitynlm.tiny import every_chain
from tests.simulated_device import SIMULATED, simulated_device


def laws() -> dict[str, testing.Law]:
    """Name -> law of a tiny model and its simplest proposal."""
    case = testing.Case(
        tiny.entitynlm(),
        lambda text: every_chain(len(text), tiny.MAX_LENGTH),
        (UNKNOWN, 4, 5),
        ("prior",),
        length=2,
    )
    listed = testing.laws(case, SIMULATED)
    return {str(law).removesuffix("-prior"): law for law in listed}


def test_laws_hold_of_models_that_total_less():
    graph = tiny_models.plain_graph()
    model = tiny_models.kglm(graph, only_possible=False)
    case = testing.Case(
        model,
        lambda text: every_walk(graph, len(text), 2, 1),
        (UNKNOWN, 4, 5),
        ("prior",),
        copied=5,
        length=2,
    )
    assert model.normalization is Normalization.BELOW_ONE and case.total() < 0.9
    for law in testing.laws(case)[:2]:
        law()


@pytest.fixture
def change(monkeypatch):
    """Return what puts a method around one of the model's, or of its proposal's."""
    model = tiny.entitynlm()
    kinds = {"p": type(model), "q": type(model.proposal("prior"))}

    def changed(kind, name, around):
        right = getattr(kinds[kind], name)
        monkeypatch.setattr(
            kinds[kind], name, lambda self, *given: around(right, self, *given)
        )

    return changed


def _with(field, change):
    """Change one field of what a method gives."""

    def changed(right, *given):
        found = right(*given)
        return replace(found, **{field: change(getattr(found, field))})

    return changed


_too_probable = _with("log_q", lambda log_q: log_q - 0.5)
_without_the_first = _with(
    "score", lambda score: score.index_fill(1, torch.tensor([0]), -torch.inf)
)
_swapped = _with("origin", lambda origin: origin.flip(1))
_unweighed = _with("log_f", torch.zeros_like)
_left_on_the_host = _with("log_q", torch.Tensor.cpu)


def _flipped(axis):
    def sample(right, self, encoded, uniforms, number):
        return right(self, encoded, lambda step: uniforms(step).flip(axis), number)

    return sample


def _one_number(right, self, encoded, uniforms, number):
    return right(self, encoded, lambda step: uniforms(0), number)


def _as_it_was(right, self, encoded, batch, after):
    return encoded


def _all_from_the_first(right, self, encoded, uniforms, origin):
    draws, _ = right(self, encoded, uniforms, torch.zeros_like(origin))
    return draws, origin


def _unpadded(right, self, encoded, *given):
    """Latents of a text go on after its end."""
    draws = right(self, encoded, *given)
    beyond = ~encoded.batch.inside[:, None]
    entity = draws.latents.entity.masked_fill(beyond, 1)
    return replace(draws, latents=draws.latents._replace(entity=entity))


CHANGES = {
    "total_is_that_of_its_normalization": (
        "p",
        "log_joint",
        lambda f, *x: f(*x) + 0.01,
    ),
    "predictions_are_ratios_of_prefixes": (
        *("p", "next_token"),
        lambda f, *x: f(*x).roll(1, -1),
    ),
    "total_is_one_and_covers_the_model": ("q", "log_prob", lambda f, *x: f(*x) - 0.01),
    "wide_searches_are_exact": ("q", "search", _with("cut", torch.ones_like)),
    "bounds_are_true-prior-is": ("q", "sample", _too_probable),
    "bounds_are_true-prior-smc": ("q", "sample", _too_probable),
    "bounds_are_true-prior-dpf": ("q", "search", _unweighed),
    "beams_are_bounds_and_become_exact": (
        "q",
        "recombining_beam",
        _without_the_first,
    ),
    "latents_are_told_apart": ("q", "sample", _unpadded),
    "company_moves_no_weight": ("q", "sample", _flipped(0)),
    "first_samples_are_those_of_fewer": ("q", "sample", _flipped(1)),
    "pieces_are_scored_as_the_whole": ("q", "sample", _one_number),
    "beams_go_on_where_they_were_cut": ("q", "beam", _swapped),
    "reading_once_is_reading_again": ("q", "encode_again", _as_it_was),
    "drawing_from_is_resampling_first": ("q", "sample_from", _all_from_the_first),
    "device_moves_no_number": ("q", "sample", _left_on_the_host),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_wrong_in_one_place_is_noticed(name, change):
    law = laws()[name]
    with simulated_device() if name.startswith("device_") else nullcontext():
        law()
        change(*CHANGES[name])
        with pytest.raises((LawError, RuntimeError)):
            law()


def test_there_is_a_change_for_every_law():
    of_model = {name for name in laws() if "-" not in name}
    assert of_model == {name for name in CHANGES if "-" not in name}


def test_a_total_above_one_is_not_below_one(change, monkeypatch):
    change(*CHANGES["total_is_that_of_its_normalization"])
    kind = type(tiny.entitynlm())
    monkeypatch.setattr(kind, "normalization", Normalization.BELOW_ONE)
    with pytest.raises(LawError, match=r"that is sub-normalised totals 1\.01"):
        laws()["total_is_that_of_its_normalization"]()


@pytest.mark.parametrize("kept", [("batch",), ("state",), ("batch", "state")])
def test_a_model_that_keeps_what_is_no_longer_so(kept, change):
    """Predicted words that were unknown, and latents that a search has left."""

    def stale(right, self, encoded, *now):
        old = {name: getattr(encoded, name) for name in kept}
        return replace(right(self, encoded, *now), **old)

    change("q", "encode_again", lambda right, self, encoded, *now: self.encode(*now))
    law = laws()["reading_once_is_reading_again"]
    law()
    change("p", "encode_again", stale)
    wrong = "after encode_again and encode differ|expanded size"
    with pytest.raises((LawError, RuntimeError), match=wrong):
        law()
