"""One table of options: signatures, docstrings and documents agree with it."""

from __future__ import annotations

import inspect
from dataclasses import fields, make_dataclass

import pytest

from lm_latent_eval.harness.backends import Latent
from lm_latent_eval.models import MODELS, WRAPPERS
from lm_latent_eval.options import read, table
from lm_latent_eval.registry import ESTIMATORS
from lm_latent_eval.scoring.interface import TextModel
from lm_latent_eval.scoring.model import LatentModel, load
from lm_latent_eval.scoring.options import OpeningOptions, ScoringOptions
from tests import option_tables
from tests.conftest import PROJECT

ROWS = option_tables.rows()


def test_the_page_of_options_is_up_to_date():
    assert option_tables.PAGE.read_text("utf-8") == option_tables.page(), (
        "write it by `python -m tests.option_tables`"
    )


@pytest.mark.parametrize(("file", "name"), option_tables.DOCUMENTED)
def test_docstrings_say_what_the_tables_say(file, name):
    path = PROJECT / file
    assert path.read_text("utf-8") == option_tables.documented(path, name), (
        "write them by `python -m tests.option_tables`"
    )


@pytest.mark.parametrize(
    ("function", "kinds"),
    [
        (LatentModel.log_likelihood, [ScoringOptions]),
        (Latent.__init__, [OpeningOptions]),
        (LatentModel.generate, []),
        (load, []),
    ],
)
def test_signatures_have_the_names_and_defaults_of_the_tables(function, kinds):
    given = inspect.signature(function).parameters
    assert {field.name for kind in kinds for field in fields(kind)} <= given.keys()
    shared = ROWS.keys() & given.keys()
    assert shared
    for name in shared:
        # None is what the model has, which may be another number.
        assert given[name].default in (ROWS[name].default, None), name


def test_docstrings_list_every_option():
    for function in (LatentModel.log_likelihood, Latent):
        for row in table(ScoringOptions):
            assert f"\n    {row.name}: " in inspect.getdoc(function), row.name


def test_the_default_is_a_value_that_can_be_read():
    for row in ROWS.values():
        if row.default is not None:
            assert row.read(row.name, str(row.default)) == row.default
        assert (row.default is None) is (row.unset is not None)


def test_estimators_have_the_names_that_the_registry_lists():
    assert {name: ESTIMATORS[name].name for name in ESTIMATORS.ours} == {
        name: name for name in ESTIMATORS.ours
    }


def test_every_model_that_is_trained_has_its_sizes_listed():
    kinds = {
        name: option_tables.models.model_class(name) for name in (*MODELS, *WRAPPERS)
    }
    own = {name for name, kind in kinds.items() if issubclass(kind, TextModel)}
    assert MODELS.keys() - own <= option_tables.TRAINED.keys() <= kinds.keys()


def test_a_dataclass_whose_annotations_are_types_is_read_by_them():
    """As a package has it that does not postpone the evaluation of annotations."""

    def options(**kinds: object) -> type:
        about = "A table.\n\nAttributes:\n    number: One.\n    share: Another."
        columns = [(name, kind, 1) for name, kind in kinds.items()]
        made = make_dataclass("Options", columns)
        made.__doc__ = about
        return made

    found = read(options(number=int, share=float | None), {"number": "2"})
    assert found.number == 2
    with pytest.raises(ValueError, match="expected a whole number, not 'two'"):
        read(options(number=int, share=float), {"number": "two"})
