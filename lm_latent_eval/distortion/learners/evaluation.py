"""Evaluation during training: validation loss, and scores after every epoch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lm_latent_eval.distortion.columns import Columns, Trajectory
from lm_latent_eval.distortion.languages.corpus import Corpus
from lm_latent_eval.distortion.learners.scores import scored_columns
from lm_latent_eval.distortion.learners.sequences import TokenSequences
from lm_latent_eval.distortion.sources import Unchanged
from lm_latent_eval.scoring.sequence_scorer import TokenIdModel

_ROWS_AT_ONCE = 4096


def nats_per_token(learner: TokenIdModel, sequences: TokenSequences) -> float:
    r"""Return the exact loss :math:`-\sum_i \log p(x_i) / \sum_i |x_i|`.

    The end of a sequence is a token where there is one.
    """
    log_p = 0.0
    for places in _pieces(range(len(sequences))):
        some = [sequences[place].tolist() for place in places]
        log_p += learner.score(some, places).log_p.sum().item()
    return -log_p / int(sequences.lengths.sum())


@dataclass(frozen=True)
class Tracked:
    """The first sequences of a corpus, scored after every epoch."""

    source: Unchanged
    trajectory: Trajectory

    @classmethod
    def begin(
        cls,
        directory: Path,
        corpus: Corpus,
        at_most: int,
        sequences_an_epoch: int,
        **about: Any,
    ) -> Tracked:
        """Make the folder of a trajectory, or go on with one.

        Args:
            directory: Where.
            corpus: Whose sequences.
            at_most: How many of them, if there are so many.
            sequences_an_epoch: Sequences of training between two scores.
            about: What else the scores depend on.

        Raises:
            ValueError: If the directory is of other settings.
        """
        source = Unchanged(corpus, min(at_most, corpus.num_sequences))
        trajectory = Trajectory.begin(
            directory,
            source.indices,
            sequences_an_epoch,
            corpus=corpus.settings,
            **about,
        )
        return cls(source, trajectory)

    def score(self, learner: TokenIdModel, epoch: int) -> None:
        """Write the scores after an epoch, counted from 1."""
        parts = [
            scored_columns(learner, self.source, some)
            for some in _pieces(self.source.indices)
        ]
        self.trajectory.write(epoch, Columns.cat(parts))


def _pieces(indices: range) -> Iterator[range]:
    for start in range(0, len(indices), _ROWS_AT_ONCE):
        yield indices[start : start + _ROWS_AT_ONCE]
