"""A model with its scoring settings, and batches of texts for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from tqdm import tqdm

from lm_latent_eval.devices import MemoryLimit
from lm_latent_eval.inference import Estimator
from lm_latent_eval.inference.importance import DECISIONS
from lm_latent_eval.inference.interface import Texts
from lm_latent_eval.inference.particles import PIECE
from lm_latent_eval.inference.streams import stream_key
from lm_latent_eval.latent import Normalization, Proposal, offers
from lm_latent_eval.models.pretrained import Pretrained
from lm_latent_eval.scoring.budget import Budget
from lm_latent_eval.scoring.options import ScoringOptions
from lm_latent_eval.scoring.texts import Text, named
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.encoder import Encoder
from lm_latent_eval.text.unknown_words import UnknownWords

T = TypeVar("T")

TABLE = 1 << 25
"""Scores (texts x tokens x words) held at a time."""


@dataclass(frozen=True)
class Evaluation:
    """Model, proposals and settings of one evaluation of texts or continuations."""

    model: Pretrained
    proposal: Proposal
    """Of whole texts: it may read them to their ends."""
    stepwise: Proposal
    """Of texts that go on: it stops where a context stops."""
    reader: Encoder
    options: ScoringOptions
    """None left open."""
    budget: Budget
    batch_size: int | None
    """Texts scored together; None is as many as memory allows."""
    max_batch_size: int
    """The most that they take."""
    quiet: bool
    """Show no progress."""
    memory: MemoryLimit = field(default_factory=MemoryLimit)

    @property
    def method(self) -> Estimator:
        """The estimator."""
        return self.budget.method

    def batches(self, texts: list[Text], num_samples: int) -> Iterator[list[Text]]:
        """Cut into batches of similar length, the longest first."""
        order = sorted(texts, key=lambda t: (-t.num_words, t.query.index))
        while order:
            longest = max(1, min(order[0].num_words, PIECE))
            size = self.batch_size or min(
                self.max_batch_size,
                max(1, DECISIONS // (longest * num_samples)),
                max(1, TABLE // (longest * self.model.config.vocab_size)),
            )
            size = int(min(size, self.memory.holds(longest)))
            # Padding at most doubles the pieces: a long text goes with long ones.
            # One of several pieces is read otherwise than one of a single piece.
            pieces = -(-order[0].num_words // PIECE)
            enough = max(pieces / 2, min(pieces, 2))
            similar = (t for t in order[:size] if -(-t.num_words // PIECE) >= enough)
            yield (batch := list(similar))
            order = order[len(batch) :]

    def fitting(
        self, texts: list[Text], work: Callable[[Sequence[Text]], T]
    ) -> Iterator[tuple[Sequence[Text], T]]:
        """Work on a batch, halving it where memory runs out.

        Later batches are as small from the beginning.

        Raises:
            ValueError: If a single text does not fit; the error names the query.
        """

        def refusal(text: Text) -> ValueError:
            return named(
                text.query,
                ValueError(
                    f"{text.num_words} words with num_samples="
                    f"{self.options.num_samples} do not fit into the memory of "
                    f"{self.model.device}: give fewer samples or another device"
                ),
            )

        def size(text: Text) -> int:
            return min(text.num_words, PIECE)

        work = torch.inference_mode()(work)
        return self.memory.in_batches(texts, len(texts), work, size, refusal)

    def collate(self, texts: Sequence[Text], *, contexts: bool = False) -> TokenBatch:
        """Return the words to be predicted, or those of the contexts, as a batch."""
        return TokenBatch.collate(
            [text.context if contexts else text.words for text in texts],
            [text.context_costs if contexts else text.word_costs for text in texts],
            first=[
                self.reader.start if contexts else self.last(text) for text in texts
            ],
            spelled=self.spelled,
            given=self.conditions(texts),
            device=self.model.device,
        )

    def whole(self, texts: Sequence[Text], purpose: str = "") -> Texts:
        """Return whole texts, with random numbers for a purpose."""
        keys = self.keys(texts, purpose)
        return Texts(self.model, self.proposal, self.collate(texts), keys)

    def going_on(
        self, texts: Sequence[Text], batch: TokenBatch, starts: Sequence[int] = ()
    ) -> Texts:
        """Return words of texts after those that they begin with, which may be none."""
        return Texts(self.model, self.stepwise, batch, self.keys(texts), starts)

    def conditions(self, texts: Sequence[Text]) -> list[tuple[int, ...]] | None:
        """Return what texts are conditional on; None: the model is not conditional."""
        found = [text.condition for text in texts if text.condition is not None]
        return found or None

    def last(self, text: Text) -> int:
        """Return the word before a continuation."""
        return text.context[-1] if text.context else self.reader.start

    @property
    def spelled(self) -> bool:
        """Whether unknown words are spelled."""
        return self.reader.policy is UnknownWords.SPELLED

    def keys(self, texts: Iterable[Text], purpose: str = "") -> list[int]:
        """Return the key of each text's random numbers."""
        return [
            stream_key(self.options.seed, f"{purpose}\0{text.name}") for text in texts
        ]

    def refuse_parts(self, what: str) -> None:
        """Raise for models that give continuations no probability.

        Raises:
            ValueError: If the model gives scores that are not normalised, or is asked
                for whole texts alone.
        """
        if self.model.why_whole is not None:
            raise ValueError(f"no probability of {what}: {self.model.why_whole}")
        if not offers(self.model, "advance"):
            raise ValueError(
                f"no probability of {what}: {type(self.model).__name__} has no "
                "advance(encoded, latents), which says where a text has got to; ask "
                "for whole texts"
            )
        if self.model.normalization is Normalization.UNNORMALISED:
            raise ValueError(
                f"an unnormalised model gives {what} no probability: it scores whole "
                "sentences, and only differences between sentences of one length mean "
                "something (contrastive entropy)"
            )

    def bar(self, total: int, unit: str) -> tqdm:
        """Return a progress bar."""
        title = f"latent likelihoods ({self.options.estimator})"
        return tqdm(total=total, desc=title, unit=f" {unit}", disable=self.quiet)
