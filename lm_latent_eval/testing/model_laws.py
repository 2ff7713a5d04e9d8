"""Laws of every latent language model, of its proposals, and of reading piece by piece.

A law takes a ``Case``: a model small enough to list every latent of a short text. Sums
over that list are the truth, and share with the tested code only ``log_joint``, whose
total the first law checks. Proposals must be normalised and cover the model, estimators
keep their own statements (``estimator_laws.py``), and pieces of a text give the numbers
of the whole.
"""

from __future__ import annotations

import math
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from lm_latent_eval.devices import wide_zeros, widened
from lm_latent_eval.estimators import Bound
from lm_latent_eval.inference import (
    BeamMarginalization,
    ImportanceSampling,
    estimator_class,
    importance,
    particles,
)
from lm_latent_eval.inference.consistency import BrokenModelError
from lm_latent_eval.inference.discrete import PASSES, DiscreteFilter
from lm_latent_eval.inference.interface import Texts
from lm_latent_eval.inference.particles import Particles, fingerprint
from lm_latent_eval.inference.unfolding import SearchedProposal
from lm_latent_eval.latent import (
    Beam,
    Draws,
    Normalization,
    Reader,
    offers,
)
from lm_latent_eval.models.step_checks import check_steps
from lm_latent_eval.models.stepwise import StepLM
from lm_latent_eval.testing.case import (
    PREDICTED,
    Case,
    Law,
    LawError,
    close,
    equal,
    hold,
    keys,
)
from lm_latent_eval.testing.estimator_laws import estimator_laws
from lm_latent_eval.text.words import END, START


def laws(case: Case, device: str | None = None) -> list[Law]:
    """List the laws of a model, its proposals and the estimators it offers.

    Args:
        case: The model.
        device: An accelerator, such as ``cuda``, to compare with the case on the CPU.
            None: no comparison.
    """
    of_model = [total_is_that_of_its_normalization]
    if offers(case.model, "advance"):
        of_model.append(predictions_are_ratios_of_prefixes)
    if isinstance(case.model, StepLM):
        of_model.insert(0, steps_are_what_they_say)
    owed_laws = [Law(partial(law, case), law.__name__) for law in of_model]
    for name in case.proposals:
        proposal = case.proposal(name)
        listed = offers(proposal, "beam")
        stops = offers(proposal, "advance")
        by_piece = stops and name not in case.reads_on
        once = any(offers(who, "encode_again") for who in (case.model, proposal))
        owed = {
            total_is_one_and_covers_the_model: True,
            company_moves_no_weight: True,
            first_samples_are_those_of_fewer: True,
            beams_are_bounds_and_become_exact: listed,
            latents_are_told_apart: listed,
            pieces_are_scored_as_the_whole: by_piece,
            beams_go_on_where_they_were_cut: by_piece and listed,
            reading_once_is_reading_again: stops and once,
            drawing_from_is_resampling_first: stops and offers(proposal, "sample_from"),
            wide_searches_are_exact: isinstance(proposal, SearchedProposal),
        }
        owed_laws += [
            Law(partial(law, case, name), f"{law.__name__}-{name}")
            for law, owes in owed.items()
            if owes
        ]
        if device is not None:
            law = partial(device_moves_no_number, case, name, device)
            owed_laws.append(Law(law, f"{device_moves_no_number.__name__}-{name}"))
    for name in case.model.estimators:
        if name != "auto":  # which widens dpf
            owed_laws += estimator_laws(estimator_class(name), case)
    return owed_laws


PREDICTIONS = 50
"""Number of averaged predictions from real-valued latents."""


def total_is_that_of_its_normalization(case: Case) -> None:
    """Probabilities of all outcomes total one, or less if ``normalization`` says so."""
    mass, total = case.model.normalization, case.total()
    if mass is Normalization.ONE:
        hint = ""
        if case.goes_on and case.ends and total < 1:
            hint = ". If nothing follows the end of a text, the case says goes_on=False"
        hold(
            abs(total - 1) < case.exact(),
            f"a model that is {mass} totals {total}{hint}",
        )
    if mass is Normalization.BELOW_ONE:
        hold(total <= 1 + case.exact(), f"a model that is {mass} totals {total}")


