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
"""Tolerance of sums in float64."""
PREDICTED = 1e-5
"""Tolerance of next-token distributions and of sums without float64: a hundred
roundings of float32."""

SPELLING = -1.5
"""Log-probability of the spelling of a word, nats."""


class LawError(AssertionError):
    """Error of a model that breaks a law."""


@dataclass(frozen=True)
class Law:
    """One law with the model that it is tested on; call it."""

    holds: Callable[[], None]
    of: str

    def __call__(self) -> None:
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
    """Function from one text, given as ids, to all of its latents, with leading axes
    (1, K); for real-valued ones the middles of cells that cover nearly all mass."""
    words: tuple[int, ...]
    """Ids that the model can predict, except the end of a text; two are enough."""
    proposals: tuple[str, ...]
    """Names, or ``package.module:Name``, of the proposals that are tested."""
    reads_on: tuple[str, ...] = ()
    """Names of proposals whose draws depend on the size of pieces, such as ``adapted``
    of a model with a look-ahead (``log_twist``)."""
    copied: int | None = None
    """Id of probability zero unless a latent copies it."""
    goes_on: bool = True
    """Whether words may follow an end, which then is a word like any other."""
    ends: bool = True
    """Whether texts have an end word; without, every text is whole."""
    spelled: bool = False
    """Whether unknown words are spelled, so that a copied word can also be spelled."""
    length: int = 3
    """Number of tokens of the listed texts."""
    log_cell: Callable[[list[int]], float] | None = None
    """Function from a text to the log volume of a cell of real-valued latents, which
    turns sums of densities into integrals. None: latents are discrete."""
    quadrature: float = 1e-6
    """Tolerance of such integrals, nats."""
    given: tuple[int, ...] | None = None
    """Ids that a conditional model is given, two or more; None: unconditional."""

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
        """Texts that a proposal can read: whole ones, if it reads to the end."""
        whole = self.ends and proposal.left_to_right is not proposal
        return [t for t in self.outcomes() if t[-1] == END or not whole]

    def some_words(self, length: int) -> list[int]:
        """A text without an end."""
        return [self.words[(1 + n % 2) % len(self.words)] for n in range(length)]

    def on(self, device: str) -> Case:
        """Case with a copy of its model on a device."""
        return replace(self, model=moved(copy.deepcopy(self.model), device))

    @property
    def device(self) -> torch.device:
        device: torch.device = self.model.device
        return device

    def exact(self, temperature: float = 1.0) -> float:
        """Tolerance of equal sums, nats.

        Roundings of float32 are divided by a temperature as the scores are.
        """
        rounding = PREDICTED / min(temperature, 1.0)
        if widest_float(self.device) is torch.float64:
            rounding = EXACT
        return rounding if self.log_cell is None else max(rounding, self.quadrature)

    def batch(
        self, texts: list[list[int]], given: list[tuple[int, ...]] | None = None
    ) -> TokenBatch:
        """Collate texts with the same condition, or each with its own."""
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
        if self.spelled and word in (UNKNOWN, self.copied):
            return SPELLING
        return -math.inf if word == self.copied else 0.0

    def cell(self, text: list[int]) -> float:
        """Log volume of a listed latent: 0 if latents are discrete."""
        return 0.0 if self.log_cell is None else self.log_cell(text)

    def every_latent(self, text: list[int]) -> Any:
        """All latents of one text, on the model's device."""
        latents = self.latents(text)
        return rebuilt(latents, [sent(p, self.device) for p in parts_of(latents)])

    def log_joint(self, text: list[int]) -> Tensor:
        """Log p of one text under every latent, or on its cell, (K,)."""
        encoded = self.model.encode(self.batch([text]))
        log_p: Tensor = self.model.log_joint(encoded, self.every_latent(text))[0]
        return log_p + self.cell(text)

    def log_p(self, text: list[int]) -> Tensor:
        """Exact log p of one text, on the host."""
        return self.log_joint(text).logsumexp(-1).cpu()

    def total(self) -> float:
        """Probability of all outcomes."""
        return sum(self.log_p(text).exp().item() for text in self.outcomes())

    def proposal(self, name: str | None = None, temperature: float = 1.0) -> Any:
        return proposal_named(self.model, name, temperature)

    def log_weights(self, method: Any, proposal: Any, texts: list[list[int]]) -> Tensor:
        """Log-weights of texts in one batch, (B, K), on the host."""
        log_w: Tensor = method.log_weights(self.whole(texts, proposal))
        return log_w.cpu()

    def whole(self, texts: list[list[int]], proposal: Any) -> Texts:
        """Texts as the input of estimators."""
        return Texts(self.model, proposal, self.batch(texts), keys(len(texts)))


def keys(count: int, purpose: str = "") -> list[int]:
    """Keys of the random numbers of texts."""
    return [stream_key(0, f"{purpose}/{n}") for n in range(count)]


def hold(condition: bool | Tensor, otherwise: str) -> None:
    """Raise a ``LawError`` if a condition fails."""
    if not condition:
        raise LawError(otherwise)


def equal(actual: float, expected: float, within: float, what: str) -> None:
    """Raise a ``LawError`` if numbers differ by more than a tolerance."""
    same = actual == expected or abs(actual - expected) <= within
    hold(same, f"{what} is {actual}, expected {expected} within {within:.2g}")


def close(actual: Tensor, expected: Tensor, what: str) -> None:
    """Raise a ``LawError`` if numbers differ by more than rounding."""
    within = EXACT if actual.dtype == torch.float64 else PREDICTED
    try:
        torch.testing.assert_close(actual.cpu(), expected.cpu(), rtol=0, atol=within)
    except AssertionError as err:
        raise LawError(f"{what} differ: {err}") from err


PRECISE = 0.05
"""Relative standard error below which a bias of five of them is noticed."""
DRAWS = 1 << 18
"""Largest number of draws."""
CONFIRMING = 3_200
"""Number of draws that a bias has to show in: their tail is 170 draws."""
FINITE_VARIANCE_K = 0.5
"""Pareto k below which draws have a variance; others decide no bias."""
LEADING = 0.01
"""Share of all squared deviations that the largest has in a heavy tail. It goes to 0 if
the variance is finite; Pareto k of few distinct values does not tell."""


def mean_is_one(
    log_ratios: Callable[[int], Tensor], rounding: float, what: str
) -> None:
    """Draw until a bias would be noticed; raise a ``LawError`` if there is one.

    A sample without the large draws of a heavy tail looks precise, with a low mean. So
    a bias in few draws has to show in many, and counts only if their spread determines
    the error of their mean.

    Args:
        log_ratios: Function from a number of draws to log p-hat less log p, nats.
        rounding: Tolerance of equal sums.
        what: Name of the averaged quantity.

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
    squares = (log_ratio.exp() - log_ratio.exp().mean()).square()
    leads = squares.max() > LEADING * squares.sum()
    return bool(leads and pareto_k(log_ratio) > reliable)
