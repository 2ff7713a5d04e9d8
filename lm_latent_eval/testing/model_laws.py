"""What every latent language model owes, whatever its latents are.

A law takes a ``Case``: a model that is small enough to list every latent of a short
text. Sums over that list are the truth, and share nothing with what is tested but
``log_joint``, which the first law holds to a total of one.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise, product
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from lm_latent_eval.devices import moved, wide_zeros, widened, widest_float
from lm_latent_eval.estimators import log_evidence
from lm_latent_eval.inference import (
    BeamMarginalization,
    ImportanceSampling,
    ParticleFilter,
    beam,
    importance,
    particles,
)
from lm_latent_eval.inference.particles import Particles
from lm_latent_eval.inference.streams import Streams, stream_key
from lm_latent_eval.latent import LeftToRight, Mass, ReadsOnce, WholeText
from lm_latent_eval.models.proposals import proposal_named
from lm_latent_eval.testing.simulated_device import SIMULATED, simulated_device
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.words import END, START

EXACT = 1e-10
"""How far sums in float64 may be apart."""
PREDICTED = 1e-5
"""How far next-token distributions may be, which are float32, and what is added up
where there is no float64: a hundred roundings of it."""
PRECISE = 0.05
"""Relative standard error below which a bias of five of them is noticed."""
DRAWS = 1 << 18
"""The most that are drawn to get there."""


class LawError(AssertionError):
    """A law that a model breaks."""


@dataclass(frozen=True)
class Case:
    """A model, in float64, with few enough latents to list.

    Example:
        >>> from lm_latent_eval.models.lstm.modeling import LSTMConfig
        >>> from lm_latent_eval.models.lstm.modeling import LSTMLanguageModel
        >>> torch.manual_seed(0) and None
        >>> config = LSTMConfig(vocab_size=6, embedding_dim=3, hidden_size=4)
        >>> model = LSTMLanguageModel(config).double().eval()
        >>> from lm_latent_eval.latent import NO_LATENT
        >>> case = Case(model, lambda text: NO_LATENT, (1, 4, 5), ("none",))
        >>> for law in laws(case):
        ...     law()
    """

    model: Any
    latents: Callable[[list[int]], Any]
    """Every latent of one text, given as ids, with leading axes (1, K)."""
    words: tuple[int, ...]
    """Ids that the model can write, but for the end of a text; most of two."""
    proposals: tuple[str, ...]
    """Names, or ``package.module:Name``, of the proposals that are held to the laws."""
    reads_on: tuple[str, ...] = ()
    """Those whose draws depend on how much of a text is given at once."""
    copied: int | None = None
    """An id that has probability zero but where a latent brings it."""
    goes_on: bool = True
    """Whether words may follow an end, which then is a word like any other."""
    length: int = 3
    """Tokens of the texts that are listed."""

    def outcomes(self) -> list[list[int]]:
        """List texts of which exactly one happens."""
        if self.goes_on:
            words = (*self.words, END)
            return [list(text) for text in product(words, repeat=self.length)]
        texts = [list(text) for text in product(self.words, repeat=self.length)]
        for n in range(1, self.length):
            texts += [[*text, END] for text in product(self.words, repeat=n)]
        return texts

    def readable(self, proposal: Any) -> list[list[int]]:
        """List texts that a proposal can read: whole ones, if it reads to the end."""
        whole = isinstance(proposal, WholeText)
        return [t for t in self.outcomes() if t[-1] == END or not whole]

    def some_words(self, length: int) -> list[int]:
        """Return a text without an end."""
        return [self.words[(1 + n % 2) % len(self.words)] for n in range(length)]

    def on(self, device: str) -> Case:
        """Return the case with a copy of its model on a device.

        There it keeps the laws but the one that compares the device with the CPU.
        """
        return replace(self, model=moved(copy.deepcopy(self.model), device))

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        device: torch.device = self.model.device
        return device

    def exact(self, temperature: float = 1.0) -> float:
        """How far sums may be apart that are equal but for rounding, nats.

        Roundings of float32 are divided by a temperature as the scores are.
        """
        if widest_float(self.device) is torch.float64:
            return EXACT
        return PREDICTED / min(temperature, 1.0)

    def batch(self, texts: list[list[int]]) -> TokenBatch:
        """Put texts together."""
        costs = [[-math.inf if i == self.copied else 0.0 for i in t] for t in texts]
        return TokenBatch.collate(texts, costs, first=START, device=self.device)

    def every_latent(self, text: list[int]) -> Any:
        """Return every latent of one text where the model is."""
        latents = self.latents(text)
        if isinstance(latents, Tensor):
            return latents.to(self.device)
        return type(latents)(*(part.to(self.device) for part in latents))

    def log_joint(self, text: list[int]) -> Tensor:
        """Return log p of one text under every latent, (K,)."""
        encoded = self.model.encode(self.batch([text]))
        log_p: Tensor = self.model.log_joint(encoded, self.every_latent(text))[0]
        return log_p

    def log_p(self, text: list[int]) -> Tensor:
        """Return log p of one text, exactly, on the host."""
        return self.log_joint(text).logsumexp(-1).cpu()

    def total(self) -> float:
        """Return the probability of everything that can happen."""
        return sum(self.log_p(text).exp().item() for text in self.outcomes())

    def proposal(self, name: str | None = None, temperature: float = 1.0) -> Any:
        """Return a proposal of the model."""
        return proposal_named(self.model, name, temperature)

    def log_weights(self, method: Any, proposal: Any, texts: list[list[int]]) -> Tensor:
        """Weigh texts as they are weighed together, (B, K), on the host."""
        log_w: Tensor = method.log_weights(
            self.model, proposal, self.batch(texts), keys(len(texts))
        )
        return log_w.cpu()


@dataclass(frozen=True)
class Law:
    """One law and what it is to hold of: call it."""

    holds: Callable[[], None]
    of: str

    def __call__(self) -> None:
        """Raise a ``LawError`` if it does not hold."""
        self.holds()

    def __str__(self) -> str:
        """Name it."""
        return self.of


def laws(case: Case) -> list[Law]:
    """List the laws that a model and each of its proposals owe."""
    found = [Law(partial(law, case), law.__name__) for law in OF_MODELS]
    on_cpu = case.device.type == "cpu"
    for name in case.proposals:
        stepwise = isinstance(case.proposal(name), LeftToRight)
        owed = [*OF_PROPOSALS]
        owed += [law for law in OF_DEVICES if on_cpu]
        owed += [law for law in OF_LEFT_TO_RIGHT if stepwise]
        owed += [law for law in OF_PIECES if stepwise and name not in case.reads_on]
        once = stepwise and _reads_once(case, name)
        owed += [law for law in OF_READING_ONCE if once]
        found += [
            Law(partial(law, case, name), f"{law.__name__}-{name}") for law in owed
        ]
    return found


def keys(count: int, purpose: str = "") -> list[int]:
    """Return keys of the random numbers of some texts."""
    return [stream_key(0, f"{purpose}/{n}") for n in range(count)]


# -- of models -----------------------------------------------------------------------


def total_is_that_of_its_mass(case: Case) -> None:
    """Probabilities of all that can happen add up to one, or less if it says so."""
    mass, total = case.model.mass, case.total()
    if mass is Mass.ONE:
        _hold(abs(total - 1) < case.exact(), f"a model that is {mass} totals {total}")
    if mass is Mass.LESS:
        _hold(total <= 1 + case.exact(), f"a model that is {mass} totals {total}")


def predictions_are_ratios_of_prefixes(case: Case) -> None:
    """``next_token`` after latents that are all there, against sums over lists."""
    if case.model.mass is Mass.UNNORMALISED:
        return
    for length in range(case.length):
        text = case.some_words(length)
        found = _predicted(case, text)
        _hold(abs(found.logsumexp(-1).item()) < PREDICTED, f"after {text}: no total")
        prefix = case.log_p(text).item() if text else 0.0
        ends = () if not case.goes_on and not text else (END,)
        for word in (*case.words, *ends):
            exact = case.log_p([*text, word]).item() - prefix
            _equal(found[word].item(), exact, PREDICTED, f"log p({word} | {text})")


def _predicted(case: Case, text: list[int]) -> Tensor:
    state, log_w = None, wide_zeros((1, 1), case.device)
    if text:
        latents, encoded = (
            case.every_latent(text),
            case.model.encode(case.batch([text])),
        )
        log_w = case.model.log_joint(encoded, latents)
        state = case.model.advance(encoded, latents)
    here = Particles(state, state, log_w, log_w, log_w.long())
    last = torch.tensor([[START, *text][-1]], device=case.device)
    return here.ahead(case.model, last).next_token(case.model)[0]


# -- of proposals --------------------------------------------------------------------


def total_is_one_and_covers_the_model(case: Case, name: str) -> None:
    """Sum of q = 1, and q > 0 wherever p > 0, at every temperature."""
    for temperature in (0.001, 0.5, 1.0, 2.0, 1000.0):
        proposal = case.proposal(name, temperature)
        for text in case.readable(proposal)[::7]:
            latents, log_p = case.every_latent(text), case.log_joint(text)
            encoded = proposal.encode(case.batch([text]))
            log_q = proposal.log_prob(encoded, latents)[0]
            what = f"{name} at temperature {temperature:g}, of {text}"
            within, total = case.exact(temperature), log_q.logsumexp(-1).item()
            _equal(total, 0.0, within, f"log of the total of {what}")
            missed = (log_p > -torch.inf) & log_q.isneginf()
            _hold(not missed.any(), f"{what}: a latent that p has is never drawn")


def importance_sampling_is_unbiased(case: Case, name: str) -> None:
    """The mean weight is p(x), by five standard errors of its own."""
    proposal = case.proposal(name)
    text = case.readable(proposal)[5]

    def ratios(copies: int) -> Tensor:
        log_w = case.log_weights(ImportanceSampling(100), proposal, [text] * copies)
        return (log_w - case.log_p(text)).exp().flatten()

    _mean_is_one(ratios, case.exact(), f"weights of {name}")


def filters_are_unbiased(case: Case, name: str) -> None:
    """And so is what particle filters make of them."""
    proposal, text = case.proposal(name), case.some_words(case.length)

    def ratios(copies: int) -> Tensor:
        log_w = case.log_weights(ParticleFilter(4), proposal, [text] * copies)
        return (log_evidence(log_w) - case.log_p(text)).exp()

    _mean_is_one(ratios, case.exact(), f"filters of {name}")


def _mean_is_one(ratios: Callable[[int], Tensor], rounding: float, what: str) -> None:
    copies = 50
    while True:
        ratio = ratios(copies)
        error = ratio.std().item() / math.sqrt(ratio.numel())
        if error < PRECISE:
            break
        _hold(
            ratio.numel() < DRAWS,
            f"{what} vary too much to notice a bias: error {error:.3g} of the mean "
            f"after {ratio.numel()} draws. Give a model of flatter latents",
        )
        copies *= 4
    mean = ratio.mean().item()
    _equal(mean, 1.0, 5 * error + rounding, f"mean of {what}, relative to p(x)")


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
            _hold(sum_of_beam <= exact + case.exact(), f"{what} exceeds log p(x)")
        _equal(sum_of_beam, exact, case.exact(), what)


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
    draws = proposal.sample(q, Streams(ids, 50, device=case.device), 50)
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
            _hold(len({*paths}) == len(paths), f"{what} is equal to another")
            possible = {*drawn[b, log_w[b] > -torch.inf].tolist()}
            _hold(
                possible <= {*paths},
                f"{what} is not the one that is drawn: are the places past the end of "
                "a text 0?",
            )
            of_found = dict(zip(paths, log_q[b, known].tolist(), strict=True))
            for path, of_drawn in zip(drawn[b], draws.log_q[b], strict=True):
                if (path := int(path)) in possible:
                    log_q_of_both = of_found[path], of_drawn.item()
                    _equal(*log_q_of_both, case.exact(), f"{what}: its log q")


def company_moves_no_weight(case: Case, name: str) -> None:
    """A text is scored in a batch as it is alone."""
    proposal, method = case.proposal(name), ImportanceSampling(7)
    texts = _of_several_lengths(case, name)
    together = case.log_weights(method, proposal, texts)
    for n, text in enumerate(texts):
        alone = method.log_weights(
            case.model, proposal, case.batch([text]), [keys(len(texts))[n]]
        )
        _close(together[n], alone[0], f"{name}: {text} in company and alone")


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
    _close(many[:, :5], few, f"{name}: the first 5 of 20 samples")
    with mock.patch.object(importance, "DECISIONS", 16):
        rounds = case.log_weights(ImportanceSampling(20), proposal, texts)
    _close(rounds, many, f"{name}: samples drawn in rounds and at once")


def device_moves_no_number(case: Case, name: str) -> None:
    """Whole texts, contexts and predictions on ``sim:0`` are the CPU's."""
    on_cpu = numbers_of(case, name)
    with simulated_device():
        on_device = numbers_of(case.on(SIMULATED), name)
    kinds = ("weights", "beams", "prefixes", "prefixes read on", "predictions")
    for ours, theirs, what in zip(on_device, on_cpu, kinds, strict=False):
        _close(ours, theirs, f"{name}: {what} on {SIMULATED} and on the CPU")


