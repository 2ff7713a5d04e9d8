"""Options that no table can check: which devices are there."""

from __future__ import annotations

import torch

from lm_latent_eval.scoring.options import parse_device


def test_devices_that_are_there_are_taken(monkeypatch, caplog):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [str(parse_device(name)) for name in ("cpu", "cuda:1")] == ["cpu", "cuda:1"]
    assert not caplog.text
    assert str(parse_device("cuda:2")) == "cpu"
    assert "device=cuda:2 is not there; using the CPU" in caplog.text
