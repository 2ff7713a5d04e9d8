"""Laws of models and proposals that stop after a piece of text and go on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from lm_latent_eval.estimators import Bound, log_evidence
from lm_latent_eval.inference import (
    BeamMarginalization,
    ImportanceSampling,
    ParticleFilter,
    beam,
    importance,
    particles,
)
from lm_latent_eval.inference.discrete import PASSES, DiscreteFilter
from lm_latent_eval.inference.particles import Particles, encode_again, fingerprint
from lm_latent_eval.inference.streams import Streams
from lm_latent_eval.inference.unfolding import StepProposal
from lm_latent_eval.latent import DrawsFrom, ReadsOnce
from lm_latent_eval.testing.case import Case, close, equal, hold, keys
from lm_latent_eval.testing.laws_of_proposals import mean_is_one
from lm_latent_eval.text.batch import TokenBatch


def filters_are_unbiased(case: Case, name: str) -> None:
    """And so is what particle filters make of them."""
    proposal, text = case.proposal(name), case.some_words(case.length)

    def ratios(copies: int) -> Tensor:
        log_w = case.log_weights(ParticleFilter(4), proposal, [text] * copies)
        return (log_evidence(log_w) - case.log_p(text)).exp()

    mean_is_one(ratios, case.exact(), f"filters of {name}")


def says_steps(case: Case, name: str) -> bool:
    """Return whether a proposal says what its steps are."""
    return isinstance(case.proposal(name), StepProposal)


def thinned_searches_are_unbiased(case: Case, name: str) -> None:
    """Passes of three latents beside a beam of one; where all fit they are exact."""
    proposal, text = case.proposal(name), case.some_words(case.length)
    method = DiscreteFilter(1, thinned=3 * PASSES)

    def ratios(copies: int) -> Tensor:
        log_w = case.log_weights(method, proposal, [text] * copies)
        return (method.unbiased(log_w) - case.log_p(text)).exp().flatten()

    mean_is_one(ratios, case.exact(), f"passes of {name}")
    wide = DiscreteFilter(1, thinned=PASSES * len(case.log_joint(text)))
    [row] = case.log_weights(wide, proposal, [text])
    found, exact = wide.estimate(row, len(text)), case.log_p(text).item()
    hold(found.bound is Bound.EXACT, f"{name}: all latents fit, and some are cut")
    equal(found.log_evidence, exact, case.exact(), f"{name}: log p of all latents")


def pieces_are_scored_as_the_whole(case: Case, name: str) -> None:
    """Reading a token at a time draws and weighs what reading at once does."""
    proposal, method = case.proposal(name), ImportanceSampling(6)
    texts = [case.some_words(length) for length in (4, 1, 2)]
    whole = case.log_weights(method, proposal, texts)
    with _pieces_of(1):
        pieces = case.log_weights(method, proposal, texts)
    close(pieces, whole, f"{name}: texts read in pieces and at once")


@contextmanager
def _pieces_of(tokens: int) -> Iterator[None]:
    with (
        mock.patch.object(importance, "PIECE", tokens),
        mock.patch.object(particles, "PIECE", tokens),
    ):
        yield


def beams_go_on_where_they_were_cut(case: Case, name: str) -> None:
    """A beam that stopped and went on is the beam of the whole text."""
    proposal = case.proposal(name)
    texts = case.readable(proposal)[::3]
    whole, ids = case.batch(texts), keys(len(texts))
    every = [case.log_joint(text).sort(descending=True).values for text in texts]
    for width in (1, 3, max(map(len, every))):
        method = BeamMarginalization(width)
        at_once = method.log_weights(case.model, proposal, whole, ids)
        at_once = at_once.sort(descending=True).values
        for at in range(1, case.length):
            begun = Particles.begin(len(texts), case.device)
            for start, end in pairwise((0, at, case.length)):
                begun = method.extend(
                    case.model,
                    proposal,
                    whole.piece(start, end),
                    ids,
                    [start] * len(texts),
                    begun,
                )
            found = begun.log_w.sort(descending=True).values
            close(found, at_once, f"{name}: beams of {width} cut at {at} and whole")
    for row, listed in zip(found, every, strict=True):
        possible = listed[listed > -torch.inf]
        close(row[: len(possible)], possible, f"{name}: a beam of all and the list")
        hold(
            bool(row[len(possible) :].isneginf().all()),
            f"{name}: a beam finds latents that are not on the list",
        )


def reads_once(case: Case, name: str) -> bool:
    """Return whether the model or a proposal says that it need not read again."""
    offers = case.model, case.proposal(name)
    return any(isinstance(who, ReadsOnce) for who in offers)


def reading_once_is_reading_again(case: Case, name: str) -> None:
    """``encode_again`` makes of what was read what ``encode`` makes of the tokens.

    Of tokens that were read ahead to predict them, and after a search has chosen
    other latents than it began with: one that is wide, so that they do differ.
    """
    for method in (ImportanceSampling(6), BeamMarginalization(12)):
        once = _token_by_token(case, method, name)
        with _reading_again():
            again = _token_by_token(case, method, name)
        kind = f"{name}, {type(method).__name__}"
        for t, (ours, theirs) in enumerate(zip(once, again, strict=True)):
            close(ours, theirs, f"{kind}: token {t} after encode_again and encode")


def _token_by_token(case: Case, method: Any, name: str) -> list[Tensor]:
    """Read each token ahead and then on; return log w and log q after every one."""
    model, proposal = case.model, case.proposal(name)
    text = [case.words[t % len(case.words)] for t in range(4)]
    whole, ids, found = case.batch([text, text[::-1]]), keys(2), []
    read = Particles.begin(2, case.device)
    for t in range(len(text)):
        piece = whole.piece(t, t + 1)
        read = read.ahead(model, piece.inputs[:, 0], piece.given)
        read = method.extend(model, proposal, piece, ids, [t, t], read)
        found.append(torch.stack([read.log_w, read.log_q]))
    return found


@contextmanager
def _reading_again() -> Iterator[None]:
    def encode(who: Any, encoded: Any, batch: TokenBatch, after: Any) -> Any:
        return who.encode(batch, after)

    with (
        mock.patch.object(particles, "encode_again", encode),
        mock.patch.object(beam, "encode_again", encode),
    ):
        yield


def draws_from(case: Case, name: str) -> bool:
    """Return whether a proposal says that it can be told late which histories go on."""
    return isinstance(case.proposal(name), DrawsFrom)


def drawing_from_is_resampling_first(case: Case, name: str) -> None:
    """``sample_from`` draws what ``sample`` does after the histories it is told of.

    What was read before they were chosen goes on as they do. Trees have a choice once
    there are three words.
    """
    proposal, method = case.proposal(name), ImportanceSampling(20)
    text = case.some_words(6)
    batch, ids = case.batch([text, text[::-1], text[:3]]), keys(3)
    first, second, third = (batch.piece(*ends) for ends in ((0, 3), (3, 5), (5, 6)))
    begun = Particles.begin(3, case.device)
    begun = method.extend(case.model, proposal, first, ids, [0] * 3, begun)
    every = torch.arange(20)
    origin = torch.stack([every // 2, every.flip(0), every % 7])
    before: Any = begun.proposal_state
    after = before.resample(origin)
    streams = Streams(ids, 20, starts=[3] * 3)
    late, known = proposal.encode(second, before), proposal.encode(second, after)
    ours, histories = proposal.sample_from(late, streams, origin.to(case.device))
    theirs = proposal.sample(known, streams, 20)
    late = encode_again(proposal, late, second, after)
    hold(histories.is_cpu and torch.equal(histories, origin), f"{name}: another origin")
    streams, numbers = replace(streams, starts=[5] * 3), []
    for q, draws in ((late, ours), (known, theirs)):
        state = proposal.advance(q, draws.latents)
        then = proposal.sample(proposal.encode(third, state), streams, 20)
        paths = fingerprint(draws.latents), fingerprint(then.latents)
        numbers.append([*paths, draws.log_q, then.log_q])
    for found, expected in zip(*numbers, strict=True):
        close(found, expected, f"{name}: draws from an origin and after resampling")
