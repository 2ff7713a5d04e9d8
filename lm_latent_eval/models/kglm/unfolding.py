"""Walks from their first step to their last: scoring, sampling and searching them.

Walks and what is behind them are on the host, log-probabilities where the scores are.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from lm_latent_eval.devices import fetched, sent, wide_zeros, widened
from lm_latent_eval.models.kglm.ragged import ranked_within
from lm_latent_eval.models.kglm.scores import AT_ONCE
from lm_latent_eval.models.kglm.steps import Mention, Rows, Walks
from lm_latent_eval.models.kglm.walk import NextStep
from lm_latent_eval.models.ties import best_of, ranks


def windows(history: Tensor, node: Tensor) -> Tensor:
    """Return what each token has behind it.

    Args:
        history: Nodes of the ``cutoff`` tokens before the piece, (B, K, W).
        node: Nodes of the piece, (B, K, T).

    Returns:
        For token t the nodes of t - W .. t - 1, shape (B, K, T, W), a view.
    """
    path = torch.cat([history, node], -1)
    return path.unfold(-1, history.shape[-1], 1)[..., :-1, :]


def log_prob_walks(
    walk: NextStep, history: Tensor, walks: Walks, length: Tensor
) -> Tensor:
    """Return log p(z_t | z_<t) of whole walks in nats, (B, K, T); 0 past the end."""
    places = torch.arange(walks.node.shape[-1])
    inside = places < length[:, None, None]
    return _scored(walk, walk.log_prob, history, walks, inside.expand_as(walks.node))


def _scored(
    walk: NextStep,
    score: Callable[[Rows, Tensor, Tensor], Tensor],
    history: Tensor,
    walks: Walks,
    some: Tensor,
    *,
    chunk: int = 1 << 16,
) -> Tensor:
    """Score some steps of walks, (B, K, T) bool; return nats, 0 of all others."""
    b, k, t = some.nonzero(as_tuple=True)
    behind, tokens = windows(history, walks.node), some.shape[-1]
    parts = [
        score(
            Rows(bb * tokens + tt, behind[bb, kk, tt]),
            walks.mention[bb, kk, tt],
            walks.node[bb, kk, tt],
        )
        for bb, kk, tt in zip(
            b.split(chunk), k.split(chunk), t.split(chunk), strict=True
        )
    ]
    result = walk.scores.mention.new_zeros(some.numel())
    if parts:
        (index,) = some.flatten().nonzero(as_tuple=True)
        result = result.index_copy(0, sent(index, result.device), torch.cat(parts))
    return result.view(some.shape)


def sample_walks(
    walk: NextStep,
    history: Tensor,
    length: Tensor,
    uniforms: Callable[[int], Tensor],
    num_tokens: int,
    origin: Tensor,
) -> tuple[Walks, Tensor, Tensor]:
    """Draw walks from left to right.

    The nodes of all tokens are scored once they are drawn: walks agree on most.

    Args:
        walk: The distribution to draw from.
        history: Nodes before the piece of K walks, (B, K, cutoff).
        length: Tokens of each text, (B,).
        uniforms: As ``Proposal.sample`` takes them.
        num_tokens: T.
        origin: Which of the K each walk continues, (B, K), on the host or not.

    Returns:
        The walks, log q, (B, K) float64, and ``origin`` on the host, as walks are.
    """
    device = walk.scores.mention.device
    batch, samples, width = history.shape
    path = torch.cat([history, history.new_zeros(batch, samples, num_tokens)], -1)
    mention = torch.zeros_like(path[..., width:])
    log_q = wide_zeros(history.shape[:2], device)
    for t in range(num_tokens):
        (text,) = (length > t).nonzero(as_tuple=True)
        rows = Rows(
            (text * num_tokens + t).repeat_interleave(samples),
            path[text, :, t : t + width].flatten(0, 1),
        )
        chosen = None
        if not t:
            first = torch.arange(len(text), device=origin.device)[:, None] * samples
            chosen = (first + origin[sent(text, origin.device)]).flatten()
        drawn = walk.draw(rows, uniforms(t)[text].flatten(0, 1), chosen)
        *choice, origin = fetched(*drawn.choice, origin)
        if not t:
            path = path.gather(1, origin[..., None].expand_as(path))
        previous = path[text, :, width + t - 1].flatten()
        node = walk.drawn_node(drawn, choice, previous)
        mention[text, :, t] = choice[0].view(-1, samples)
        path[text, :, width + t] = node.view(-1, samples)
        log_q[sent(text, device)] += widened(drawn.log_type).view(-1, samples)
    (origin,) = fetched(origin)  # of pieces without tokens
    history = path[..., :width]
    walks = Walks(mention, path[..., width:])
    named = (mention == Mention.NEW) | (mention == Mention.DERIVED)
    log_node = _scored(walk, walk.log_node, history, walks, named)
    return walks, log_q + widened(log_node).sum(-1), origin


def beam_walks(
    walk: NextStep,
    history: Tensor,
    score: Tensor,
    length: Tensor,
    num_tokens: int,
    width: int,
) -> tuple[Walks, Tensor, Tensor]:
    """Keep the ``width`` most promising distinct beginnings after every token.

    ``NextStep.options`` says what they are ranked by.

    Args:
        walk: The distribution to search under.
        history: Nodes before the piece of every walk so far, (B, K, cutoff).
        score: Of the walks so far, nats, on the host, (B, K) float64; ``-inf``: there
            is none.
        length: Tokens of each text, (B,).
        num_tokens: T.
        width: Walks to keep.

    Returns:
        Walks (B, width, T), on the host, and, where the scores of ``walk`` are, theirs
        (B, width), ``-inf`` where there is none, and which of the K walks so far each
        of them continues, (B, width). Exact if no text has more than ``width`` walks.
    """
    batch, samples, _ = history.shape
    device = walk.scores.mention.device
    position = torch.arange(batch * num_tokens).view(batch, num_tokens).T
    size = batch * min(width, walk.graph.num_entities)
    at_once = max(1, AT_ONCE // max(1, size))
    places, every = torch.arange(batch)[:, None], torch.arange(width)
    more = max(width - samples, 0)
    window = F.pad(history, (0, 0, 0, more))
    score = F.pad(score, (0, more), value=-torch.inf)
    stay = best_of(score, width).sort().values  # of a text without a token
    # For thousands of walks of many long texts: no wider than what they hold.
    came_from = torch.zeros(num_tokens, batch, width, dtype=torch.int32)
    mention, node = came_from.to(torch.uint8), came_from.clone()
    for t in range(num_tokens):
        if t % at_once == 0:
            here = position[t : t + at_once]
            table = fetched(*walk.new.top(here.flatten(), width))
            log_best, entity = (part.unflatten(0, here.shape) for part in table)
        going_on = length > t
        text, place = ((score > -torch.inf) & going_on[:, None]).nonzero(as_tuple=True)
        rows = Rows(text * num_tokens + t, window[text, place])
        best = log_best[t % at_once], entity[t % at_once]
        option = walk.options(rows, text, score[text, place], width, best)
        owner = text[option.row]
        order, rank = ranked_within(owner, ranks(option.score))
        order, rank = order[rank < width], rank[rank < width]
        owner, chosen = owner[order], place[option.row[order]]

        before = stay.expand(batch, width).clone()
        before[owner, rank] = chosen
        said = torch.zeros_like(before)
        said[owner, rank] = option.node[order]
        came_from[t], node[t] = before, said
        mention[t, owner, rank] = option.mention[order].to(mention)
        window = window[places, before]
        moved = torch.cat([window[..., 1:], said[..., None]], -1)
        window = torch.where(going_on[:, None, None], moved, window)
        score = score.gather(1, before).masked_fill(going_on[:, None], -torch.inf)
        score[owner, rank] = option.score[order]
        stay = every
    # Walk back along the links.
    origin = every.repeat(batch, 1) if num_tokens else stay
    score = score.gather(1, origin)
    found = origin.new_zeros(2, batch, width, num_tokens)
    for t in reversed(range(num_tokens)):
        found[0, ..., t] = mention[t, places, origin]
        found[1, ..., t] = node[t, places, origin]
        origin = came_from[t].gather(1, origin).long()
    origin = origin.clamp_max(samples - 1)
    return Walks(*found), sent(score, device), sent(origin, device)