def steps_are_what_they_say(case: Case) -> None:
    """Priors total one, and words have the probability that a step sums to."""
    try:
        check_steps(case.model, case.batch(case.outcomes()[::5]))
    except BrokenModelError as err:
        raise LawError(str(err)) from err


def predictions_are_ratios_of_prefixes(case: Case) -> None:
    """``next_token`` after all latents, against sums over lists.

    Real-valued latents are drawn, so the mean of several predictions is compared with
    the integral, by five of its standard errors.
    """
    if case.model.normalization is Normalization.UNNORMALISED:
        return
    repeats = 1 if case.log_cell is None else PREDICTIONS
    for length in range(case.length):
        text = case.some_words(length)
        predicted = torch.stack([_predicted(case, text, key) for key in keys(repeats)])
        off = predicted.logsumexp(-1)
        if case.model.normalization is not Normalization.BELOW_ONE:
            off = off.abs()
        hold(off.max().item() < PREDICTED or repeats > 1, f"after {text}: no total")
        prefix = case.log_p(text).item() if text else 0.0
        ends = (END,) * case.ends_after(text)
        for word in (*case.words, *ends):
            exact = case.log_p([*text, word]).item() - prefix
            of_word, what = predicted[:, word], f"log p({word} | {text})"
            if repeats == 1:
                equal(of_word.item(), exact, PREDICTED, what)
                continue
            ratio = (of_word - exact).exp()
            error = ratio.std().item() / math.sqrt(repeats)
            equal(
                ratio.mean().item(), 1.0, 5 * error + case.exact(), f"ratio to {what}"
            )


def _predicted(case: Case, text: list[int], key: int) -> Tensor:
    state, log_w = None, wide_zeros((1, 1), case.device)
    if text:
        latents = case.every_latent(text)
        encoded = case.model.encode(case.batch([text]))
        log_w = case.model.log_joint(encoded, latents)
        # Cells have one size, so that weights need not know of it.
        state = case.model.advance(encoded, latents)
    particles = Particles(state, state, log_w, log_w, log_w.long())
    last = torch.tensor([[START, *text][-1]], device=case.device)
    ahead = particles.ahead(case.model, last, case.batch([text]).given)
    return ahead.next_token(case.model, [key], [len(text)])[0]


def total_is_one_and_covers_the_model(case: Case, name: str) -> None:
    """Sum of q = 1, and q > 0 wherever p > 0, at every temperature."""
    extreme = () if case.log_cell else (0.001, 1000.0)  # cells have one size
    tempered = {t: case.proposal(name, t) for t in (0.5, 1.0, 2.0, *extreme)}
    for text in case.readable(tempered[1.0])[::7]:
        latents, log_p = case.every_latent(text), case.log_joint(text)
        batch = case.batch([text])
        for temperature, proposal in tempered.items():
            encoded = proposal.encode(batch)
            log_q = proposal.log_prob(encoded, latents)[0] + case.cell(text)
            what = f"{name} at temperature {temperature:g}, of {text}"
            within, total = case.exact(temperature), log_q.logsumexp(-1).item()
            equal(total, 0.0, within, f"log of the total of {what}")
            missed = (log_p > -torch.inf) & log_q.isneginf()
            hold(not missed.any(), f"{what}: a latent that p has is never drawn")


