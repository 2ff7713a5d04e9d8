"""A checkpoint that was changed is refused, or gives the same number."""

from __future__ import annotations

import json
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lm_latent_eval.models.checkpoint import rewrite_manifest
from lm_latent_eval.scoring.model import load
from tests.fuzz.law import Refused, finite, outcome, same, share
from tests.fuzz.strategies import VALUES

TEXTS = ["the fox saw Ada .", "zebra  Bo", "the"]
CHANGED = ("entitynlm", "kglm_spelled", "lstm_spelled", "rnn", "rnng", "srnn")


@pytest.fixture(scope="module")
def copies(folders, tmp_path_factory):
    """Return copies of the checkpoints that may be damaged."""
    root = tmp_path_factory.mktemp("changed")
    return {name: shutil.copytree(folders[name], root / name) for name in CHANGED}


def numbers(folder) -> list[float]:
    """Score a few texts with a checkpoint."""
    return [
        estimate.log_evidence
        for estimate in load(folder, device="cpu").log_likelihood(TEXTS, num_samples=3)
    ]


def compare(what, folder, original) -> None:
    """Hold a changed checkpoint to the law."""
    found = outcome(lambda: numbers(folder))
    if isinstance(found, Refused):
        return
    finite(what, *found)
    for one, other in zip(found, numbers(original), strict=True):
        same(what, one, other)


def files_of(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("name", CHANGED)
@share(0.5)
@given(data=st.data())
def test_a_flipped_bit_is_refused_or_moves_nothing(folders, copies, name, data):
    which = data.draw(st.sampled_from(files_of(folders[name])), "file")
    path, content = copies[name] / which, (folders[name] / which).read_bytes()
    at = data.draw(st.integers(0, 8 * len(content) - 1), "bit")
    flipped = bytearray(content)
    flipped[at // 8] ^= 1 << at % 8
    path.write_bytes(flipped)
    try:
        compare(f"a bit of {which}", copies[name], folders[name])
    finally:
        path.write_bytes(content)


@pytest.mark.parametrize("name", CHANGED)
def test_files_that_are_gone(folders, copies, name):
    """One, or any two: whatever belongs to a checkpoint is missed."""
    names = files_of(folders[name])
    for which in [{a, b} for a in names for b in names]:
        for gone in which:
            (copies[name] / gone).unlink()
        try:
            compare(f"{sorted(which)} gone", copies[name], folders[name])
        finally:
            for gone in which:
                shutil.copy(folders[name] / gone, copies[name] / gone)


@pytest.mark.parametrize("name", CHANGED)
@share(0.5)
@given(data=st.data())
def test_a_value_of_the_configuration_is_refused_or_moves_nothing(
    folders, copies, name, data
):
    config = json.loads((folders[name] / "config.json").read_text())
    key = data.draw(st.sampled_from(sorted(config)), "key")
    change(folders, copies, name, config | {key: data.draw(VALUES, "value")})


@pytest.mark.parametrize("name", CHANGED)
@share(0.5)
@given(data=st.data())
def test_a_checkpoint_changed_by_hand_is_refused_or_a_number(
    folders, copies, name, data
):
    """The number may be another after a new manifest, but is one."""
    config = json.loads((folders[name] / "config.json").read_text())
    key = data.draw(st.sampled_from(sorted(config)), "key")
    value = data.draw(VALUES, "value")
    (copies[name] / "config.json").write_text(json.dumps(config | {key: value}))
    try:
        if not isinstance(outcome(lambda: rewrite_manifest(copies[name])), Refused):
            found = outcome(lambda: numbers(copies[name]))
            if not isinstance(found, Refused):
                finite(f"{key}={value!r}", *found)
    finally:
        shutil.copytree(folders[name], copies[name], dirs_exist_ok=True)


@pytest.mark.parametrize("name", CHANGED)
def test_configurations_without_a_value(folders, copies, name):
    config = json.loads((folders[name] / "config.json").read_text())
    for key in config:
        change(folders, copies, name, {k: v for k, v in config.items() if k != key})


def change(folders, copies, name, config) -> None:
    """Hold a checkpoint with another configuration to the law."""
    path = copies[name] / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    try:
        compare("a configuration", copies[name], folders[name])
    finally:
        shutil.copy(folders[name] / "config.json", path)
