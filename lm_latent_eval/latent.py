"""The latent interface: protocols of latent language models and proposals.

A latent LM defines p(x, z); a proposal defines q(z | x). Both work on batches of B
texts and K latents a text, in two steps:

1. ``encode`` does everything that does not depend on z, once a text;
2. ``log_joint`` scores, and ``sample`` or ``beam`` proposes, K latents a text.

What a batch, an encoding and a latent *are* is the model's own business: trees, chains
of entities, walks through a graph, segmentations, permutations all fit, because only
the model and its proposal look inside them.

A model whose latents unfold from left to right can also stop and go on: ``advance``
returns the state after a piece of text, ``encode`` takes it up again. Prefix
probabilities, contexts shared by several continuations, texts of any length,
next-token distributions and generation follow from that alone (``LeftToRight``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, Protocol, Self, TypeAlias, TypeVar, runtime_checkable

import torch
from torch import Tensor

Latents: TypeAlias = Tensor | tuple[Tensor, ...]
"""Of B texts, K each: numbers with leading axes (B, K), or a (named) tuple of them.

Integers are discrete latents. Floating-point numbers are real-valued ones, of which
log p(x, z) and log q(z | x) are densities: they can be drawn and weighed, but neither
listed nor counted."""

BatchT = TypeVar("BatchT", contravariant=True)
EncodedT = TypeVar("EncodedT")
LatentsT = TypeVar("LatentsT", bound=Latents)
GivenEncodedT = TypeVar("GivenEncodedT", contravariant=True)
GivenLatentsT = TypeVar("GivenLatentsT", bound=Latents, contravariant=True)
FoundLatentsT = TypeVar("FoundLatentsT", bound=Latents, covariant=True)

Uniforms = Callable[[int], Tensor]
"""Random numbers of one decision: step -> (B, K, 4), independent, uniform on (0, 1).

They are made on the host, float64; ``sent_uniforms`` of ``devices`` copies them. The
last of the four is left to inference, for resampling."""


def parts_of(latents: Latents) -> tuple[Tensor, ...]:
    """Return the tensors that latents consist of."""
    return (latents,) if isinstance(latents, Tensor) else tuple(latents)


def rebuilt(latents: Latents, parts: Sequence[Tensor]) -> Latents:
    """Return latents of the same kind from other tensors."""
    if isinstance(latents, Tensor):
        return parts[0]
    return tuple(parts) if type(latents) is tuple else type(latents)(*parts)


class Normalization(StrEnum):
    """Total of a model's probabilities over all texts."""

    ONE = "normalised"
    BELOW_ONE = "sub-normalised"
    """Part of the total is on impossible latents or words: log p is a lower bound of
    that of the renormalised model."""
    BY_LENGTH = "no distribution over lengths"
    """Texts do not end: only those of one length compare."""
    UNNORMALISED = "unnormalised"
    """Scores with an unknown normaliser: there is no perplexity, and only
    differences between texts of one length mean something."""


NO_LATENT = torch.empty(1, 1, 0, dtype=torch.long)
"""All there is to sum over where a model has no latents: one choice of nothing."""


@dataclass(frozen=True)
class Draws(Generic[LatentsT]):
    """Latents of B texts, K each, with their probability under the proposal."""

    latents: LatentsT
    """The model's own: a tensor or named tuple of tensors with leading axes (B, K), on
    the host if they were decided there. Two latents of a text are equal if
    and only if their numbers are, those past its end included: so what was drawn is
    known among what was found."""
    log_q: Tensor
    """log q(z_k | x) in nats, shape (B, K), float64."""
    log_p: Tensor | None = None
    """log p(x, z_k) in nats, shape (B, K), float64, where the proposal knows it. None:
    ``log_joint`` tells."""


@dataclass(frozen=True)
class Beam(Generic[LatentsT]):
    """Distinct latents of B texts, up to K each."""

    latents: LatentsT
    """As those of ``Draws``."""
    score: Tensor
    """What the search ranks by, nats, (B, K), float64: log q(z_k | x), or what stands
    for log p if the proposal says so. ``-inf`` marks an unused place."""
    origin: Tensor
    """Which latent of the text so far each continues, (B, K); 0 at the beginning."""
    log_q: Tensor | None = None
    """log q(z_k | x) in nats, (B, K) float64, where the search knows it; what stands in
    an unused place is not looked at. None: ``log_prob`` tells."""
    log_p: Tensor | None = None
    """The same of log p(x, z_k). None: ``log_joint`` tells."""
    cut: Tensor | None = None
    """Whether latents of a text may have been left out, (B,) bool: of a beam that was
    full after any step. None: of every text."""