def numbers_of(case: Case, name: str) -> list[Tensor]:
    """Return weights, beams, prefixes and predictions of some texts, on the host.

    Of proposals that stop there are weights of prefixes, of what is read on after the
    next word was predicted, and the predictions.
    """
    model, proposal = case.model, case.proposal(name)
    texts, stops = case.readable(proposal)[1:4], isinstance(proposal, LeftToRight)
    batch, ids = case.batch(texts), keys(len(texts))
    draw = ImportanceSampling(4)
    found = [
        draw.log_weights(model, proposal, batch, ids),
        BeamMarginalization(3).log_weights(model, proposal, batch, ids),
    ]
    if stops:
        begin = Particles.begin(len(texts), case.device)
        end = case.length - 1
        piece, last = batch.piece(0, end), batch.piece(end, case.length)
        read = draw.extend(model, proposal, piece, ids, [0] * len(texts), begin)
        ahead = read.ahead(model, piece.targets[:, -1])
        on = draw.extend(model, proposal, last, ids, [end] * len(texts), ahead)
        found += [read.log_w, on.log_w]
        if model.mass is not Mass.UNNORMALISED:
            found.append(ahead.next_token(model))
    return [tensor.cpu() for tensor in found]


# -- of proposals that go from left to right ------------------------------------------


