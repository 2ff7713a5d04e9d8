from pathlib import Path

import pytest

import lm_latent_eval
from lm_latent_eval import metric
from lm_latent_eval.metric import METRICS, metric_path
from lm_latent_eval.metric_functions.columns import complete


def test_every_metric_has_a_path():
    for name in METRICS:
        assert Path(lm_latent_eval.metric_path(name), f"{name}.py").is_file()


def test_an_unknown_name_lists_near_ones():
    with pytest.raises(ValueError, match=r"there is contrastive_entropy$"):
        metric_path("contrastive_entropies")
    with pytest.raises(ValueError, match="there is contrastive_entropy, distortion_e"):
        metric_path("bleu")


def test_a_wheel_keeps_them_inside(tmp_path, monkeypatch):
    package = tmp_path / "lm_latent_eval"
    monkeypatch.setattr(metric, "__file__", str(package / "metric.py"))
    with pytest.raises(FileNotFoundError, match="metrics/information_rate is not"):
        metric_path("information_rate")

    inside = package / "metrics" / "information_rate"
    inside.mkdir(parents=True)
    (inside / "information_rate.py").touch()
    assert metric_path("information_rate") == str(inside)


def test_columns_are_checked_and_filled():
    assert complete({"a": [1], "x": 2}, ["a"], ["b"]) == {"a": [1], "x": 2, "b": [None]}
    assert complete({"a": None}, [], ["a", "b"], stored=3) == {"a": None}
    with pytest.raises(ValueError, match="missing: b "):
        complete({"a": [1]}, ["a", "b"], stored=3)
    with pytest.raises(ValueError, match="missing: a, b "):
        complete({"a": None}, ["a", "b"])