@dataclass(frozen=True)
class Span:
    """Consecutive words that a latent says something of."""

    start: int
    """The first word, from 0."""
    end: int
    """The word after the last."""
    label: str
    """What it says: a topic, an entity, a relation."""
    group: int = 0
    """Spans of one group belong together, as the mentions of an entity do."""


@dataclass(frozen=True)
class Description:
    """A latent of a text, for people."""

    text: str
    """One line."""
    spans: tuple[Span, ...] = ()
    is_tree: bool = False
    """Whether the spans are the constituents of a tree, the inner ones first."""


def marked(words: Sequence[str], spans: Sequence[Span]) -> Description:
    """Describe spans that do not overlap, in their order, in the text.

    Example:
        >>> marked(["Ada", "saw", "Bo"], [Span(0, 1, "new"), Span(2, 3, "old")]).text
        '[Ada](new) saw [Bo](old)'
    """
    parts, place = list[str](), 0
    for span in spans:
        inside = " ".join(words[span.start : span.end])
        parts += [*words[place : span.start], f"[{inside}]({span.label})"]
        place = span.end
    return Description(" ".join([*parts, *words[place:]]), tuple(spans))


@runtime_checkable
class Describes(Protocol[GivenLatentsT]):
    """A model that says in words what a latent of its own is."""

    def describe(
        self,
        words: Sequence[str],
        latents: GivenLatentsT,
        decode: Callable[[Sequence[int]], str],
        /,
    ) -> Description:
        """Describe the one latent of one text.

        Args:
            words: The text, its end left out.
            latents: With leading axes (1, 1), on the host; their places may be more
                than there are words, by the end of the text.
            decode: Writes ids of words as a string.
        """
        ...


class LatentLM(Protocol[BatchT, EncodedT, GivenLatentsT]):
    """A joint distribution p(x, z) over texts x and latents z."""

    def encode(self, batch: BatchT, /) -> EncodedT:
        """Compute what does not depend on z, once a text."""
        ...

    def log_joint(self, encoded: EncodedT, latents: GivenLatentsT, /) -> Tensor:
        """Return log p(x, z_k) in nats, shape (B, K); ``-inf`` where p is zero."""
        ...


@runtime_checkable
class Conditional(Protocol):
    """A model of texts given others, p(y, z | x), whose batches have x as ``given``.

    A context of lm-eval's is then what is given, and of no probability itself.
    """

    @property
    def conditional_on(self) -> str:
        """Name of x in messages: "the question", "the sentence to be translated"."""
        ...


class Proposal(Protocol[BatchT, EncodedT, LatentsT]):
    """A distribution q(z | x), positive wherever p(x, z) is, that is drawn from."""

    @property
    def name(self) -> str:
        """Its name in options."""
        ...

    def encode(self, batch: BatchT, /) -> EncodedT:
        """Compute what does not depend on z, once a text."""
        ...

    def sample(
        self, encoded: EncodedT, uniforms: Uniforms, num_samples: int, /
    ) -> Draws[LatentsT]:
        """Draw z_1..z_K from q(. | x) by inverting distribution functions.

        The draws are a function of the random numbers alone, so that the same
        numbers give the same latents in any batch.
        """
        ...

    def log_prob(self, encoded: EncodedT, latents: LatentsT, /) -> Tensor:
        """Return log q(z_k | x) in nats, (B, K) float64, of latents that p has.

        They may come from another proposal of the model. What the padding of fewer
        latents than K gets is ignored.
        """
        ...


@runtime_checkable
class Searches(Protocol[GivenEncodedT, LatentsT]):
    """A proposal that finds distinct latents by beam search.

    Beams, ``mixed`` and ``exact`` need it; draws do not.
    """

    @property
    def name(self) -> str:
        """Its name in options."""
        ...

    def beam(
        self, encoded: GivenEncodedT, width: int, score: Tensor | None = None, /
    ) -> Beam[LatentsT]:
        """Find up to ``width`` distinct latents; every one if they fit.

        ``score`` (B, K') is that of the latents of the text so far, if there is any.
        """
        ...


