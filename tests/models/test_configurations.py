"""What a configuration declares of a value holds, and temperatures have limits."""

from __future__ import annotations

import math

import pytest

from lm_latent_eval.models.kglm.configuration import KGLMConfig
from lm_latent_eval.models.pretrained import value
from lm_latent_eval.values import Whole
from tests.test_laws import TINY_MODELS

FILLED = {"cell"}
"""Values that files of version 0.3 lack."""


@pytest.mark.parametrize("name", TINY_MODELS)
def test_no_value_of_another_kind_is_read(name):
    """Of any field of any model, none of which may be missing."""
    config = TINY_MODELS[name].build().config
    kind = type(config)
    content = {field: getattr(config, field) for field in config.rules}
    assert kind.from_dict(content).to_dict() == config.to_dict(), "premise"
    for field, right in content.items():
        rest = {n: v for n, v in content.items() if n != field}
        others = (None, True, -1, 1.5, "x", {}, [None], [right])
        wrong = [
            *([] if field in FILLED else [rest]),
            *(rest | {field: x} for x in others if type(x) is not type(right)),
        ]
        if isinstance(right, list):
            wrong += [rest | {field: [x]} for x in (None, -1, "x", 10**9)]
        for some in wrong:
            with pytest.raises(ValueError, match=field):
                kind.from_dict(some)


def test_a_class_of_another_package_may_add_values():
    class Declared(KGLMConfig):
        depth: int = value(3, Whole(1))
        cutoff: int = value(7, Whole(5))

    content = {name: getattr(Declared(cutoff=6), name) for name in Declared.rules}
    assert Declared.from_dict(content).depth == content.pop("depth") == 3
    for wrong in (content, content | {"depth": 0}):
        with pytest.raises(ValueError, match=r"depth is (missing|0)"):
            Declared.from_dict(wrong)
    assert Declared().cutoff == 7
    with pytest.raises(ValueError, match="cutoff is 4"):
        Declared(cutoff=4)


@pytest.mark.parametrize(
    "temperature", [0.0, -1.0, math.inf, math.nan, 5e-324, 0.00099, 1001, 1e9]
)
def test_a_temperature_is_positive_and_leaves_scores_their_digits(temperature):
    model = TINY_MODELS["rnng"].build()
    for allowed in (0.001, 1, 1000):
        model.proposal(temperature=allowed)
    with pytest.raises(ValueError, match=rf"^temperature={temperature}: expected a p"):
        model.proposal(temperature=temperature)
