"""The latent interface: base classes of latent language models and proposals.

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
next-token distributions and generation follow from that alone.

Each base class has few abstract methods and many optional ones. An optional method is
offered by overriding it (``offers``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol, Self, TypeAlias

import torch
from torch import Tensor

from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.encoder import Encoder

Latents: TypeAlias = Tensor | tuple[Tensor, ...]
"""Latents of B texts, K each: numbers with leading axes (B, K), or a tuple of them.

Integers are discrete latents. Floating-point numbers are real-valued ones, of which
log p(x, z) and log q(z | x) are densities: they can be drawn and weighed, but neither
listed nor counted."""

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
class Draws:
    """Latents of B texts, K each, with their probability under the proposal."""

    latents: Any
    """Latents of the model: a tensor or named tuple of tensors with leading axes
    (B, K), on the host if they were decided there. Two latents of a text are equal if
    and only if their numbers are, those past its end included: this tells draws that a
    search has found, too."""
    log_q: Tensor
    """log q(z_k | x) in nats, shape (B, K), float64."""
    log_p: Tensor | None = None
    """log p(x, z_k) in nats, shape (B, K), float64, where the proposal computes it.
    None: ``log_joint`` computes it."""


@dataclass(frozen=True)
class Beam:
    """Distinct latents of B texts, up to K each."""

    latents: Any
    """Latents in the form of ``Draws``."""
    score: Tensor
    """Rank of the search, nats, (B, K), float64: log q(z_k | x), or a stand-in for
    log p if the proposal says so. ``-inf`` marks an unused slot."""
    origin: Tensor
    """Index of the latent of the text so far that each continues, (B, K); 0 at the
    beginning."""
    log_p: Tensor | None = None
    """log p(x, z_k) in nats, (B, K) float64, where the search computes it; unused
    slots are ignored. None: ``log_joint`` computes it."""
    cut: Tensor | None = None
    """Whether latents of a text may have been left out, (B,) bool: the beam was full
    after some step. None: of every text."""
    log_f: Tensor | None = None
    """Log of the factor of p(x, z_k) in a sum, nats, (B, K) float64: of latents that
    stand for others. None: 1."""


@dataclass(frozen=True)
class Span:
    """Consecutive words with a label."""

    start: int
    """The first word, from 0."""
    end: int
    """The word after the last."""
    label: str
    """A topic, an entity, a relation."""
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


class Conditionals(ABC):
    """K latents a text, any decision of which can be redrawn given the others.

    They begin undecided, and a decision not yet taken is drawn given those that are.
    """

    @property
    @abstractmethod
    def latents(self) -> Any:
        """The current latents, in the form of ``Draws``."""

    @abstractmethod
    def log_p(self, t: int, /) -> Tensor:
        """Return log p(z_t, x_t | the other decisions), nats, (B, K, N) float64.

        Of a proposal log q(z_t | the other decisions, x). Past the end of a text there
        is one choice, the first, for sure.
        """

    @abstractmethod
    def decide(self, t: int, choice: Tensor, /) -> None:
        """Set the decisions of token t, (B, K); none past a text's end."""


