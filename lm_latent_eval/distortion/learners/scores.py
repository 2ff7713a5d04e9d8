"""Scores of sequences under a language and a learner."""

from __future__ import annotations

from pathlib import Path

import torch

from lm_latent_eval.distortion.columns import Columns, ScoresFolder
from lm_latent_eval.distortion.sources import Source
from lm_latent_eval.scoring.sequence_scorer import TokenIdModel

_ROWS_AT_ONCE = 4096
_SHARD_ROWS = 100_000


def score_sequences(
    learner: TokenIdModel,
    source: Source,
    directory: Path,
    *,
    quiet: bool = False,
) -> ScoresFolder:
    """Score sequences, or those that are still missing.

    Memory does not grow with their number: rows are written as they come. An
    interrupted run in the directory goes on.

    Raises:
        ValueError: If the directory has other scores, or a sequence cannot be scored.
    """
    indices, rows_each = source.indices, source.rows_each
    settings = {
        **source.settings(),
        "corpus": source.corpus.settings,
        "learner": learner.settings(),
        "bound": str(learner.bound),
        "first": indices.start,
        "num_sequences": len(indices),
        "rows_each": rows_each,
        "shard_size": max(1, _SHARD_ROWS // rows_each),
    }
    return ScoresFolder.fill(
        directory,
        settings,
        lambda some: scored_columns(learner, source, some).batch(),
        at_once=max(1, _ROWS_AT_ONCE // rows_each),
        quiet=quiet,
    )


def scored_columns(learner: TokenIdModel, source: Source, indices: range) -> Columns:
    """Score all forms of some sequences."""
    found = source.read(indices)
    sequences = found.sequences
    index = torch.tensor(indices).repeat_interleave(source.rows_each)
    edits = torch.arange(source.rows_each).repeat(len(indices))
    # A learner that draws random numbers draws others for every row.
    rows = (index * source.rows_each + edits).tolist()
    scored = learner.score(sequences, rows)
    end_id = source.corpus.end_id
    return Columns(
        index=index,
        edits=edits.to(torch.int16),
        num_tokens=torch.tensor([len(ids) for ids in sequences], dtype=torch.int32),
        ended=torch.tensor([ids[-1] == end_id for ids in sequences]),
        true_log_p=found.log_p,
        model_log_p=scored.log_p,
        stderr=scored.stderr,
    )
