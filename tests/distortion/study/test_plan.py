"""Plans, the models that they name, and natural texts in parts that share nothing."""

import json
from pathlib import Path

import pytest

from lm_latent_eval.distortion.study.plan import SIZES, DistortionPlan, Learners, plans
from lm_latent_eval.distortion.study.steps import natural_texts, write_texts
from lm_latent_eval.text.corpora import read_texts

MINI = Path(__file__).with_name("mini.json")
LATENT = json.loads(MINI.read_text())["latent"]


def changed(tmp_path, **changes):
    found = json.loads(MINI.read_text()) | changes
    path = tmp_path / "plan.json"
    kept = {name: value for name, value in found.items() if value is not None}
    path.write_text(json.dumps(kept))
    return path


def test_built_in_plans():
    assert plans() == ["gpt2", "small"]
    for name in plans():
        plan = DistortionPlan.read(name)
        assert DistortionPlan.of(plan.settings()) == plan
        for size in plan.sizes.values():
            if "architecture" not in size:
                assert {"model_type", "learning_rate"} <= set(size)
    with pytest.raises(ValueError, match=r"tiny is no plan .* are gpt2, small"):
        DistortionPlan.read("tiny")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_test": None}, "missing: num_test"),
        ({"num_tests": 3}, "unknown: num_tests"),
        ({"latent": {}}, "latent: missing: epochs, estimates, hidden_size"),
        ({"sizes": {"small": {}}}, "sizes: lstm, medium, large missing"),
        (
            {"sizes": {size: {"architecture": "gpt3"} for size in SIZES}},
            "no architecture 'gpt3'; there is gpt2-small",
        ),
        ({"temperatures": [0.85]}, "figures use 1.0, which is missing"),
        ({"temperatures": [0.85, 0.8500001, 1.0]}, "0.85, 0.85, 1: .* two are alike"),
        ({"num_random": 0}, "num_random=0: expected a whole number of at least 1"),
        ({"latent": LATENT | {"estimates": [["pior", 9]]}}, "did you mean prior"),
        ({"latent": LATENT | {"estimates": [["prior"]]}}, "a proposal and a number"),
        ({"latent": LATENT | {"language": 3}}, "language=3: expected a name"),
        ({"latent": LATENT | {"max_words": 11}}, "trees are summed of 10 at most"),
        ({"latent": LATENT | {"estimates": [["prior", 0]]}}, "samples=0: expected"),
        ({"num_tracked": 65}, "num_tracked=65: there are 64 training and 120 test"),
        ({"seed": 2**32}, "seed=4294967296: expected .* at most 4294967295"),
        ({"num_bins": 41}, "num_bins=41: 40 sequences are tracked"),
        ({"num_perturbed": 121}, "num_perturbed=121: there are 120 test"),
    ],
)
def test_a_wrong_plan(changes, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        DistortionPlan.read(changed(tmp_path, **changes))


@pytest.mark.parametrize("plan", [3, {"latent": 3}, {"latent": {"estimates": 1}}])
def test_what_is_no_plan(plan):
    with pytest.raises(ValueError, match=r"plan: a value is of|latent: missing"):
        DistortionPlan.of(plan)


def test_models_have_names_of_their_own():
    names = [each.name for each in Learners(DistortionPlan.read(MINI)).all]
    assert len(names) == len(set(names))


def test_parts_of_a_file(tmp_path):
    path = tmp_path / "all.txt"
    lines = [f"text {n}" for n in range(100)]
    again = [line.replace(" ", "  ") for line in lines]
    path.write_text("\n".join([*again[:50], *lines]) + "\n")
    found = {part: [*natural_texts(path, part)] for part in ("language", "other")}
    assert found == {"language": lines[::2], "other": lines[1::2]}
    write_texts(iter(found["language"]), tmp_path / "language")
    parts = {
        name: read_texts(tmp_path / "language" / f"{name}.txt")
        for name in ("train", "dev", "test")
    }
    assert len(parts["train"]) == 45
    assert parts["dev"] == ["text 18", "text 58", "text 98"]
    assert parts["test"] == ["text 38", "text 78"]
    together = [text for texts in parts.values() for text in texts]
    assert sorted(together) == sorted(found["language"]), "each once"
    with pytest.raises(ValueError, match=r"too few texts for .*'test': 0"):
        write_texts(iter(["one", "two"]), tmp_path)


def test_demonstration_text():
    mine, other = (set(natural_texts(None, part)) for part in ("language", "other"))
    assert min(len(mine), len(other)) > 5000
    assert len(mine & other) < len(mine) / 2
    assert all(sentence[-1] in ".!?" for sentence in mine)