def beams_are_bounds_and_become_exact(case: Case, name: str) -> None:
    """A beam never exceeds p(x), and is p(x) once it holds every latent."""
    proposal = case.proposal(name)
    texts = case.readable(proposal)[::9]
    every = [case.log_joint(text) for text in texts]
    widest = max(map(len, every))
    for width in (1, 3, widest):
        beams = case.log_weights(BeamMarginalization(width), proposal, texts)
        for text, log_p, beam_of_text in zip(texts, every, beams, strict=True):
            exact, of_beam = (x.logsumexp(-1).item() for x in (log_p, beam_of_text))
            what = f"a beam of {width} by {name}, of {text}"
            hold(of_beam <= exact + case.exact(), f"{what} exceeds log p(x)")
            if width == widest:
                equal(of_beam, exact, case.exact(), what)


def latents_are_told_apart(case: Case, name: str) -> None:
    """Equal latents are equal numbers for all proposals, and distinct ones differ.

    Upper bounds (``calibrate``) drop draws that were also found, so latents must be
    equal in every entry, padding included.
    """
    proposal = case.proposal(name)
    offered = {n: case.proposal(n) for n in case.proposals}
    to_ends = [n for n, q in offered.items() if q.left_to_right is not q]
    texts = _of_several_lengths(case, (to_ends or [name])[0])
    whole = case.whole(texts, proposal)
    p, q = case.model.encode(whole.batch), proposal.encode(whole.batch)
    draws = proposal.sample(q, whole.streams(50), 50)
    drawn = fingerprint(draws.latents)
    log_w = widened(case.model.log_joint(p, draws.latents)) - draws.log_q
    _known_is_true(case, p, draws, ~log_w.isnan(), name)
    _apart(draws.log_q, proposal.log_prob(q, draws.latents), case, f"log q: {name}")
    every = max(len(case.log_joint(text)) for text in texts)
    for other in case.proposals:
        searcher = case.proposal(other)
        beam = searcher.beam(searcher.encode(whole.batch), every)
        prints = fingerprint(beam.latents)
        used, what = beam.score > -torch.inf, f"what {other} finds"
        _known_is_true(case, p, beam, used, what)
        log_q = proposal.log_prob(q, beam.latents)
        for b, text in enumerate(texts):
            what = f"{name}, of {text}: a latent that {other} finds"
            used_here = used[b]
            paths = prints[b, used_here].tolist()
            hold(len({*paths}) == len(paths), f"{what} is equal to another")
            possible = {*drawn[b, log_w[b] > -torch.inf].tolist()}
            hold(
                possible <= {*paths},
                f"{what} is not the one that is drawn: are the places past the end of "
                "a text 0?",
            )
            of_found = dict(zip(paths, log_q[b, used_here].tolist(), strict=True))
            for path, of_drawn in zip(drawn[b], draws.log_q[b], strict=True):
                if (path := int(path)) in possible:
                    log_q_of_both = of_found[path], of_drawn.item()
                    equal(*log_q_of_both, case.exact(), f"{what}: its log q")


def _known_is_true(
    case: Case, p: Any, latents: Draws | Beam, used: Tensor, what: str
) -> None:
    """Compare the log p in draws or a beam, if it is there, with the model's."""
    if latents.log_p is not None:
        log_p = case.model.log_joint(p, latents.latents)
        _apart(latents.log_p[used], log_p[used], case, f"log p: {what}")


def _apart(stored: Tensor, computed: Tensor, case: Case, what: str) -> None:
    apart = torch.where(stored == computed, 0.0, stored - computed).abs()
    equal(apart.max().item(), 0.0, case.exact(), f"error of {what}")


def company_moves_no_weight(case: Case, name: str) -> None:
    """A text's score in a batch equals its score alone."""
    proposal, method = case.proposal(name), ImportanceSampling(7)
    texts = _of_several_lengths(case, name)
    given, ids = _given(case, len(texts)), keys(len(texts))

    def weigh(n: slice) -> Tensor:
        batch = case.batch(texts[n], given and given[n])
        return method.log_weights(Texts(case.model, proposal, batch, ids[n]))

    together = weigh(slice(None))
    for n, text in enumerate(texts):
        alone = weigh(slice(n, n + 1))
        close(together[n], alone[0], f"{name}: {text} in company and alone")


