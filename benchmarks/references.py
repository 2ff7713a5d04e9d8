"""What log p of a text is taken to be, where nobody can sum over all latents.

Two estimates that share nothing: each sums what a search of its own finds and draws the
rest from a seed of its own, one by the model's first proposal, one by the next. Where
they agree, the text has converged, and its reference is made of all they found and
drew. Where they do not, draws are multiplied by four until there are ``most`` of them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from lm_latent_eval.estimators import log_evidence, stderr
from lm_latent_eval.inference import BeamMarginalization, ImportanceSampling
from lm_latent_eval.inference.mixed import Population, is_in
from lm_latent_eval.inference.particles import Particles
from lm_latent_eval.models.checkpoint import Checkpoint
from lm_latent_eval.scoring.options import ScoringOptions
from lm_latent_eval.scoring.scorer import Scorer
from lm_latent_eval.scoring.texts import Query, Text
from lm_latent_eval.text.corpora import read_texts

ELSEWHERE = 10_000
"""The first seed of references, which no setting draws from."""
FEWEST = 500
"""Draws that each of the two begins with."""


@dataclass(frozen=True)
class Reference:
    """What a text's log p is taken to be, nats, and how surely."""

    log_p: float
    stderr: float
    apart: float
    """By how much the two estimates differ, nats."""
    draws: int
    """Of both."""

    def has_converged(self, within: float) -> bool:
        """Whether the two agree, and the draws' own error is no larger."""
        return max(self.apart, self.stderr) <= within


def of_texts(
    checkpoint: Checkpoint,
    texts: Sequence[Text],
    *,
    width: int,
    most: int,
    within: float = 0.01,
    kept: Path | None = None,
) -> list[Reference]:
    """Find the reference of every text.

    Args:
        checkpoint: The model.
        texts: Whole texts.
        width: Of the beams.
        most: Draws of a text.
        within: Nats within which the two agree.
        kept: A file of references, which are read or written.
    """
    known = json.loads(kept.read_text()) if kept and kept.exists() else {}
    with torch.no_grad():
        for text in texts:
            key = f"{checkpoint.digest} {text.name} {text.query.text}"
            if key not in known:
                known[key] = asdict(_of(checkpoint, text, width, most, within))
                if kept:
                    kept.write_text(json.dumps(known, indent=1) + "\n")
            print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    keys = [f"{checkpoint.digest} {text.name} {text.query.text}" for text in texts]
    return [Reference(**known[key]) for key in keys]


def _of(
    checkpoint: Checkpoint, text: Text, width: int, most: int, within: float
) -> Reference:
    names = checkpoint.model.proposal_names
    found, by = [], [names[0], names[min(1, len(names) - 1)]]
    for name in by:
        scorer = _scorer(checkpoint, ELSEWHERE, name)
        batch = scorer.evaluation.collate([text])
        q = scorer.proposal.encode(batch)
        p = scorer.model.encode(batch)
        found.append(
            BeamMarginalization(width).search(scorer.model, scorer.proposal, p, q)[0]
        )
    draws = FEWEST
    while True:
        drawn = [_draws(checkpoint, text, ELSEWHERE + n, draws) for n in range(2)]
        one, other = (
            _joined(b, d) + text.log_spacing for b, d in zip(found, drawn, strict=True)
        )
        every = _joined(_union(*found), _beside(*drawn)) + text.log_spacing
        reference = Reference(
            log_evidence(every).item(),
            stderr(every).item(),
            abs(log_evidence(one) - log_evidence(other)).item(),
            2 * draws,
        )
        if reference.has_converged(within) or 2 * draws >= most:
            return reference
        draws = min(4 * draws, most // 2)


def _scorer(checkpoint: Checkpoint, seed: int, proposal: str | None) -> Scorer:
    options = ScoringOptions.parse(seed=seed, proposal=proposal)
    return Scorer(checkpoint, options, quiet=True)


def _draws(checkpoint: Checkpoint, text: Text, seed: int, number: int) -> Particles:
    scorer = _scorer(checkpoint, seed, None)
    batch, keys = scorer.evaluation.collate([text]), scorer.evaluation.keys([text])
    encoded = scorer.model.encode(batch), scorer.proposal.encode(batch)
    log_w, path = ImportanceSampling(number).draw(
        scorer.model, scorer.proposal, batch, keys, encoded
    )
    return Particles(None, None, log_w, log_w, path)


def _joined(found: Particles, drawn: Particles) -> torch.Tensor:
    """Return logarithms of unbiased estimates of p(x), one a draw."""
    sizes = [drawn.log_w.shape[1], *[found.log_w.shape[1]] * 2]
    outside, log_p, _ = Population(found, drawn).log_w[0].split(sizes)
    unbiased: torch.Tensor = outside.logaddexp(log_p.logsumexp(-1))
    return unbiased


def _union(one: Particles, other: Particles) -> Particles:
    """Join what two searches found, each latent once."""
    again = is_in(other.path, one.path, ~one.log_q.isneginf())
    other = replace(
        other,
        log_w=other.log_w.masked_fill(again, -torch.inf),
        log_q=other.log_q.masked_fill(again, -torch.inf),
    )
    return _beside(one, other)


def _beside(one: Particles, other: Particles) -> Particles:
    return Particles(
        None,
        None,
        torch.cat([one.log_w, other.log_w], 1),
        torch.cat([one.log_q, other.log_q], 1),
        torch.cat([one.path, other.path], 1),
    )


def texts_of(
    checkpoint: Checkpoint,
    data: Path,
    *,
    every: int,
    most: int,
    words: int,
    skip: int = 0,
) -> list[Text]:
    """Read every N-th text of a file, and keep those that are not too long."""
    cutter = Scorer(checkpoint, ScoringOptions(), quiet=True).cut
    return [
        text
        for number, string in enumerate(read_texts(data)[skip::every])
        for text in cutter.whole(Query(number, f"text/{number}", string))
        if 0 < len(text.words) <= words
    ][:most]
