"""Checks of one step of a ``StepLM``, on a few words of given texts.

A prior that totals 0.9 gives numbers as smooth as one that totals 1. So ``step`` is
compared with the model's ``normalization``, and ``log_words`` with the sums of
``step``.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lm_latent_eval.devices import widened
from lm_latent_eval.inference.consistency import ROUNDING, TOKENS, BrokenModelError
from lm_latent_eval.inference.streams import Streams
from lm_latent_eval.latent import Normalization
from lm_latent_eval.models.stepwise import ADAPTED, Histories, ModelSteps, Step, StepLM
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.words import UNKNOWN

HISTORIES = 4
"""Number of histories of each text, drawn by ``adapted``, whose steps are checked."""


@torch.no_grad()
def check_steps(model: StepLM, batch: TokenBatch) -> None:
    """Check ``step`` and ``log_words`` of a model on the first tokens of given texts.

    Args:
        model: Model to check; an unnormalised one is skipped.
        batch: Texts.

    Raises:
        BrokenModelError: If a shape, a total or a sum is wrong; the error names the
            method.
    """
    if model.normalization is Normalization.UNNORMALISED:
        return
    num_texts, num_tokens = batch.targets.shape
    origin = torch.zeros(num_texts, HISTORIES, dtype=torch.long)
    state: Histories | None = None
    for t in range(min(TOKENS, num_tokens)):
        piece = batch.piece(t, t + 1)
        encoded = model.encode(piece, state)
        before = encoded.before
        one_step = model.step(encoded.read, before.parts, 0)
        histories = before.parts[0].shape[1]
        _check_shapes(model, one_step, num_texts, histories)
        log_words = widened(model.log_words(encoded.read, before.parts))
        log_words = log_words.expand(num_texts, histories, -1)
        inside = piece.inside.expand(-1, histories)
        _check_totals(model, one_step, log_words, inside)
        _check_words(model, one_step, log_words, piece, inside)
        streams = Streams([*range(num_texts)], HISTORIES, starts=[t] * num_texts)
        steps = ModelSteps(encoded, model, ADAPTED)
        drawn = steps.draw(before, 0, streams, None if t else origin)
        state = encoded.after(drawn.state)


def _check_shapes(
    model: StepLM, one_step: Step, num_texts: int, histories: int
) -> None:
    """Check that scores are of (B, K, N) or broadcast to it, and finite or ``-inf``."""
    shape = (num_texts, histories, one_step.log_prior.shape[-1])
    for name in ("log_prior", "log_word", "log_twist"):
        scores = getattr(one_step, name)
        if scores is None:
            continue
        try:
            scores.expand(shape)
        except RuntimeError:
            _refuse(
                model,
                "step",
                f"gives {name} of shape {tuple(scores.shape)} after {histories} "
                f"histories of {num_texts} texts; expected (B, K, N) = {shape}",
            )
        finite = not bool(scores.isnan().any() or scores.isposinf().any())
        if not finite or (name == "log_twist" and bool(scores.isneginf().any())):
            _refuse(model, "step", f"gives {name} that is NaN or infinite")


def _check_totals(
    model: StepLM, one_step: Step, log_words: Tensor, inside: Tensor
) -> None:
    mass = model.normalization
    for method, what, scores in (
        ("step", "log_prior, log p(z_t | the past),", one_step.log_prior),
        ("log_words", "log p(next word | the past)", log_words),
    ):
        total = widened(scores).logsumexp(-1).expand(inside.shape)
        off = total if mass is Normalization.BELOW_ONE else total.abs()
        if bool((off > _rounding(model)).logical_and(inside).any()):
            worst = total.flatten()[off.masked_fill(~inside, -math.inf).argmax()]
            _refuse(
                model,
                method,
                f"gives {what} that totals {worst.exp().item():.6g} over all there "
                f"is, and the model is said to be {mass}: normalise it, or declare "
                "another normalization",
            )


def _check_words(
    model: StepLM, one_step: Step, log_words: Tensor, piece: TokenBatch, inside: Tensor
) -> None:
    word = piece.targets
    vocabulary_mask = (word != UNKNOWN) & (word < log_words.shape[-1])
    if bool((word >= model.config.vocab_size).any()):
        vocabulary_mask = vocabulary_mask & (word < model.config.vocab_size)
    summed = (
        widened(one_step.log_prior + one_step.log_word)
        .logsumexp(-1)
        .expand(inside.shape)
    )
    index = word.masked_fill(~vocabulary_mask, 0)[..., None].expand(*inside.shape, 1)
    told = log_words.gather(2, index)[..., 0]
    apart = torch.where(summed == told, 0.0, summed - told).abs()
    apart = apart.masked_fill(~(inside & vocabulary_mask), 0.0)
    if bool((apart > _rounding(model)).any()) or bool(apart.isnan().any()):
        at = int(apart.nan_to_num(math.inf).argmax())
        _refuse(
            model,
            "log_words",
            f"gives a word log p = {told.flatten()[at].item():.6g}, and step gives it "
            f"{summed.flatten()[at].item():.6g} nats, log_prior + log_word summed over "
            "the choices: the two are one number",
        )


def _rounding(model: StepLM) -> float:
    return ROUNDING.get(model.dtype, ROUNDING[torch.float32])


def _refuse(model: StepLM, method: str, what: str) -> None:
    raise BrokenModelError(f"{type(model).__name__}.{method} {what}")
