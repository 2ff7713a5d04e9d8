"""Tunes the proposal of a checkpoint to a file of texts, and to the model's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from lm_latent_eval import manifest
from lm_latent_eval.latent import Mass, SentenceModel
from lm_latent_eval.models.checkpoint import Checkpoint, load_checkpoint
from lm_latent_eval.models.proposals import RANGES
from lm_latent_eval.models.tuning import FILE_NAME, Tuned, dumps, grouped, spaced
from lm_latent_eval.scoring.decoding import GenerationOptions
from lm_latent_eval.scoring.options import ScoringOptions
from lm_latent_eval.scoring.scorer import Scorer
from lm_latent_eval.scoring.texts import Cutter, Query, Text
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.unknown_words import UnknownWords
from lm_latent_eval.training.fitting import Fit, fit
from lm_latent_eval.training.options import FitBudget
from lm_latent_eval.training.supervised import only_trainer

LONGEST = 64
"""Words of a text that the model writes."""


def tune(
    directory: Path,
    texts: Sequence[str],
    *,
    proposal: str | None = None,
    budget: FitBudget | None = None,
    device: torch.device | str = "cpu",
) -> tuple[Checkpoint, str, Fit]:
    """Fit the strengths of a proposal to texts, and write them into its checkpoint.

    Nothing is written unless the proposal is better for it, and p does not change.

    Args:
        directory: The checkpoint.
        texts: None of which is to be scored; none at all if the budget has ``sleep``.
        proposal: Its name; None is the model's first.
        budget: How much to spend.
        device: Where to compute.

    Returns:
        The checkpoint as it is now, the proposal's name, and what was found.

    Raises:
        ValueError: If there is no such checkpoint here, its proposal has nothing to
            fit, a text cannot be scored, or another run trains or tunes it.
    """
    if not Path(directory).is_dir():
        raise ValueError(f"{directory} is no directory: what is tuned has to be here")
    with only_trainer(Path(directory), kept=None):
        return _tune(Path(directory), texts, proposal, budget or FitBudget(), device)


def _tune(
    directory: Path,
    texts: Sequence[str],
    proposal: str | None,
    budget: FitBudget,
    device: torch.device | str,
) -> tuple[Checkpoint, str, Fit]:
    checkpoint = load_checkpoint(directory, device=device)
    model = checkpoint.model
    name = model.proposal(proposal).name
    if not model.strengths(name):
        raise ValueError(
            f"{directory} is a {checkpoint.name} model: it draws no latents, so there "
            "is nothing to tune"
        )
    some = spaced(texts, budget.texts)
    cut = _cut(checkpoint, some, budget.texts)
    if budget.sleep:
        cut += _cut(checkpoint, written(checkpoint, budget), budget.sleep)
    if not cut:
        raise ValueError("no text has a word to tune by")
    batches = [_collate(checkpoint, group, device) for group in grouped(cut, _size)]
    found = fit(model, name, batches, RANGES, budget)
    if found.better:
        tuned = {**model.tuned, name: Tuned.of(found, some, budget)}
        digest = manifest.put(directory, FILE_NAME, dumps(tuned), checkpoint.digest)
        model.tuned = tuned
        checkpoint = replace(checkpoint, digest=digest)
    return checkpoint, name, found


def written(checkpoint: Checkpoint, budget: FitBudget) -> list[str]:
    """Return texts drawn from the model itself, as many as the budget's ``sleep``.

    Each word is drawn from what the latents of the text so far predict, so a text is a
    draw from p(x) but for their number.
    """
    options = ScoringOptions(num_samples=budget.num_samples, seed=budget.seed)
    how = GenerationOptions(until=(), max_tokens=LONGEST, temperature=1.0)
    queries = [(Query(n, f"sleep/{n}", ""), how) for n in range(budget.sleep)]
    found = dict(Scorer(checkpoint, options, quiet=True).generate(queries))
    return [found[n] for n in range(budget.sleep)]


def _cut(checkpoint: Checkpoint, texts: Sequence[str], most: int) -> list[Text]:
    """Return the words of texts, by sentence if the model wants it."""
    model = checkpoint.model
    cut = Cutter(
        checkpoint.encoder(),
        model.sentence_starts if isinstance(model, SentenceModel) else None,
        ends=model.mass in (Mass.ONE, Mass.LESS),
    )
    parts = [
        part
        for n, text in enumerate(texts)
        for part in cut.whole(Query(n, f"text/{n}", text))
        if part.words
    ]
    return spaced(parts, most)


def _size(text: Text) -> int:
    return len(text.words)


def _collate(
    checkpoint: Checkpoint, texts: Sequence[Text], device: torch.device | str
) -> TokenBatch:
    return TokenBatch.collate(
        [text.words for text in texts],
        [text.word_costs for text in texts],
        first=checkpoint.encoder().start,
        spelled=checkpoint.encoder().policy is UnknownWords.SPELLED,
        device=device,
    )
