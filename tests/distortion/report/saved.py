"""Folders of columns with known numbers, and the files of a figure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

from lm_latent_eval.distortion.columns import Columns, ScoresFolder
from tests.means import uniform


def columns(true_log_p: Tensor, model_log_p: Tensor, **changes: Any) -> Columns:
    number = len(true_log_p)
    found = {
        "index": torch.arange(number),
        "edits": torch.zeros(number, dtype=torch.int16),
        "num_tokens": (1 - true_log_p.clamp(min=-30)).to(torch.int32),
        "ended": torch.ones(number, dtype=torch.bool),
        "true_log_p": true_log_p.double(),
        "model_log_p": model_log_p.double(),
        "stderr": torch.zeros(number, dtype=torch.float64),
    }
    return Columns(**{**found, **changes})


def save(directory: Path, found: Columns, bound: str = "exact") -> Path:
    rows_each = int(found.edits.max()) + 1
    number = len(found) // rows_each
    about = {"first": 0, "num_sequences": number, "rows_each": rows_each}
    about |= {"shard_size": 1000, "bound": bound}

    def rows(some: range) -> pa.RecordBatch:
        return found[(found.index >= some.start) & (found.index < some.stop)].batch()

    ScoresFolder.fill(directory, about, rows, at_once=1024, quiet=True)
    return directory


def language(number: int = 400, seed: int = 0) -> Tensor:
    """Log-probabilities as a language has them: few frequent, many rare."""
    return 4 * uniform(number, 3, seed=seed).log().sum(-1) - 5


def written(path: Path) -> str:
    """Return the SVG of a figure whose PNG and PDF are there as well, undated."""
    assert path.with_name(path.name + ".png").read_bytes()[1:4] == b"PNG"
    pdf = path.with_name(path.name + ".pdf").read_bytes()
    assert pdf[:4] == b"%PDF" and b"CreationDate" not in pdf
    return path.with_name(path.name + ".svg").read_text(encoding="utf-8")
