"""Where the metric modules are, in a checkout and in a wheel."""

import pytest

from lm_latent_eval import metric
from lm_latent_eval.metric import metric_path


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