def _given(case: Case, num_texts: int) -> list[tuple[int, ...]] | None:
    if case.given is None:
        return None
    return [case.given if n % 3 else case.given[:-1] for n in range(num_texts)]


def _of_several_lengths(case: Case, name: str) -> list[list[int]]:
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
    with mock.patch.object(importance, "DECISIONS", 40):
        rounds = case.log_weights(ImportanceSampling(20), proposal, texts)
    close(rounds, many, f"{name}: samples drawn in rounds and at once")


def device_moves_no_number(case: Case, name: str, device: str) -> None:
    """Whole texts, contexts and predictions on a device are the CPU's."""
    on_cpu = numbers_of(case, name)
    on_device = numbers_of(case.on(device), name)
    for what, on_that in on_device.items():
        close(on_that, on_cpu[what], f"{name}: {what} on {device} and on the CPU")


def numbers_of(case: Case, name: str) -> dict[str, Tensor]:
    """Weights, beams, prefixes and predictions of given texts, on the host.

    Proposals for prefixes add weights of prefixes, of a piece after a prediction, and
    the predictions.
    """
    model, proposal = case.model, case.proposal(name)
    texts, stops = case.readable(proposal)[1:4], offers(proposal, "advance")
    listed = offers(proposal, "beam")
    whole, draw = case.whole(texts, proposal), ImportanceSampling(4)
    numbers = {"weights": draw.log_weights(whole)}
    if listed:
        numbers["beams"] = BeamMarginalization(3).log_weights(whole)
    if stops:
        begin = Particles.begin(len(texts), case.device)
        end = case.length - 1
        piece, last = whole.piece(0, end), whole.piece(end, case.length)
        read = draw.extend(piece, begin)
        ahead = read.ahead(model, piece.batch.targets[:, -1], piece.batch.given)
        on = draw.extend(last, ahead)
        numbers |= {"prefixes": read.log_w, "prefixes read on": on.log_w}
        if model.normalization is not Normalization.UNNORMALISED:
            numbers["predictions"] = ahead.next_token(model, last.keys, last.starts)
    return {what: tensor.cpu() for what, tensor in numbers.items()}


def wide_searches_are_exact(case: Case, name: str) -> None:
    """Passes that have room for every latent leave nothing out."""
    proposal = case.proposal(name)
    text = case.readable(proposal)[5]
    wide = DiscreteFilter(PASSES * len(case.log_joint(text)))
    [row] = case.log_weights(wide, proposal, [text])
    summed, exact = wide.estimate(row, len(text)), case.log_p(text).item()
    hold(summed.bound is Bound.EXACT, f"{name}: all latents fit, and some are cut")
    equal(summed.log_evidence, exact, case.exact(), f"{name}: log p of all latents")


def pieces_are_scored_as_the_whole(case: Case, name: str) -> None:
    """Reading a token at a time draws and weighs what reading at once does."""
    proposal, method = case.proposal(name), ImportanceSampling(6)
    texts = [case.some_words(length) for length in (4, 1, 2)]
    whole = case.log_weights(method, proposal, texts)
    with (
        mock.patch.object(importance, "PIECE", 1),
        mock.patch.object(particles, "PIECE", 1),
    ):
        pieces = case.log_weights(method, proposal, texts)
    close(
        pieces,
        whole,
        f"{name}: texts read in pieces and at once (a proposal that looks ahead, by "
        "Step.log_twist or otherwise, is named in the reads_on of its case; else take "
        "or advance does not return where latents lead): weights",
    )