class Reader(ABC):
    """What models and proposals have in common: they encode texts."""

    @abstractmethod
    def encode(self, batch: TokenBatch, after: Any = None, /) -> Any:
        """Compute what does not depend on z, once a text.

        Args:
            batch: Whole texts, or pieces of texts.
            after: The state that pieces follow, from ``advance``; None: the beginning.
        """

    def advance(self, encoded: Any, latents: Any, /) -> State:
        """Return the state after an encoded piece under K latents a text.

        Optional, for latents that unfold from left to right.
        """
        raise ValueError(
            f"{type(self).__name__} has no advance(encoded, latents), which says where "
            "a text has got to: it reads whole texts"
        )

    def encode_again(self, encoded: Any, batch: TokenBatch, after: Any, /) -> Any:
        """Reuse an encoding after targets or histories change.

        A predicted token becomes known, or a search replaces the histories: the tokens
        before each target have been read by then. Optional: without, they are read
        again.

        Args:
            encoded: The old encoding of the pieces. Of a model, targets may have been
                unknown; a text that then has none is not continued.
            batch: The pieces with their targets.
            after: The state that they follow now: other histories of the same texts,
                or the same. Latents that were scored with the old encoding belong to
                the histories of then; latents of a search to the histories that it
                says they continue.
        """
        return self.encode(batch, after)

    def conditionals(self, encoded: Any, latents: Any, /) -> Conditionals:
        """Begin with K latents a text, or with K undecided ones (Gibbs sampling).

        Optional, where each decision given all others has a closed form. A model's
        conditional is log p(x, z) as a function of one decision. Where only the
        decisions before it are taken, it is exactly log p(z_t, x_t | z_<t).
        """
        raise ValueError(
            "estimator=ais redraws each decision given all others, which a "
            f"{type(self).__name__} has no closed form for: use auto, is or smc"
        )


class LatentLM(Reader):
    """A joint distribution p(x, z) over texts x and latents z."""

    estimators: Sequence[str]
    """Names of the estimators that suit it, the default first."""
    exact_proposal: str | None = None
    """Name of its proposal whose q(z_t | z_<t, x_<=t) is p's own; None: it has none."""
    conditional_on: str | None = None
    """Name of x in messages of a model p(y, z | x): "the question". Batches have x as
    ``given``, and a context of lm-eval's is x. None: the model is not conditional."""
    why_whole: str | None = None
    """Reason why it scores whole texts alone, and the remedy, for an error message;
    None: it scores continuations as well if it has ``advance``."""

    @property
    @abstractmethod
    def proposal_names(self) -> Sequence[str]:
        """Names of its proposals, the default first."""

    @property
    def normalization(self) -> Normalization:
        """Total of its probabilities over all texts."""
        return Normalization.ONE

    @abstractmethod
    def log_joint(self, encoded: Any, latents: Any, /) -> Tensor:
        """Return log p(x, z_k) in nats, shape (B, K); ``-inf`` where p is zero."""

    @abstractmethod
    def proposal(self, name: str | None = None, temperature: float = 1.0) -> Proposal:
        """Return one of its proposals; None is the default."""

    @property
    def summation(self) -> Proposal | None:
        """Proposal of one latent: all of them, summed exactly. None: it has none."""
        return None

    def next_token(self, encoded: Any, log_w: Tensor, uniforms: Uniforms, /) -> Tensor:
        r"""Predict the next token from weighted latent histories.

        .. math::
            \hat p(x_{t+1} \mid x_{\le t}) =
            \sum_k \bar w_k \sum_{z_{t+1}} p(z_{t+1} \mid z_{k, \le t}, x_{\le t})
            \, p(x_{t+1} \mid z_{t+1}, x_{\le t})

        Optional. Where the sum over z_{t+1} has no closed form, it is estimated by
        draws.

        Args:
            encoded: Pieces that begin with that token, which is ignored; B texts with K
                histories each.
            log_w: Their log-weights in nats, shape (B, K), normalised here.
            uniforms: Random numbers, of this prediction alone, for those draws.

        Returns:
            Log-probabilities in nats, (B, number of words the model can utter).
        """
        raise ValueError(
            f"{type(self).__name__} has no next_token(encoded, log_w, uniforms), which "
            "predicts a word: it scores texts, and writes none"
        )

    def sentence_starts(self, text: str, /) -> list[int]:
        """Return where each sentence of a document begins, in characters.

        Optional, for models of sentences: the probability of a document is the product
        of theirs.
        """
        return [0]

    def describe(
        self,
        words: Sequence[str],
        latents: Any,
        decode: Callable[[Sequence[int]], str],
        /,
    ) -> Description:
        """Describe the one latent of one text for people; by its numbers by default.

        Args:
            words: The text, its end left out.
            latents: With leading axes (1, 1), on the host; their places may be more
                than there are words, by the end of the text.
            decode: Writes ids of words as a string.
        """
        codes = [part[0, 0].tolist() for part in parts_of(latents)]
        return Description(" ".join(map(str, codes)))

    def num_latents(self, num_words: int, /) -> int:
        """Return how many latents a text of so many words has, its end or not.

        Optional, for models that have an ``exact_proposal``.
        """
        raise NotImplementedError

    def log_marginal(self, words: Tensor, /) -> Tensor:
        """Sum over all latents of texts of one length, one by one.

        Optional, for models that have an ``exact_proposal``.

        Args:
            words: Word ids, with their end word or without, (B, T).

        Returns:
            Nats, (B,) float64: of a text without its end word log p of all texts that
            begin so.
        """
        raise NotImplementedError

    def load_encoder(self, directory: Path) -> Encoder | None:
        """Read from a checkpoint what cuts strings into units that are no words.

        Optional. None: its units are the words of ``tokenizer.json``.

        Raises:
            ValueError: If it is missing or damaged.
        """
        return None


