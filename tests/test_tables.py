"""The tables of names agree: models, entry points, backends."""

from __future__ import annotations

import re
import tomllib
from dataclasses import fields
from importlib import import_module

import pytest
from lm_eval.api.model import LM

from lm_latent_eval.models import (
    MODELS,
    WRAPPERS,
    known_types,
    model_class,
    name_of,
)
from lm_latent_eval.scoring.interface import TextModel
from tests.conftest import PROJECT

ENTRY_POINTS = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"][
    "entry-points"
]["lm_eval.models"]


LATENT = [alias for alias in ENTRY_POINTS if alias.startswith("latent_")]


def test_every_model_has_a_backend():
    models = {f"latent_{name}" for name in (*MODELS, *WRAPPERS)}
    assert {*LATENT} == models | {"latent_mixture"}  # of other backends, not a model
    assert ENTRY_POINTS.keys() - {*LATENT} == {"kenlm", "latent"}


def test_n_gram_models_have_a_backend():
    module, _, name = ENTRY_POINTS["kenlm"].partition(":")
    assert issubclass(getattr(import_module(module), name), LM)


@pytest.mark.parametrize("alias", LATENT)
def test_a_backend_is_found_and_names_its_model(alias):
    module, _, name = ENTRY_POINTS[alias].partition(":")
    backend = getattr(import_module(module), name)
    assert f"latent_{backend.model_name}" == alias


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_found(name):
    model = model_class(name)
    assert MODELS[name].endswith(f":{model.__name__}")
    assert name_of(model.config_class.model_type) == name


@pytest.mark.parametrize("name", WRAPPERS)
def test_what_wraps_a_network_is_found_by_its_name_alone(name):
    model = model_class(name)
    assert WRAPPERS[name].endswith(f":{model.__name__}")
    assert isinstance(model, TextModel) and fields(model.options())
    assert name_of(name) is None, "its directories are those of transformers"


def test_types_of_others_are_not_ours():
    assert name_of("lstm") is name_of("bert") is name_of(None) is None
    assert len(known_types()) == len(MODELS)


def test_an_unknown_model_lists_its_neighbours():
    with pytest.raises(
        ValueError, match=re.escape("no latent model 'klgm'; there is nklm, kg")
    ):
        model_class("klgm")