def pieces_are_scored_as_the_whole(case: Case, name: str) -> None:
    """Reading a token at a time draws and weighs what reading at once does."""
    proposal, method = case.proposal(name), ImportanceSampling(6)
    texts = [case.some_words(length) for length in (4, 1, 2)]
    whole = case.log_weights(method, proposal, texts)
    with _pieces_of(1):
        pieces = case.log_weights(method, proposal, texts)
    _close(pieces, whole, f"{name}: texts read in pieces and at once")


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
            _close(found, at_once, f"{name}: beams of {width} cut at {at} and whole")
    for row, listed in zip(found, every, strict=True):
        possible = listed[listed > -torch.inf]
        _close(row[: len(possible)], possible, f"{name}: a beam of all and the list")
        _hold(
            bool(row[len(possible) :].isneginf().all()),
            f"{name}: a beam finds latents that are not on the list",
        )


def _reads_once(case: Case, name: str) -> bool:
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
            _close(ours, theirs, f"{kind}: token {t} after encode_again and encode")


def _token_by_token(case: Case, method: Any, name: str) -> list[Tensor]:
    """Read each token ahead and then on; return log w and log q after every one."""
    model, proposal = case.model, case.proposal(name)
    text = [case.words[t % len(case.words)] for t in range(4)]
    whole, ids, found = case.batch([text, text[::-1]]), keys(2), []
    read = Particles.begin(2, case.device)
    for t in range(len(text)):
        piece = whole.piece(t, t + 1)
        read = read.ahead(model, piece.inputs[:, 0])
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


