"""Test cases: a model small enough to enumerate, with tolerances."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch
from torch import Tensor

from lm_latent_eval.devices import moved, sent, widest_float
from lm_latent_eval.estimators.diagnostics import RELIABLE_PARETO_K, pareto_k
from lm_latent_eval.inference.interface import Texts
from lm_latent_eval.inference.streams import stream_key
from lm_latent_eval.latent import offers, parts_of, rebuilt
from lm_latent_eval.models.proposals import proposal_named
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.words import END, START, UNKNOWN

EXACT = 1e-10
"""How far sums in float64 may be apart."""
PREDICTED = 1e-5
"""How far next-token distributions may be, which are float32, and what is added up
where there is no float64: a hundred roundings of it."""

SPELLING = -1.5
"""Log-probability of the spelling of a word, nats."""


class LawError(AssertionError):
    """A law that a model breaks."""


@dataclass(frozen=True)
class Law:
    """One law with the model that it is tested on; call it."""

    holds: Callable[[], None]
    of: str

    def __call__(self) -> None:
        """Raise a ``LawError`` if it does not hold."""
        self.holds()

    def __str__(self) -> str:
        return self.of


@dataclass(frozen=True)
class Case:
    """A model, in float64, with few enough latents to list.

    Example:
        >>> from lm_latent_eval.models.recurrent_lm import LSTMConfig, LSTMLanguageModel
        >>> torch.manual_seed(0) and None
        >>> config = LSTMConfig(vocab_size=6, embedding_dim=3, hidden_size=4)
        >>> model = LSTMLanguageModel(config).double().eval()
        >>> from lm_latent_eval.latent import NO_LATENT
        >>> from lm_latent_eval.testing import laws
        >>> case = Case(model, lambda text: NO_LATENT, (1, 4, 5), ("none",))
        >>> for law in laws(case):
        ...     law()
    """

    model: Any
    latents: Callable[[list[int]], Any]
    """Every latent of one text, given as ids, with leading axes (1, K); of real-valued
    ones the middles of cells that cover all that has mass."""
    words: tuple[int, ...]
    """Ids that the model can write, but for the end of a text; most of two."""
    proposals: tuple[str, ...]
    """Names, or ``package.module:Name``, of the proposals that are held to the laws."""
    reads_on: tuple[str, ...] = ()
    """Those whose draws depend on how much of a text is given at once, such as
    ``adapted`` of a model with a look-ahead (``log_twist``)."""
    copied: int | None = None
    """An id that has probability zero but where a latent brings it."""
    goes_on: bool = True
    """Whether words may follow an end, which then is a word like any other."""
    ends: bool = True
    """Whether texts have an end word; without, every text is whole."""
    spelled: bool = False
    """Whether unknown words are spelled, and what can be copied can be written so."""
    length: int = 3
    """Tokens of the texts that are listed."""
    log_cell: Callable[[list[int]], float] | None = None
    """Log of the volume of a cell, by the text, where latents are real-valued: sums of
    densities over the list, times this, are then integrals. None: they are discrete."""
    quadrature: float = 1e-6
    """How far such a sum may be from its integral, nats."""
    given: tuple[int, ...] | None = None
    """Ids that a conditional model is given, two or more; None: it is none."""

    def outcomes(self) -> list[list[int]]:
        """List texts of which exactly one happens."""
        if self.goes_on or not self.ends:
            words = (*self.words, *[END] * self.ends)
            return [list(text) for text in product(words, repeat=self.length)]
        texts = [list(text) for text in product(self.words, repeat=self.length)]
        for n in range(1, self.length):
            texts += [[*text, END] for text in product(self.words, repeat=n)]
        return texts if self._of_sentences else [*texts, [END]]

    @property
    def _of_sentences(self) -> bool:
        """Whether texts are sentences, none of which is empty."""
        return offers(self.model, "sentence_starts")

    def ends_after(self, text: list[int]) -> bool:
        """Whether the end of a text may follow."""
        return self.ends and bool(text or self.goes_on or not self._of_sentences)

    def readable(self, proposal: Any) -> list[list[int]]:
        """List texts that a proposal can read: whole ones, if it reads to the end."""
        whole = self.ends and proposal.left_to_right is not proposal
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
        rounding = PREDICTED / min(temperature, 1.0)
        if widest_float(self.device) is torch.float64:
            rounding = EXACT
        return rounding if self.log_cell is None else max(rounding, self.quadrature)

    def batch(
        self, texts: list[list[int]], given: list[tuple[int, ...]] | None = None
    ) -> TokenBatch:
        """Put texts together, which are given the same, or each its own."""
        costs = [[self._cost(word) for word in text] for text in texts]
        if given is None and self.given is not None:
            given = [self.given] * len(texts)
        return TokenBatch.collate(
            texts,
            costs,
            first=START,
            spelled=self.spelled,
            given=given,
            device=self.device,
        )

    def _cost(self, word: int) -> float:
        """Return the cost of a word as an unknown one, nats."""
        if self.spelled and word in (UNKNOWN, self.copied):
            return SPELLING
        return -math.inf if word == self.copied else 0.0

    def cell(self, text: list[int]) -> float:
        """Return what a listed latent adds to its log density: 0 where it has none."""
        return 0.0 if self.log_cell is None else self.log_cell(text)

    def every_latent(self, text: list[int]) -> Any:
        """Return every latent of one text where the model is."""
        latents = self.latents(text)
        return rebuilt(latents, [sent(p, self.device) for p in parts_of(latents)])

    def log_joint(self, text: list[int]) -> Tensor:
        """Return log p of one text under every latent, or on its cell, (K,)."""
        encoded = self.model.encode(self.batch([text]))
        log_p: Tensor = self.model.log_joint(encoded, self.every_latent(text))[0]
        return log_p + self.cell(text)

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
        log_w: Tensor = method.log_weights(self.whole(texts, proposal))
        return log_w.cpu()

    def whole(self, texts: list[list[int]], proposal: Any) -> Texts:
        """Return texts as estimators take them."""
        return Texts(self.model, proposal, self.batch(texts), keys(len(texts)))


def keys(count: int, purpose: str = "") -> list[int]:
    """Return keys of the random numbers of some texts."""
    return [stream_key(0, f"{purpose}/{n}") for n in range(count)]


def hold(condition: bool | Tensor, otherwise: str) -> None:
    """Raise a ``LawError`` if something does not hold."""
    if not condition:
        raise LawError(otherwise)


def equal(found: float, expected: float, within: float, what: str) -> None:
    """Raise a ``LawError`` if numbers are further apart than that."""
    same = found == expected or abs(found - expected) <= within
    hold(same, f"{what} is {found}, expected {expected} within {within:.2g}")


def close(found: Tensor, expected: Tensor, what: str) -> None:
    """Raise a ``LawError`` if numbers differ by more than rounding."""
    within = EXACT if found.dtype == torch.float64 else PREDICTED
    try:
        torch.testing.assert_close(found.cpu(), expected.cpu(), rtol=0, atol=within)
    except AssertionError as err:
        raise LawError(f"{what} differ: {err}") from err


PRECISE = 0.05
"""Relative standard error below which a bias of five of them is noticed."""
DRAWS = 1 << 18
"""The most that are drawn to get there."""
CONFIRMING = 3_200
"""Draws that a bias has to show in: 170 of them are the tail."""
FINITE_VARIANCE_K = 0.5
"""Pareto k below which draws have a variance: a bias is judged by no others."""
LEADING = 0.01
"""Share of all squared deviations that the largest has in a heavy tail. It goes to 0
where the variance is finite: Pareto k of a few values that repeat says nothing."""


def mean_is_one(
    log_ratios: Callable[[int], Tensor], rounding: float, what: str
) -> None:
    """Draw until a bias would be noticed; raise a ``LawError`` if there is one.

    A sample that has met none of a heavy tail's large draws looks precise, and its mean
    is low. So a bias that shows in few draws has to show in many, and is judged only if
    their spread tells the error of their mean.

    Args:
        log_ratios: Returns that many draws of log p-hat less log p, nats.
        rounding: How far sums may be apart that are equal.
        what: Names what is averaged.

    Raises:
        LawError: If the mean is not one, or is undetermined.
    """
    copies = 50
    while True:
        log_ratio = log_ratios(copies)
        ratio = log_ratio.exp()
        mean, error = ratio.mean().item(), ratio.std().item() / math.sqrt(copies)
        is_told = error < PRECISE
        if is_told and abs(mean - 1.0) <= 5 * error + rounding:
            return
        reliable = FINITE_VARIANCE_K if is_told else RELIABLE_PARETO_K
        hold(
            copies < CONFIRMING or not _has_heavy_tail(log_ratio, reliable),
            f"undetermined: heavy tail: the largest of {copies} draws of {what} is "
            f"{ratio.max():.3g} p(x), their mean {mean:.3g}, and their spread does not "
            "tell its error. Give a model of flatter latents or a wider proposal",
        )
        if is_told and copies >= CONFIRMING:
            break
        hold(
            copies < DRAWS,
            f"undetermined: {what} vary too much to notice a bias: error {error:.3g} "
            f"of the mean after {copies} draws. Give a model of flatter latents",
        )
        copies = CONFIRMING if is_told else 4 * copies
    equal(mean, 1.0, 5 * error + rounding, f"mean of {what}, relative to p(x)")


def _has_heavy_tail(log_ratio: Tensor, reliable: float) -> bool:
    """Whether Pareto k is above what is reliable, and one draw leads all others."""
    squares = (log_ratio.exp() - log_ratio.exp().mean()).square()
    leads = squares.max() > LEADING * squares.sum()
    return bool(leads and pareto_k(log_ratio) > reliable)