class State(Protocol):
    """State of B texts with K latent histories each.

    Indices are on the host, where a state may keep its discrete parts, so that no
    device is waited for.
    """

    def select(self, index: Tensor) -> Self:
        """Pick texts, in any order and number: ``index`` (B',) -> B' texts."""
        ...

    def resample(self, index: Tensor) -> Self:
        """Pick latents of each text: ``index`` (B, K') -> K' latents a text."""
        ...


StateT = TypeVar("StateT", bound=State)
GivenStateT = TypeVar("GivenStateT", bound=State, contravariant=True)


@runtime_checkable
class LeftToRight(Protocol[BatchT, EncodedT, GivenLatentsT, StateT]):
    """A model *and* its proposal whose latents unfold from left to right."""

    def encode(self, batch: BatchT, after: StateT | None = None, /) -> EncodedT:
        """Encode a piece of text that follows ``after`` (None: the beginning)."""
        ...

    def advance(self, encoded: EncodedT, latents: GivenLatentsT, /) -> StateT:
        """Return the state after an encoded piece under K latents a text."""
        ...


class UnfoldingLM(
    LeftToRight[BatchT, EncodedT, GivenLatentsT, State],
    LatentLM[BatchT, EncodedT, GivenLatentsT],
    Protocol[BatchT, EncodedT, GivenLatentsT],
):
    """A latent LM, for estimators.

    ``advance`` is called only where its proposal is ``LeftToRight``.
    """


class UnfoldingProposal(
    LeftToRight[BatchT, EncodedT, LatentsT, State],
    Proposal[BatchT, EncodedT, LatentsT],
    Protocol[BatchT, EncodedT, LatentsT],
):
    """A proposal, for estimators; see ``UnfoldingLM``."""


@runtime_checkable
class ReadsAhead(Protocol[BatchT, EncodedT, GivenStateT]):
    """A left-to-right proposal whose draws depend on the text ahead.

    Particle filters stop at every token. So they encode a piece at once, and cut the
    encoding.
    """

    def encode(self, batch: BatchT, after: GivenStateT | None = None, /) -> EncodedT:
        """Encode a piece of text that follows ``after`` (None: the beginning)."""
        ...

    def token(
        self, encoded: EncodedT, t: int, after: GivenStateT | None, /
    ) -> EncodedT:
        """Cut out token t of an encoded piece, after the latents so far."""
        ...

    def log_twist(self, encoded: EncodedT, t: int, after: GivenStateT, /) -> Tensor:
        """Return the log of the twisting function before token t, nats, (B, K) float64.

        A guess of log p(tokens t and on | latents so far), up to a number that all
        latents of a text share; 0 at its end.
        """
        ...


@runtime_checkable
class FindsAndDraws(Protocol[GivenEncodedT, LatentsT]):
    """What a proposal offers that searches and draws at once for less than apart."""

    def beam_and_sample(
        self,
        encoded: GivenEncodedT,
        width: int,
        uniforms: Uniforms,
        num_samples: int,
        /,
    ) -> tuple[Beam[LatentsT], Draws[LatentsT]]:
        """Return what ``beam`` finds and ``sample`` draws of whole texts.

        The search may be given up where it holds next to nothing of p, which does not
        depend on the draws.
        """
        ...


@runtime_checkable
class DrawsFrom(Protocol[GivenEncodedT, LatentsT]):
    """A left-to-right proposal that draws from given origins after resampling.

    A filter resamples on the device. The host then waits once, for the origins and the
    draws together.
    """

    def sample_from(
        self, encoded: GivenEncodedT, uniforms: Uniforms, origin: Tensor, /
    ) -> tuple[Draws[LatentsT], Tensor]:
        """Draw what ``sample`` draws after ``State.resample(origin)``.

        Args:
            encoded: A piece after the histories that are chosen from.
            uniforms: As ``sample`` takes them.
            origin: Which of K histories each of K latents continues, (B, K), on the
                host or not.

        Returns:
            The draws, and ``origin`` on the host.
        """
        ...


@runtime_checkable
class WholeText(Protocol[BatchT, EncodedT, LatentsT]):
    """A proposal that reads texts to their ends and cannot stop before."""

    @property
    def left_to_right(self) -> UnfoldingProposal[BatchT, EncodedT, LatentsT]:
        """The ``LeftToRight`` proposal that replaces it where a text goes on."""
        ...


@runtime_checkable
class Summable(Protocol[BatchT, EncodedT, LatentsT]):
    """A model that can sum over all of its latents exactly."""

    @property
    def summation(self) -> UnfoldingProposal[BatchT, EncodedT, LatentsT]:
        """A proposal, ``LeftToRight``, of one latent: all of them, summed."""
        ...