class Proposal(Reader):
    """A distribution q(z | x), positive wherever p(x, z) is, that is drawn from."""

    name: str
    """Name in options."""

    @abstractmethod
    def sample(self, encoded: Any, uniforms: Uniforms, num_samples: int, /) -> Draws:
        """Draw z_1..z_K from q(. | x) by inverting distribution functions.

        The draws are a function of the random numbers alone, so that the same
        numbers give the same latents in any batch.
        """

    @abstractmethod
    def log_prob(self, encoded: Any, latents: Any, /) -> Tensor:
        """Return log q(z_k | x) in nats, (B, K) float64, of latents that p has.

        They may come from another proposal of the model. What the padding of fewer
        latents than K gets is ignored.
        """

    def beam(self, encoded: Any, width: int, score: Tensor | None = None, /) -> Beam:
        """Find up to ``width`` distinct latents; every one if they fit.

        Optional: beams and ``exact`` need it, draws do not. ``score``
        (B, K') is that of the latents of the text so far, if there is any.
        """
        raise ValueError(
            f"the proposal {self.name!r} has no beam: its latents can be drawn, and "
            "neither listed nor ranked. Use is or smc"
        )

    @property
    def left_to_right(self) -> Proposal:
        """The proposal that replaces this one where a text goes on.

        Overridden where this one reads texts to their ends and cannot stop before.
        """
        return self

    def sample_from(
        self, encoded: Any, uniforms: Uniforms, origin: Tensor, /
    ) -> tuple[Draws, Tensor]:
        """Draw what ``sample`` draws after ``State.resample(origin)``.

        Optional, from left to right. A filter resamples on the device; the host then
        waits once, for the origins and the draws together.

        Args:
            encoded: A piece after the histories that are chosen from.
            uniforms: As ``sample`` takes them.
            origin: Which of K histories each of K latents continues, (B, K), on the
                host or not.

        Returns:
            The draws, and ``origin`` on the host.
        """
        raise NotImplementedError

    def token(self, encoded: Any, t: int, after: Any, /) -> Any:
        """Cut out token t of an encoded piece, after the latents so far.

        Optional, for left-to-right draws that depend on the text ahead. Particle
        filters stop at every token: they encode a piece at once, and cut the encoding.
        """
        raise NotImplementedError

    def log_twist(self, encoded: Any, t: int, after: Any, /) -> Tensor:
        """Return the log of the twisting function before token t, nats, (B, K) float64.

        A guess of log p(tokens t and on | latents so far), up to a number that all
        latents of a text share; 0 at its end. It comes with ``token``.
        """
        raise NotImplementedError


def offers(who: Reader, method: str) -> bool:
    """Return whether a model or a proposal has an optional method."""
    defaults = [vars(base).get(method) for base in (Reader, LatentLM, Proposal)]
    return getattr(type(who), method) not in defaults
