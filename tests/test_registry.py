"""Who offers what: tables of names of ours, entry points of other packages, places."""

from __future__ import annotations

import sys
import tomllib
from dataclasses import dataclass
from importlib import import_module
from textwrap import dedent
from typing import ClassVar

import pytest
from lm_eval.api.model import LM

from lm_latent_eval import models
from lm_latent_eval.inference import ImportanceSampling
from lm_latent_eval.models import MODELS, WRAPPERS, model_class, name_of, proposals
from lm_latent_eval.models.checkpoint import load_checkpoint
from lm_latent_eval.models.proposals import proposal_named
from lm_latent_eval.registry import ESTIMATORS, Registry
from lm_latent_eval.scoring.options import ScoringOptions
from lm_latent_eval.scoring.scorer import Scorer
from tests.conftest import PROJECT

ENTRY_POINTS = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"][
    "entry-points"
]["lm_eval.models"]
LATENT = [alias for alias in ENTRY_POINTS if alias.startswith("latent_")]


def test_every_model_has_a_backend():
    models = {f"latent_{name}" for name in (*MODELS, *WRAPPERS)}
    assert {*LATENT} == models | {"latent_mixture"}  # of other backends, not a model
    assert ENTRY_POINTS.keys() - {*LATENT} == {"kenlm", "latent"}
    for alias, place in ENTRY_POINTS.items():
        module, _, name = place.partition(":")
        backend = getattr(import_module(module), name)
        assert issubclass(backend, LM)
        assert alias not in LATENT or f"latent_{backend.model_name}" == alias


def test_models_are_found_by_their_type():
    for name in MODELS:
        assert name_of(model_class(name).config_class.model_type) == name
    for other in ("lstm", "bert", None, *WRAPPERS):
        assert name_of(other) is None, "a directory of transformers"


REGISTRIES = (models.REGISTRY, proposals.REGISTRY, ESTIMATORS)


@dataclass(frozen=True)
class Twice(ImportanceSampling):
    """An estimator of another package."""

    name: ClassVar[str] = "twice"


def prior(model, temperature):
    """A proposal of another package."""
    return model.proposal("prior", temperature)


@pytest.fixture
def declare(tmp_path, monkeypatch):
    """Return what installs a package of nothing but entry points."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def declared(entry_points, distribution="theirs"):
        info = tmp_path / f"{distribution}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Name: {distribution}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(dedent(entry_points))

    return declared


def test_a_declared_name_is_found_late(declare, tmp_path):
    declare(
        """
        [lm_latent_eval.models]
        declared_late = declared_late.inner:Holder.Model
        """
    )
    package = tmp_path / "declared_late"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "inner.py").write_text("class Holder:\n    class Model: ...\n")
    assert name_of("declared_late") == "declared_late"
    assert "declared_late" in models.known_types()
    assert "declared_late" not in sys.modules
    assert model_class("declared_late").__qualname__ == "Holder.Model"
    assert model_class("declared_late.inner:Holder").__name__ == "Holder"


def test_names_of_several_packages_are_told_apart(declare):
    mine = "[lm_latent_eval.models]\nkglm = json:JSONDecoder\nhmm = json:JSONDecoder\n"
    declare(mine, "one")
    assert model_class("kglm").__name__ == "KGLM", "ours win"
    for name, near in (("hm", "there is hmm"), ("klgm", "there is nklm, kg")):
        with pytest.raises(ValueError, match=f"no latent model '{name}'; {near}"):
            model_class(name)
    declare("[lm_latent_eval.models]\nhmm = json:JSONEncoder\n", "other")
    with pytest.raises(ValueError, match="name one of json:JSONDecoder, json:JSONE"):
        model_class("hmm")
    assert model_class("json:JSONEncoder").__name__ == "JSONEncoder"
    with pytest.raises(ValueError, match="no thing 'x'; "):
        Registry("of.nobody", "thing", {})["x"]


@pytest.mark.parametrize("place", ["no_such.module:Class", "json:Nothing", ":x", "x:"])
@pytest.mark.parametrize("registry", REGISTRIES, ids=lambda r: r.what)
def test_what_cannot_be_imported_names_its_place(registry, place):
    with pytest.raises(ValueError, match=f"{place}.*is its package installed"):
        registry[place]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        ("RuntimeError", "raise RuntimeError('one\\ntwo')"),
        ("SystemExit", "raise SystemExit(0)"),
    ],
)
@pytest.mark.parametrize("registry", REGISTRIES, ids=lambda r: r.what)
def test_a_package_that_raises_is_named(declare, tmp_path, registry, error, code):
    declare(f"[{registry.group}]\nbroken = raising_{error}:Model\n")
    (tmp_path / f"raising_{error}.py").write_text(code)
    assert "broken" in registry.names(), "premise"
    with pytest.raises(ValueError, match=rf"'broken' .*ends in {error} .*: repair"):
        registry["broken"]
    assert all(registry[name] for name in registry.ours), "the others are there"


@pytest.fixture(scope="module")
def checkpoint(kglm_directory):
    return load_checkpoint(kglm_directory)


@pytest.mark.parametrize("name", ["twice", f"{__name__}:Twice"])
def test_an_estimator_of_another_package_serves_any_model(checkpoint, declare, name):
    declare(f"[lm_latent_eval.estimators]\ntwice = {__name__}:Twice\n")
    options = ScoringOptions.parse({"estimator": name, "num_samples": "5"})
    scorer = Scorer(checkpoint, options)
    assert isinstance(scorer.evaluation.method, Twice)
    assert scorer.fingerprint["estimator"] == name
    assert "importance sampling from the" in scorer.about["latent_eval"]["how"]
    with pytest.raises(ValueError, match=r"prior at .* is no class below"):
        Scorer(checkpoint, ScoringOptions(estimator=f"{__name__}:prior"))
    with pytest.raises(ValueError, match=r"estimator='twi': .*did you mean twice"):
        ScoringOptions.parse({"estimator": "twi"})


@pytest.mark.parametrize("name", ["mine", f"{__name__}:prior"])
def test_a_proposal_of_another_package_is_the_model_s(checkpoint, declare, name):
    declare(f"[lm_latent_eval.proposals]\nmine = {__name__}:prior\n")
    scorer = Scorer(checkpoint, ScoringOptions(estimator="is", proposal=name))
    assert scorer.fingerprint["proposal"] == name
    proposal = proposal_named(checkpoint.model, name, 2.0)
    assert (proposal.name, proposal.temperature) == ("prior", 2.0)
    with pytest.raises(ValueError, match="proposal='their': this checkpoint has"):
        proposal_named(checkpoint.model, "their")
