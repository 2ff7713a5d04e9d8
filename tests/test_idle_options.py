"""Options of the command line that have no effect are said by name."""

from __future__ import annotations

import pytest

from lm_latent_eval.cli import main


def said(capsys, *command: str) -> str:
    """What a command says first; with nothing to work on, it then ends in an error."""
    assert main([*command]) == 2
    return capsys.readouterr().err.splitlines()[0]


@pytest.mark.parametrize(
    ("command", "named", "why"),
    [
        (
            [
                "study",
                "--report",
                "none",
                "--output",
                "out",
                "--seed=3",
                "--limit",
                "2",
            ],
            "--limit, --seed",
            "--report runs nothing",
        ),
        (
            ["distort", "study", "--report", "--output", "out", "--plan", "gpt2"],
            "--plan",
            "--report runs nothing",
        ),
        (
            ["compare", "a.json", "b.json", "--num-samples", "9", "--data", "c"],
            "--data, --num-samples",
            "no side is a checkpoint",
        ),
        (
            ["export", "none", "--to", "model-card", "--output", "x", "--task-id", "t"],
            "--task-id",
            "--to model-card has no place for it",
        ),
        (
            ["distort", "measure", "lengths", "a=b", "--output", "x", "--num-bins=7"],
            "--num-bins",
            "lengths needs none",
        ),
        (
            ["train", "rnng", "--data=a", "--dev=b", "--output=x", "--num-samples=3"],
            "--num-samples",
            "trees are drawn by --objective unsupervised",
        ),
    ],
)
def test_options_without_effect(command, named, why, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert said(capsys, *command).startswith(f"{named}: no effect, {why}")


def test_options_that_were_not_given_are_not_named(capsys, tmp_path):
    """A default is no choice of anybody."""
    command = ["distort", "measure", "lengths", "a=none", "--output", str(tmp_path)]
    assert "--num-bins" not in said(capsys, *command)
