"""Laws of proposals: normalization, coverage, unbiasedness."""

from __future__ import annotations

import math
from collections.abc import Callable
from unittest import mock

import torch
from torch import Tensor

from lm_latent_eval.devices import widened
from lm_latent_eval.inference import (
    BeamMarginalization,
    ImportanceSampling,
    importance,
    particles,
)
from lm_latent_eval.inference.particles import Particles
from lm_latent_eval.inference.streams import Streams
from lm_latent_eval.latent import LeftToRight, Normalization, Searches, WholeText
from lm_latent_eval.testing.case import Case, close, equal, hold, keys

PRECISE = 0.05
"""Relative standard error below which a bias of five of them is noticed."""
DRAWS = 1 << 18
"""The most that are drawn to get there."""


def total_is_one_and_covers_the_model(case: Case, name: str) -> None:
    """Sum of q = 1, and q > 0 wherever p > 0, at every temperature."""
    extreme = () if case.log_cell else (0.001, 1000.0)  # cells have one size
    for temperature in (0.5, 1.0, 2.0, *extreme):
        proposal = case.proposal(name, temperature)
        for text in case.readable(proposal)[::7]:
            latents, log_p = case.every_latent(text), case.log_joint(text)
            encoded = proposal.encode(case.batch([text]))
            log_q = proposal.log_prob(encoded, latents)[0] + case.cell(text)
            what = f"{name} at temperature {temperature:g}, of {text}"
            within, total = case.exact(temperature), log_q.logsumexp(-1).item()
            equal(total, 0.0, within, f"log of the total of {what}")
            missed = (log_p > -torch.inf) & log_q.isneginf()
            hold(not missed.any(), f"{what}: a latent that p has is never drawn")


def importance_sampling_is_unbiased(case: Case, name: str) -> None:
    """The mean weight is p(x), by five standard errors of its own."""
    proposal = case.proposal(name)
    text = case.readable(proposal)[5]

    def ratios(copies: int) -> Tensor:
        log_w = case.log_weights(ImportanceSampling(100), proposal, [text] * copies)
        return (log_w - case.log_p(text)).exp().flatten()

    mean_is_one(ratios, case.exact(), f"weights of {name}")


def mean_is_one(ratios: Callable[[int], Tensor], rounding: float, what: str) -> None:
    """Draw until a bias would be noticed; raise a ``LawError`` if there is one."""
    copies = 50
    while True:
        ratio = ratios(copies)
        error = ratio.std().item() / math.sqrt(ratio.numel())
        if error < PRECISE:
            break
        hold(
            ratio.numel() < DRAWS,
            f"{what} vary too much to notice a bias: error {error:.3g} of the mean "
            f"after {ratio.numel()} draws. Give a model of flatter latents",
        )
        copies *= 4
    mean = ratio.mean().item()
    equal(mean, 1.0, 5 * error + rounding, f"mean of {what}, relative to p(x)")


def beams_are_bounds_and_become_exact(case: Case, name: str) -> None:
    """A beam never exceeds p(x), and is p(x) once it holds every latent."""
    proposal = case.proposal(name)
    for text in case.readable(proposal)[::9]:
        every = case.log_joint(text)
        exact = every.logsumexp(-1).item()
        for width in (1, 3, len(every)):
            found = case.log_weights(BeamMarginalization(width), proposal, [text])
            sum_of_beam = found.logsumexp(-1).item()
            what = f"a beam of {width} by {name}, of {text}"
            hold(sum_of_beam <= exact + case.exact(), f"{what} exceeds log p(x)")
        equal(sum_of_beam, exact, case.exact(), what)


def latents_are_told_apart(case: Case, name: str) -> None:
    """A latent is the same numbers, whoever draws or finds it, and no other latent's.

    ``estimator=mixed`` leaves out draws that were found, so latents have to be equal to
    the last number, those past the end of a text included. The search may go by another
    proposal of the model, and asks the one that is drawn from how probable they are.
    """
    proposal = case.proposal(name)
    whole = [n for n in case.proposals if isinstance(case.proposal(n), WholeText)]
    texts = _of_several_lengths(case, (whole or [name])[0])
    batch, ids = case.batch(texts), keys(len(texts))
    p, q = case.model.encode(batch), proposal.encode(batch)
    draws = proposal.sample(q, Streams(ids, 50), 50)
    drawn = particles.fingerprint(draws.latents)
    log_w = widened(case.model.log_joint(p, draws.latents)) - draws.log_q
    every = BeamMarginalization(max(len(case.log_joint(text)) for text in texts))
    for other in case.proposals:
        searcher = case.proposal(other)
        found, latents = every.search(case.model, searcher, p, searcher.encode(batch))
        log_q = proposal.log_prob(q, latents)
        for b, text in enumerate(texts):
            what = f"{name}, of {text}: a latent that {other} finds"
            known = found.log_q[b] > -torch.inf
            paths = found.path[b, known].tolist()
            hold(len({*paths}) == len(paths), f"{what} is equal to another")
            possible = {*drawn[b, log_w[b] > -torch.inf].tolist()}
            hold(
                possible <= {*paths},
                f"{what} is not the one that is drawn: are the places past the end of "
                "a text 0?",
            )
            of_found = dict(zip(paths, log_q[b, known].tolist(), strict=True))
            for path, of_drawn in zip(drawn[b], draws.log_q[b], strict=True):
                if (path := int(path)) in possible:
                    log_q_of_both = of_found[path], of_drawn.item()
                    equal(*log_q_of_both, case.exact(), f"{what}: its log q")


