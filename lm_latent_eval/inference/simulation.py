r"""Texts drawn from a model with their latents, and what these bound.

A text that the model writes comes with the latent that it was written with, and of the
text that latent is an exact draw from p(z | x). Put in the place of one of N draws from
q, it turns an estimate from below into one from above: with B what a search found, and
z_1 drawn from p(z | x),

.. math::
    \hat u(x) = \sum_{z \in B} p(x, z) + \frac{1}{N} \sum_{k=1}^{N} w_k [z_k \notin B],
    \qquad E\bigl[1 / \hat u(x)\bigr] = \frac{1}{p(x)},

so that :math:`E[\log \hat u] \ge \log p(x)`. Where z_1 is in B it says nothing of what
is outside, and all N draws are from q.

An estimate below and that bound above hold log p(x) between them on average, however
well or badly the proposal fits.

Source: Grosse, Ghahramani and Adams (2015), "Sandwiching the marginal likelihood using
bidirectional Monte Carlo", section 3; the sum over B is a control variate by
stratification (Owen, 2013, section 8.4), one stratum of which is summed in whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lm_latent_eval.devices import fetched, sent, widened
from lm_latent_eval.inference.beam import BeamMarginalization
from lm_latent_eval.inference.importance import ImportanceSampling
from lm_latent_eval.inference.interface import Texts
from lm_latent_eval.inference.particles import (
    Particles,
    fingerprint,
    is_in,
    read_at_once,
)
from lm_latent_eval.inference.streams import Streams, invert_cdf
from lm_latent_eval.latent import LatentLM, Latents, Proposal, parts_of, rebuilt
from lm_latent_eval.text.batch import TokenBatch

WIDEST = 1 << 14
"""Choices of a token that are listed at most, to draw one of them."""
ROUNDING, FLOAT32 = 1e-3, 1e-6
"""Nats by which sums over all choices differ from what the model predicts, and the
rounding of a predicted probability: more nats of a rare word."""
WORDS, CHOICES = 3, 4
"""Separate the random numbers of words and choices from those of estimators."""


@dataclass(frozen=True)
class Simulated:
    """A text sampled from a model with its latent."""

    words: list[int]
    """Words of the text, its end included."""
    latents: Latents
    """One, leading axes (1, 1)."""


def simulate(
    model: LatentLM,
    proposal: Proposal,
    keys: Sequence[int],
    *,
    start: int,
    end: int,
    most: int,
    costs: Callable[[list[int]], list[float]],
    device: torch.device | str,
) -> Iterator[tuple[int, Simulated]]:
    """Draw texts with their latents, word by word.

    Args:
        model: A left-to-right latent LM that predicts.
        proposal: What lists the choices of a token; it stops where a text does.
        keys: Of each text's random numbers.
        start: The id before the first word.
        end: The id that ends a text.
        most: Words of a text, its end included; longer texts are cut there.
        costs: What ids cost beside their probability, nats; ``-inf`` of words that the
            model can only copy.
        device: Of the model.

    Yields:
        The place of a text's key, and the text, as they end, and then what is cut.

    Raises:
        ValueError: If the model predicts no word, or a token has more choices than
            can be listed.
    """
    places, words = list(range(len(keys))), [list[int]() for _ in keys]
    pieces = [list[tuple[Tensor, ...]]() for _ in keys]
    at = Particles.begin(len(keys), device)
    for t in range(most):
        mine, starts = [keys[place] for place in places], [t] * len(places)
        last = [(words[place] or [start])[-1] for place in places]
        inputs = torch.tensor(last, device=at.log_w.device)
        at = at.ahead(model, inputs)
        log_p = at.next_token(model, mine, starts)
        chosen = _drawn(log_p, _uniform(mine, WORDS, t))
        batch = TokenBatch.collate(
            [[int(word)] for word in chosen],
            [costs([int(word)]) for word in chosen],
            first=last,
            device=at.log_w.device,
        )
        predicted = log_p.gather(1, sent(chosen, log_p.device)[:, None])[:, 0]
        at, latents = _gone_on(
            model, proposal, at, batch, predicted, _uniform(mine, CHOICES, t)
        )
        for row, place in enumerate(places):
            words[place].append(int(chosen[row]))
            pieces[place].append(tuple(part[row] for part in parts_of(latents)))
            if words[place][-1] == end:
                yield place, Simulated(words[place], _joined(pieces[place], latents))
        rows = [row for row, place in enumerate(places) if words[place][-1] != end]
        if not rows:
            return
        at = at.select(torch.tensor(rows))
        places = [places[row] for row in rows]
    for place in places:
        yield place, Simulated(words[place], _joined(pieces[place], latents))


def _gone_on(
    model: LatentLM,
    proposal: Proposal,
    at: Particles,
    batch: TokenBatch,
    predicted: Tensor,
    uniform: Tensor,
) -> tuple[Particles, Latents]:
    """Draw one of all choices of a token by its probability, and continue from it."""
    p_state, q_state = at.model_state, at.proposal_state
    q = proposal.encode(batch, q_state)
    begun = None if q_state is None else torch.zeros_like(at.log_w)
    beam = proposal.beam(q, WIDEST, begun)
    all_p = p = at.encoded(model, batch, p_state)
    if p_state is not None:
        (origin,) = fetched(beam.origin)
        all_p = at.encoded(model, batch, p_state.resample(origin))
    log_p = widened(model.log_joint(all_p, beam.latents))
    log_p = log_p.masked_fill(beam.score.isneginf(), -torch.inf)
    total = log_p.logsumexp(-1)
    short = widened(predicted) - total
    if bool((short.abs() > ROUNDING + FLOAT32 / total.exp()).any()):
        raise ValueError(
            f"the choices that {type(model).__name__} lists of a token total "
            f"{short.abs().max().item():.2g} nats less or more than it predicts: its "
            "texts cannot be drawn with their latents"
        )
    index = _drawn(log_p, uniform)
    rows = torch.arange(len(index))
    one = rebuilt(
        beam.latents,
        [
            part[sent(rows, part.device), sent(index, part.device)][:, None]
            for part in parts_of(beam.latents)
        ],
    )
    q = proposal.encode_again(q, batch, q_state)
    gone_on = replace(
        at,
        model_state=model.advance(p, one),
        proposal_state=proposal.advance(q, one),
        read=None,
    )
    return gone_on, one


def _joined(pieces: Sequence[tuple[Tensor, ...]], like: Latents) -> Latents:
    """Return the latents of a text from those of its tokens, leading axes (1, 1).

    What has no axis of tokens was decided at the first.
    """
    columns = zip(*pieces, strict=True)
    parts = [
        (torch.cat(column, 1) if column[0].ndim > 1 else column[0])[None]
        for column in columns
    ]
    return rebuilt(like, parts)


def _uniform(keys: Sequence[int], what: int, t: int) -> Tensor:
    return Streams([key ^ what for key in keys], 1)(t)[:, 0, 0]


def _drawn(log_p: Tensor, uniform: Tensor) -> Tensor:
    """Draw a column of each row by its probability, (B,), on the host."""
    return invert_cdf(log_p.cpu().double().softmax(-1), uniform)


def upper_bound(text: Texts, number: int, latents: Latents) -> float:
    r"""Return :math:`\log \hat u(x)`, nats: on average log p(x) or more.

    Args:
        text: A whole text; by its proposal the other latents are found and drawn.
        number: How many are found, and how many are drawn.
        latents: An exact draw from p(z | x), leading axes (1, 1).

    Raises:
        ValueError: If the text is too long to be read at once.
    """
    if not read_at_once(text):
        raise ValueError("the text is read in pieces: draw shorter ones")
    model, proposal, whole = text.model, text.proposal, replace(text, whole=True)
    found = BeamMarginalization(number, recombines=False).extend(whole, None)
    drawn = ImportanceSampling(number).extend(whole, None)
    used = ~found.log_q.isneginf()
    path, log_w = drawn.path, drawn.log_w
    own = fingerprint(latents, torch.zeros_like(path[:, :1]))
    if not bool(is_in(own, found.path, used)):
        p, q = model.encode(text.batch), proposal.encode(text.batch)
        weight = widened(model.log_joint(p, latents)) - proposal.log_prob(q, latents)
        log_w = torch.cat([weight, log_w[:, 1:]], -1)
        path = torch.cat([own, path[:, 1:]], -1)
    outside = log_w.masked_fill(is_in(path, found.path, used), -torch.inf)
    every = outside.logsumexp(-1) - math.log(number)
    return torch.logaddexp(found.log_w.logsumexp(-1), every).item()
