"""Options: how values are read, and one table that all signatures and pages follow."""

import inspect
import math
from dataclasses import fields, make_dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lm_latent_eval import models
from lm_latent_eval.harness.backends import Latent
from lm_latent_eval.options import (
    at_least_0,
    integer,
    one_of,
    positive,
    read,
    table,
    whole,
)
from lm_latent_eval.scoring.interface import TextModel
from lm_latent_eval.scoring.model import load
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
        (Latent.__init__, [OpeningOptions]),
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


def test_none_can_be_given_where_it_is_a_value():
    """lm-eval makes None of it."""
    kinds = map(models.model_class, models.MODELS | models.WRAPPERS)
    offered = [k.options() for k in kinds if issubclass(k, TextModel)]
    tables = (ScoringOptions, *offered)
    found = 0
    for kind in tables:
        for row in table(kind):
            said = {*(row.choices() if row.choices else ()), row.unset}
            if "none" in said:
                found += 1
                assert row.read(row.name, None) == row.read(row.name, "none")
                assert row.read(row.name, None) == row.default, row.name
    assert found > 2, "premise"


def test_the_default_is_a_value_that_can_be_read():
    for row in ROWS.values():
        if row.default is not None:
            assert row.read(row.name, str(row.default)) == row.default
        assert (row.default is None) is (row.unset is not None)


def test_a_dataclass_whose_annotations_are_types_is_read_by_them():
    """As a package has it that does not postpone the evaluation of annotations."""

    made = make_dataclass("Options", [("number", int, 1), ("share", float | None, 1)])
    made.__doc__ = "A table.\n\nAttributes:\n    number: One.\n    share: Another."
    assert read(made, {"number": "2"}).number == 2
    with pytest.raises(ValueError, match="number='two': expected a whole number"):
        read(made, {"number": "two"})


# -- values ----------------------------------------------------------------------------


@given(st.integers(), st.integers(0, 2**53))
def test_whole_numbers_are_read_to_the_last_digit(number, short):
    assert integer(number) == integer(str(number)) == number
    assert integer(float(short)) == integer(repr(float(short))) == short
    assert integer(np.float64(short)) == short


@pytest.mark.parametrize(
    "value", [1.5, "1.5", "1e-3", math.inf, "inf", "nan", "1e400", "", None, True, [1]]
)
def test_what_is_no_whole_number_is_refused(value):
    with pytest.raises(ValueError, match="expected a whole number"):
        integer(value)
    with pytest.raises(
        ValueError, match=r"k=.*: expected a whole number of at least 1"
    ):
        whole("k", value, 1)


def test_limits():
    assert whole("k", "1e3", 1000) == 1000
    with pytest.raises(ValueError, match=r"k=999: .* at least 1000"):
        whole("k", 999, 1000)
    assert at_least_0("t", "0") == 0
    for value in (0, -1, "inf", math.nan, "hot", None, True):
        with pytest.raises(ValueError, match=r"t=.*: expected a positive number"):
            positive("t", value)
    for value in (-1, "inf", math.nan, "hot", None, True):
        with pytest.raises(ValueError, match=r"t=.*: expected a number of at least 0"):
            at_least_0("t", value)
    with pytest.raises(ValueError, match="did you mean beam"):
        one_of("estimator", "bean", ["is", "beam"])