@runtime_checkable
class Enumerable(Protocol):
    """A model of words that can sum over the latents of a short text, one by one."""

    @property
    def exact_proposal(self) -> str:
        """The name of its proposal whose q(z_t | z_<t, x_<=t) is p's own."""
        ...

    def num_latents(self, num_words: int, /) -> int:
        """Return how many latents a text of so many words has, its end or not."""
        ...

    def log_marginal(self, words: Tensor, /) -> Tensor:
        """Sum over all latents of texts of one length.

        Args:
            words: Word ids, with their end word or without, (B, T).

        Returns:
            Nats, (B,) float64: of a text without its end word log p of all texts that
            begin so.
        """
        ...


class Conditionals(Protocol[FoundLatentsT]):
    """K latents a text, any decision of which can be redrawn given the others.

    They begin undecided, and a decision not yet taken is drawn given those that are.
    """

    @property
    def latents(self) -> FoundLatentsT:
        """The current latents, in the form of ``Draws``."""
        ...

    def choices(self, t: int, /) -> Tensor:
        """Return the decisions of token t as indices of ``log_p``, (B, K)."""
        ...

    def log_p(self, t: int, /) -> Tensor:
        """Return log p(z_t, x_t | the other decisions), nats, (B, K, N) float64.

        Of a proposal log q(z_t | the other decisions, x). Past the end of a text there
        is one choice, the first, for sure.
        """
        ...

    def decide(self, t: int, choice: Tensor, /) -> None:
        """Set the decisions of token t, (B, K); none past a text's end."""
        ...


@runtime_checkable
class Redraws(Protocol[GivenEncodedT, LatentsT]):
    """A model or a proposal whose conditionals have a closed form (Gibbs sampling).

    A model's conditional is log p(x, z) as a function of one decision. Where only the
    decisions before it are taken, it is exactly log p(z_t, x_t | z_<t).
    """

    def conditionals(
        self, encoded: GivenEncodedT, latents: LatentsT | int, /
    ) -> Conditionals[LatentsT]:
        """Begin with K latents a text, or with K undecided ones."""
        ...


@runtime_checkable
class WholeTextsOnly(Protocol):
    """A model that scores whole texts alone."""

    @property
    def why_whole(self) -> str:
        """Reason and remedy, for an error message."""
        ...


@runtime_checkable
class SentenceModel(Protocol):
    """A model of sentences: the probability of a document is the product of theirs."""

    def sentence_starts(self, text: str, /) -> list[int]:
        """Return where each sentence of a document begins, in characters."""
        ...


class NextToken(Protocol[GivenEncodedT]):
    """A left-to-right model that predicts the next token."""

    def next_token(
        self, encoded: GivenEncodedT, log_w: Tensor, uniforms: Uniforms, /
    ) -> Tensor:
        r"""Predict the next token from weighted latent histories.

        .. math::
            \hat p(x_{t+1} \mid x_{\le t}) =
            \sum_k \bar w_k \sum_{z_{t+1}} p(z_{t+1} \mid z_{k, \le t}, x_{\le t})
            \, p(x_{t+1} \mid z_{t+1}, x_{\le t})

        Where the sum over z_{t+1} has no closed form, it is estimated by draws.

        Args:
            encoded: Pieces that begin with that token, which is ignored; B texts with K
                histories each.
            log_w: Their log-weights in nats, shape (B, K), normalised here.
            uniforms: Random numbers, of this prediction alone, for those draws.

        Returns:
            Log-probabilities in nats, (B, number of words the model can utter).
        """
        ...


@runtime_checkable
class ReadsOnce(Protocol[BatchT, EncodedT, GivenStateT]):
    """A model or a proposal that can reuse an encoding.

    A predicted token becomes known, or a search replaces the histories: the tokens
    before each target have been read by then.
    """

    def encode_again(
        self, encoded: EncodedT, batch: BatchT, after: GivenStateT | None, /
    ) -> EncodedT:
        """Reuse an encoding after targets or histories change.

        Args:
            encoded: The old encoding of the pieces. Of a model, targets may have been
                unknown; a text that then has none is not continued.
            batch: The pieces with their targets.
            after: The state that they follow now: other histories of the same texts,
                or the same. Latents that were scored with the old encoding belong to
                the histories of then; latents of a search to the histories that it
                says they continue.
        """
        ...
