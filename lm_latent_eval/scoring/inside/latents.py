"""Most probable latents of texts, each with log p(x, z) and its share of p(x)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lm_latent_eval.devices import fetched
from lm_latent_eval.inference.particles import log_joint
from lm_latent_eval.latent import Description, parts_of, rebuilt
from lm_latent_eval.models.proposals import NoLatents
from lm_latent_eval.scoring.evaluation import Evaluation
from lm_latent_eval.scoring.texts import Text, naming


@dataclass(frozen=True)
class BestLatent:
    log_joint: float
    """log p(x, z), nats."""
    share: float
    """p(x, z) over the sum of all latents that a search found: p(z | x), or more."""
    is_exact: bool
    """Whether the search has left nothing out, so that the share is p(z | x)."""
    description: Description


@dataclass(frozen=True)
class BestLatents:
    """The most probable latents of a text, or of one of its sentences."""

    index: int
    """Index of the query."""
    words: list[str]
    latents: list[BestLatent]
    """The best first; fewer than asked for where there are no more."""


@torch.inference_mode()
def best_latents(
    evaluation: Evaluation, text: Text, words: list[str], top: int
) -> BestLatents:
    """Search the latents of one text.

    Args:
        evaluation: Its ``num_samples`` is the width of the search.
        text: The text, as ids.
        words: The same as strings, its end left out.
        top: How many latents to describe.

    Raises:
        ValueError: If the model has no latents, or its proposal searches for none.
    """
    model, proposal = evaluation.model, evaluation.proposal
    if proposal.name == NoLatents.name:
        raise ValueError("the model has no latents that could be shown")
    with naming(text.query):
        batch = evaluation.collate([text])
        q = proposal.encode(batch)
        beam = proposal.beam(q, evaluation.options.num_samples)
        log_p = log_joint(model, model.encode(batch), beam) + text.log_spacing
    (log_p, score, *parts), cut = (
        fetched(log_p, beam.score, *parts_of(beam.latents)),
        beam.cut is None or bool(beam.cut.any()),
    )
    log_p = log_p.masked_fill(score.isneginf(), -torch.inf)[0]

    def describe(k: int) -> Description:
        one = rebuilt(beam.latents, [part[:1, k : k + 1] for part in parts])
        return model.describe(words, one, evaluation.reader.decode)

    return BestLatents(text.query.index, words, ranked(log_p, top, not cut, describe))


def ranked(
    log_p: Tensor, top: int, is_exact: bool, describe: Callable[[int], Description]
) -> list[BestLatent]:
    """Describe the most probable of latents.

    Args:
        log_p: log p(x, z) of each that a search found, nats, (K,).
        top: How many to describe.
        is_exact: Whether the search has left nothing out.
        describe: Describes one, by its number.
    """
    total = log_p.logsumexp(0).item()
    order = log_p.argsort(descending=True, stable=True)[:top]
    return [
        BestLatent(value, math.exp(value - total), is_exact, describe(k))
        for k, value in zip(order.tolist(), log_p[order].tolist(), strict=True)
        if value > -math.inf
    ]