OF_MODELS = (total_is_that_of_its_mass, predictions_are_ratios_of_prefixes)
OF_PROPOSALS = (
    total_is_one_and_covers_the_model,
    importance_sampling_is_unbiased,
    beams_are_bounds_and_become_exact,
    latents_are_told_apart,
    company_moves_no_weight,
    first_samples_are_those_of_fewer,
)
OF_DEVICES = (device_moves_no_number,)
OF_LEFT_TO_RIGHT = (filters_are_unbiased,)
OF_PIECES = (pieces_are_scored_as_the_whole, beams_go_on_where_they_were_cut)
OF_READING_ONCE = (reading_once_is_reading_again,)


# -- what holds ----------------------------------------------------------------------


def _hold(condition: bool | Tensor, otherwise: str) -> None:
    if not condition:
        raise LawError(otherwise)


def _equal(found: float, expected: float, within: float, what: str) -> None:
    same = found == expected or abs(found - expected) <= within
    _hold(same, f"{what} is {found}, expected {expected} within {within:.2g}")


def _close(found: Tensor, expected: Tensor, what: str) -> None:
    within = EXACT if found.dtype == torch.float64 else PREDICTED
    try:
        torch.testing.assert_close(found.cpu(), expected.cpu(), rtol=0, atol=within)
    except AssertionError as err:
        raise LawError(f"{what} differ: {err}") from err