def company_moves_no_weight(case: Case, name: str) -> None:
    """A text is scored in a batch as it is alone."""
    proposal, method = case.proposal(name), ImportanceSampling(7)
    texts = _of_several_lengths(case, name)
    given, ids = _given(case, len(texts)), keys(len(texts))

    def weigh(n: slice) -> Tensor:
        batch = case.batch(texts[n], given and given[n])
        log_w: Tensor = method.log_weights(case.model, proposal, batch, ids[n])
        return log_w

    together = weigh(slice(None))
    for n, text in enumerate(texts):
        alone = weigh(slice(n, n + 1))
        close(together[n], alone[0], f"{name}: {text} in company and alone")


def _given(case: Case, number: int) -> list[tuple[int, ...]] | None:
    """Return what texts are given, some of them more, if the model is conditional."""
    if case.given is None:
        return None
    return [case.given if n % 3 else case.given[:-1] for n in range(number)]


def _of_several_lengths(case: Case, name: str) -> list[list[int]]:
    """Texts of which the shorter ones are padded."""
    texts = case.readable(case.proposal(name))[::4]
    if case.goes_on:
        texts = [text[: 1 + n % case.length] for n, text in enumerate(texts)]
    return texts


def first_samples_are_those_of_fewer(case: Case, name: str) -> None:
    """K is nested, however many rounds the samples are drawn in."""
    proposal = case.proposal(name)
    texts = case.readable(proposal)[:3]
    few = case.log_weights(ImportanceSampling(5), proposal, texts)
    many = case.log_weights(ImportanceSampling(20), proposal, texts)
    close(many[:, :5], few, f"{name}: the first 5 of 20 samples")
    with mock.patch.object(importance, "DECISIONS", 16):
        rounds = case.log_weights(ImportanceSampling(20), proposal, texts)
    close(rounds, many, f"{name}: samples drawn in rounds and at once")


def device_moves_no_number(case: Case, name: str, device: str) -> None:
    """Whole texts, contexts and predictions on a device are the CPU's."""
    on_cpu = numbers_of(case, name)
    on_device = numbers_of(case.on(device), name)
    for what, ours in on_device.items():
        close(ours, on_cpu[what], f"{name}: {what} on {device} and on the CPU")


def numbers_of(case: Case, name: str) -> dict[str, Tensor]:
    """Return weights, beams, prefixes and predictions of some texts, on the host.

    Of proposals that stop there are weights of prefixes, of what is read on after the
    next word was predicted, and the predictions.
    """
    model, proposal = case.model, case.proposal(name)
    texts, stops = case.readable(proposal)[1:4], isinstance(proposal, LeftToRight)
    listed = isinstance(proposal, Searches)
    batch, ids = case.batch(texts), keys(len(texts))
    draw = ImportanceSampling(4)
    found = {"weights": draw.log_weights(model, proposal, batch, ids)}
    if listed:
        beam = BeamMarginalization(3)
        found["beams"] = beam.log_weights(model, proposal, batch, ids)
    if stops:
        begin = Particles.begin(len(texts), case.device)
        end = case.length - 1
        piece, last = batch.piece(0, end), batch.piece(end, case.length)
        read = draw.extend(model, proposal, piece, ids, [0] * len(texts), begin)
        ahead = read.ahead(model, piece.targets[:, -1], piece.given)
        on = draw.extend(model, proposal, last, ids, [end] * len(texts), ahead)
        found |= {"prefixes": read.log_w, "prefixes read on": on.log_w}
        if model.normalization is not Normalization.UNNORMALISED:
            starts = [end] * len(texts)
            found["predictions"] = ahead.next_token(model, ids, starts)
    return {what: tensor.cpu() for what, tensor in found.items()}