def beams_go_on_where_they_were_cut(case: Case, name: str) -> None:
    """A beam that stopped and went on is the beam of the whole text."""
    proposal = case.proposal(name)
    texts = case.readable(proposal)[::3]
    whole = case.whole(texts, proposal)
    every = [case.log_joint(text).sort(descending=True).values for text in texts]
    for width in (1, 3, max(map(len, every))):
        method = BeamMarginalization(width, recombines=False)
        at_once = method.log_weights(whole)
        at_once = at_once.sort(descending=True).values
        for at in range(1, case.length):
            begun = Particles.begin(len(texts), case.device)
            for start, end in pairwise((0, at, case.length)):
                begun = method.extend(whole.piece(start, end), begun)
            in_pieces = begun.log_w.sort(descending=True).values
            close(in_pieces, at_once, f"{name}: beams of {width} cut at {at} and whole")
    for row, listed in zip(in_pieces, every, strict=True):
        possible = listed[listed > -torch.inf]
        close(row[: len(possible)], possible, f"{name}: a beam of all and the list")
        hold(
            bool(row[len(possible) :].isneginf().all()),
            f"{name}: a beam finds latents that are not on the list",
        )


def reading_once_is_reading_again(case: Case, name: str) -> None:
    """``encode_again`` of an encoding equals ``encode`` of the tokens.

    After a prediction, and after a search has chosen other latents: one wide enough
    that they do differ.
    """
    classes = type(case.model), type(case.proposal(name))
    for method in (ImportanceSampling(6), BeamMarginalization(12)):
        once = _token_by_token(case, method, name)
        with ExitStack() as read_again:
            for who in classes:
                patch = mock.patch.object(who, "encode_again", Reader.encode_again)
                read_again.enter_context(patch)
            again = _token_by_token(case, method, name)
        kind = f"{name}, {type(method).__name__}"
        for t, (first, second) in enumerate(zip(once, again, strict=True)):
            close(first, second, f"{kind}: token {t} after encode_again and encode")


def _token_by_token(case: Case, method: Any, name: str) -> list[Tensor]:
    """Read each token after its prediction; return log w and log q after each."""
    text = [case.words[t % len(case.words)] for t in range(4)]
    whole, weights = case.whole([text, text[::-1]], case.proposal(name)), []
    read = Particles.begin(2, case.device)
    for t in range(len(text)):
        piece = whole.piece(t, t + 1)
        read = read.ahead(case.model, piece.batch.inputs[:, 0], piece.batch.given)
        read = method.extend(piece, read)
        weights.append(torch.stack([read.log_w, read.log_q]))
    return weights


def drawing_from_is_resampling_first(case: Case, name: str) -> None:
    """``sample_from`` given origins draws what ``sample`` draws after resampling.

    An encoding made before the origins are known is resampled with them. Trees have a
    choice from three words on.
    """
    proposal, method = case.proposal(name), ImportanceSampling(20)
    text = case.some_words(6)
    whole = case.whole([text, text[::-1], text[:3]], proposal)
    first, second, third = (whole.piece(*ends) for ends in ((0, 3), (3, 5), (5, 6)))
    begun = method.extend(first, Particles.begin(3, case.device))
    every = torch.arange(20)
    origin = torch.stack([every // 2, every.flip(0), every % 7])
    before: Any = begun.proposal_state
    after = before.resample(origin)
    streams = second.streams(20)
    late, early = (proposal.encode(second.batch, q) for q in (before, after))
    from_origin, histories = proposal.sample_from(late, streams, origin.to(case.device))
    resampled = proposal.sample(early, streams, 20)
    late = proposal.encode_again(late, second.batch, after)
    hold(histories.is_cpu and torch.equal(histories, origin), f"{name}: another origin")
    streams, numbers = third.streams(20), []
    for q, draws in ((late, from_origin), (early, resampled)):
        state = proposal.advance(q, draws.latents)
        then = proposal.sample(proposal.encode(third.batch, state), streams, 20)
        paths = fingerprint(draws.latents), fingerprint(then.latents)
        numbers.append([*paths, draws.log_q, then.log_q])
    for actual, expected in zip(*numbers, strict=True):
        close(actual, expected, f"{name}: draws from an origin and after resampling")
