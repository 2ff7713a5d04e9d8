"""Columns on disk: what is in them, and what an interruption leaves."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch

from lm_latent_eval.distortion.columns import Columns, ScoresFolder, Trajectory

ABOUT = {"first": 5, "num_sequences": 7, "rows_each": 2, "shard_size": 3}


def rows(indices: range, rows_each: int = 2) -> Columns:
    index = torch.tensor(indices).repeat_interleave(rows_each)
    edits = torch.arange(rows_each).repeat(len(indices))
    true = -(index + 0.25 * edits).double()
    return Columns(
        index=index,
        edits=edits.to(torch.int16),
        num_tokens=(index + edits).to(torch.int32),
        ended=index % 2 == 0,
        true_log_p=true.masked_fill(index == 6, -torch.inf),
        model_log_p=1.5 * true,
        stderr=true.abs() / 100,
    )


def test_what_is_written_is_read(tmp_path):
    ScoresFolder.fill(tmp_path, ABOUT, rows, at_once=2, quiet=True)
    scores = ScoresFolder.open(tmp_path)
    expected = rows(range(5, 12))
    for found in (scores.columns(), Columns.cat([*scores.batches()])):
        for each in fields(Columns):
            one, other = getattr(found, each.name), getattr(expected, each.name)
            assert one.equal(other)
            assert one.dtype == other.dtype
    assert [len(batch) for batch in scores.batches()] == [4, 2, 4, 2, 2]
    assert expected.impossible.nonzero()[:, 0].tolist() == [2, 3]
    assert expected[expected.index == 7].true_log_p.tolist() == [-7, -7.25]


def test_epochs(tmp_path):
    trajectory = Trajectory.begin(tmp_path, range(5, 9), 100, model="m")
    with pytest.raises(ValueError, match="has no epochs"):
        trajectory.epochs()
    columns = rows(range(5, 9), 1)
    for epoch in (1, 2, 3):
        found = replace(columns, model_log_p=columns.model_log_p / epoch)
        trajectory.write(epoch, found)
    epochs = Trajectory.open(tmp_path).epochs()
    for epoch, found in enumerate(epochs, start=1):
        assert found.model_log_p.equal(columns.model_log_p / epoch)
    assert Trajectory.open(tmp_path).settings["sequences_an_epoch"] == 100
    with pytest.raises(ValueError, match="model is m there and n here"):
        Trajectory.begin(tmp_path, range(5, 9), 100, model="n")
    (tmp_path / "epochs" / "00002.arrow").unlink()
    with pytest.raises(ValueError, match=r"00002.arrow is missing or cut short"):
        trajectory.epochs()
