"""Consistency checks of a model on a few prefixes.

A model and its proposal promise shapes, types and probabilities. What breaks a promise
mostly still gives a number, with a small error. So the first texts of a run are cut to
prefixes of a few tokens, and what comes of those is held against itself: it costs what
a few words do, and moves no random number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

import torch
from scipy.special import bdtr, bdtrc
from torch import Tensor

from lm_latent_eval.devices import widened
from lm_latent_eval.inference.particles import fingerprint
from lm_latent_eval.inference.streams import Streams
from lm_latent_eval.inference.unfolding import StepProposal
from lm_latent_eval.latent import (
    Beam,
    Draws,
    LatentLM,
    Latents,
    Proposal,
    offers,
    parts_of,
    rebuilt,
)
from lm_latent_eval.text.batch import TokenBatch

OURS = "lm_latent_eval."
"""Package whose models are checked by its tests, and not again by every run."""
TEXTS, TOKENS, DRAWS = 2, 3, 4
"""Texts that are looked at, tokens of their prefixes, and draws of each."""
MOST = 1 << 12
"""Latents of a prefix that are listed; of more no total is known."""
ZEROS, LUCK = 2000, 1e-6
"""Draws that tell how much of q is on latents of probability 0, and how rarely they may
mislead."""
ROUNDING = {torch.float64: 1e-6, torch.float32: 1e-3}
"""Nats by which sums of a few tokens may differ, by the type of the weights."""


class BrokenModelError(ValueError):
    """Error of a model or proposal that breaks what estimators rely on."""


@torch.no_grad()
def check(
    model: LatentLM,
    proposal: Proposal,
    batch: TokenBatch,
    *,
    dtype: torch.dtype,
    searches: bool,
) -> None:
    """Check a model and its proposal on prefixes of some texts.

    Args:
        model: A latent LM.
        proposal: What is drawn from.
        batch: Texts of a run, at least one.
        dtype: What the model computes in.
        searches: Whether to check ``beam``.

    Raises:
        BrokenModelError: If shapes, types or probabilities contradict each other; the
            error names the class and the method, and what to do.
    """
    batch = _prefixes(batch, whole=proposal.left_to_right is not proposal)
    texts = len(batch.length)
    streams = Streams(list(range(texts)), DRAWS)
    p, q = model.encode(batch), proposal.encode(batch)
    draws = proposal.sample(q, streams, DRAWS)
    within = ROUNDING.get(dtype, 1e-3) * max(1, batch.targets.shape[1])
    _check_numbers(proposal, "sample", draws.log_q, (texts, DRAWS), "log_q")
    for part in parts_of(draws.latents):
        if part.shape[:2] != (texts, DRAWS):
            _refuse(
                proposal,
                "sample",
                f"gives latents of shape {tuple(part.shape)} where {texts} texts with "
                f"{DRAWS} each are asked for: leading axes must be (B, K)",
            )
    if searches:
        beam = _check_beam(proposal, q, draws)
    log_p = model.log_joint(p, draws.latents)
    _check_numbers(model, "log_joint", log_p, (texts, DRAWS), "log p(x, z_k)")
    log_q = proposal.log_prob(q, draws.latents)
    _check_numbers(proposal, "log_prob", log_q, (texts, DRAWS), "log q(z_k | x)")
    apart = _apart(log_q, draws.log_q)
    if apart > within:
        _refuse(
            proposal,
            "sample",
            f"says log q of its draws, and log_prob another: they are {apart:.3g} nats "
            "apart. Both are log q(z_k | x), normalised, at the proposal's temperature",
        )
    if searches:
        _check_total(model, p, proposal, q, beam, within)
        _check_keys(model, p, proposal, q, beam, within)
    if all(offers(who, "advance") for who in (model, proposal)):
        _check_causality(model, proposal, batch, draws.latents, log_p, within)


def decides_nothing(proposal: Proposal, batch: TokenBatch) -> bool:
    """Return whether latents are empty, so that a text has at most one."""
    one = batch.select(torch.arange(min(1, len(batch.length))))
    found = proposal.beam(proposal.encode(one), 1)
    return all(part[:, :1].numel() == 0 for part in parts_of(found.latents))


_PROVEN: WeakKeyDictionary[object, bool] = WeakKeyDictionary()
"""Models whose own sums were held against lists."""


@torch.no_grad()
def sums_exactly(model: LatentLM, proposal: Proposal, batch: TokenBatch) -> bool:
    """Return whether a model's own sum over latents is the sum over a list of them.

    Of prefixes of the first texts that it is asked about, for which every latent is
    listed by a beam that has room left. Where there are more than ``MOST`` of a single
    token nothing is known, and the answer is no. Models of ours are believed.

    Raises:
        BrokenModelError: If the two sums differ.
    """
    if type(model).__module__.startswith(OURS):
        return True
    if model not in _PROVEN:
        tokens = (batch.piece(0, n) for n in range(TOKENS, 0, -1))
        _PROVEN[model] = any(_sums_exactly(model, proposal, some) for some in tokens)
    return _PROVEN[model]


def _sums_exactly(model: LatentLM, proposal: Proposal, batch: TokenBatch) -> bool:
    """Say if the sum is that over a list; False if there are too many to list."""
    summation, lister = model.summation, proposal.left_to_right
    if summation is None:
        return False
    few = batch.select(torch.arange(min(TEXTS, len(batch.length))))
    p = model.encode(few)
    beam = lister.beam(lister.encode(few), MOST)
    used = beam.score > -torch.inf
    if beam.score.shape[1] >= MOST and bool(used.all(-1).any()):
        return False
    every = widened(model.log_joint(p, beam.latents)).masked_fill(~used, -torch.inf)
    one = summation.beam(summation.encode(few), 1)
    own = widened(model.log_joint(p, one.latents))[:, 0]
    apart = _apart(own, every.logsumexp(-1))
    if apart > ROUNDING[torch.float32] * max(1, few.targets.shape[1]):
        _refuse(
            model,
            "summation",
            f"sums to another log p(x) than its latents one by one: {apart:.3g} nats "
            "apart on a prefix of a text. Offer estimator=exact once they agree",
        )
    return True


def _prefixes(batch: TokenBatch, *, whole: bool) -> TokenBatch:
    """Cut a few texts to their first tokens; those that must be whole are not cut."""
    few = batch.select(torch.arange(min(TEXTS, len(batch.length))))
    if not whole:
        return few.piece(0, min(TOKENS, few.targets.shape[1]))
    shortest = batch.on_host[1].argmin()[None]
    one = batch.select(shortest)
    return one.piece(0, int(one.on_host[1]))


def _check_numbers(
    who: object, method: str, found: Tensor, shape: tuple[int, int], what: str
) -> None:
    """Check that nats are of a shape and floating, and none is NaN or infinite."""
    if tuple(found.shape) != shape:
        _refuse(
            who,
            method,
            f"gives {what} of shape {tuple(found.shape)} for {shape[0]} texts with "
            f"{shape[1]} latents each; expected (B, K) = {shape}",
        )
    if not found.is_floating_point():
        _refuse(who, method, f"gives {what} as {found.dtype}; expected float64 nats")
    if bool(found.isnan().any()) or bool(found.isposinf().any()):
        bad = "NaN" if bool(found.isnan().any()) else "+inf"
        _refuse(who, method, f"gives {what} = {bad}; expected nats, -inf for zero")


def _check_beam(proposal: Proposal, q: Any, draws: Draws) -> Beam:
    """Check that a beam is of distinct latents of the kind that is drawn."""
    if not offers(proposal, "beam"):
        _refuse(
            proposal,
            "beam",
            "is missing, and estimators that search are offered: leave beam and auto "
            "out of estimators",
        )
    beam = proposal.beam(q, MOST)
    drawn, found = parts_of(draws.latents), parts_of(beam.latents)
    kinds = [[(part.dtype, part.ndim) for part in parts] for parts in (drawn, found)]
    if kinds[0] != kinds[1]:
        _refuse(
            proposal,
            "beam",
            f"gives latents of other types than sample: {_said(found)} instead of "
            f"{_said(drawn)}. Equal latents must be equal numbers, drawn or found",
        )
    if any(part.is_floating_point() for part in found):
        _refuse(
            proposal,
            "beam",
            "lists real-valued latents, which cannot be counted: leave beam and auto "
            "out of estimators",
        )
    used = beam.score > -torch.inf
    paths = fingerprint(beam.latents)
    for b in range(len(paths)):
        mine = paths[b, used[b].to(paths.device)].tolist()
        if len({*mine}) < len(mine):
            _refuse(
                proposal,
                "beam",
                f"finds {len(mine) - len({*mine})} of {len(mine)} latents of a prefix "
                "more than once, so a sum over them is no bound: list each once",
            )
    return beam


def _check_total(
    model: LatentLM,
    p: Any,
    proposal: Proposal,
    q: Any,
    beam: Beam,
    within: float,
) -> None:
    """Check that q totals one where every latent is listed, and at most one elsewhere.

    Latents of probability 0 are not listed, and q may draw them: then it totals as much
    less as they are drawn. Sums over many rounded numbers are given as much more room.
    """
    used = beam.score > -torch.inf
    log_q = proposal.log_prob(q, beam.latents)
    total = widened(log_q).masked_fill(~used, -torch.inf).logsumexp(-1).tolist()
    full = (used.all(-1) & (used.shape[1] >= MOST)).tolist()
    rows, zeros = [*zip(total, full, strict=True)], [0] * len(total)
    if any(each < -10 * within and not cut for each, cut in rows):
        drawn = proposal.sample(q, Streams(list(range(len(total))), ZEROS), ZEROS)
        zeros = model.log_joint(p, drawn.latents).isneginf().sum(-1).tolist()
    for (log_total, cut), count in zip(rows, zeros, strict=True):
        low = log_total < -10 * within and not cut
        if log_total <= 10 * within and not low:
            continue
        if low:
            share = -math.expm1(log_total)
            tails = bdtr(count, ZEROS, share), bdtrc(count - 1, ZEROS, share)
            if min(tails) > LUCK:
                continue
        _refuse(
            proposal,
            "log_prob",
            f"totals {math.exp(log_total):.6g} over the latents of a prefix of a text "
            f"that beam lists, and p(x, z) is 0 for {count} of {ZEROS} draws; with "
            "those q(z | x) must total 1 (normalise every step, and list every latent "
            "where they fit)",
        )


def _check_keys(
    model: LatentLM, p: Any, proposal: Proposal, q: Any, beam: Beam, within: float
) -> None:
    """Check that latents that stand for others add up to the sum over all."""
    if not isinstance(proposal, StepProposal) or beam.score.shape[1] >= MOST:
        return
    kept = proposal.recombining_beam(q, MOST)
    totals = []
    for found in (beam, kept):
        log_p = widened(model.log_joint(p, found.latents))
        log_p = log_p if found.log_f is None else log_p + found.log_f
        log_p = log_p.masked_fill(found.score.isneginf(), -torch.inf)
        totals.append(log_p.logsumexp(-1))
    apart = _apart(*totals)
    if apart > 10 * within:
        _refuse(
            proposal,
            "beam",
            f"adds latents up by their keys to another p(x), {apart:.3g} nats apart: "
            "Step.key is equal where histories go on in different ways",
        )


def _check_causality(
    model: LatentLM,
    proposal: Proposal,
    batch: TokenBatch,
    latents: Latents,
    log_p: Tensor,
    within: float,
) -> None:
    """Check that reading token by token gives the probability of reading at once.

    A model that looks at later tokens gives the first ones another probability when
    those are not there. Latents are cut where each of their tensors has a token axis.
    """
    num_tokens = batch.targets.shape[1]
    parts = parts_of(latents)
    if any(part.ndim < 3 or part.shape[2] != num_tokens for part in parts):
        return
    total, state = torch.zeros_like(widened(log_p)), None
    for t in range(num_tokens):
        piece = batch.piece(t, t + 1)
        here = [part[:, :, t : t + 1] for part in parts]
        cut = rebuilt(latents, here)
        encoded = model.encode(piece, state)
        total = total + widened(model.log_joint(encoded, cut))
        state = model.advance(encoded, cut)
    apart = _apart(total, log_p)
    if apart > within:
        _refuse(
            model,
            "log_joint",
            f"gives a text read token by token another log p(x, z) than the text read "
            f"at once, {apart:.3g} nats apart: it looks at tokens that follow, or "
            "advance does not return where the latents lead",
        )


def _said(parts: Sequence[Tensor]) -> str:
    """Describe the types and axes of tensors."""
    return ", ".join(f"{part.dtype} of {part.ndim} axes" for part in parts)


def _apart(ours: Tensor, theirs: Tensor) -> float:
    """Return the largest absolute difference; two -inf are equal."""
    ours, theirs = widened(ours).cpu(), widened(theirs).cpu()
    off = (ours - theirs).abs().masked_fill(ours == theirs, 0.0)
    return math.inf if bool(off.isnan().any()) else float(off.max())


def _refuse(who: object, method: str, what: str) -> NoReturn:
    """Raise an error that names what an author wrote: of our proposals, the model's."""
    model = getattr(who, "model", None)
    name = f"{type(who).__name__}.{method}"
    if type(who).__module__.startswith(OURS) and isinstance(who, Proposal) and model:
        name = f"{type(model).__name__}.step and take: {method} of {who.name!r}"
    raise BrokenModelError(f"{name} {what}")
