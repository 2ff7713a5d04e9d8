"""A model with its scoring settings: batches that fit into memory, random keys."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TypeVar

import torch
from torch import Tensor
from tqdm import tqdm

from lm_latent_eval.devices import MemoryLimit
from lm_latent_eval.inference import Estimator
from lm_latent_eval.inference.importance import DECISIONS
from lm_latent_eval.inference.interface import Texts, Weighted
from lm_latent_eval.inference.particles import PIECE, Particles
from lm_latent_eval.inference.streams import stream_key
from lm_latent_eval.latent import Normalization, Proposal, offers
from lm_latent_eval.models.pretrained import Pretrained
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
    """Proposal of whole texts, which may read them to their ends."""
    stepwise: Proposal
    """Proposal of texts that continue, which stops where a context stops."""
    reader: Encoder
    options: ScoringOptions
    """Options of which none is left open."""
    method: Estimator
    """Estimator of whole texts, contexts and continuations."""
    batch_size: int | None
    """Texts scored together; None is as many as memory allows."""
    max_batch_size: int
    """Upper limit of the texts that memory allows."""
    quiet: bool
    """Whether no progress is shown."""
    memory: MemoryLimit = field(default_factory=MemoryLimit)

    def weigh(
        self,
        texts: Sequence[Text],
        purpose: str = "",
        bar: tqdm | None = None,
    ) -> Iterator[tuple[Text, Tensor]]:
        """Weigh latents of whole texts.

        Args:
            texts: Whole texts, none without words.
            purpose: Purpose of the random numbers: other purposes have others.
            bar: Progress by words.

        Yields:
            A text and its row of log-weights as the estimator reads it, nats, (K,)
            float64 on the host: all ``-inf`` where no latent that was drawn is
            possible.

        Raises:
            ValueError: If a text cannot be scored; the error names the query.
        """

        def work(batch: Sequence[Text]) -> Tensor:
            try:
                return self.method.log_weights(self.whole(batch, purpose)).cpu()
            except ValueError as err:
                if len(batch) == 1:
                    raise named(batch[0].query, err) from err
                for text in batch:  # the error is of one of them
                    work([text])
                raise

        for batch, log_w in self.in_batches(texts, work):
            if bar is not None:
                bar.update(num_words(batch))
            for text, row in zip(batch, log_w, strict=True):
                yield text, row + text.log_spacing

    def in_batches(
        self,
        texts: Sequence[Text],
        work: Callable[[Sequence[Text]], T],
    ) -> Iterator[tuple[Sequence[Text], T]]:
        """Do work on batches of similar texts, in smaller ones where memory runs out.

        Args:
            texts: The texts.
            work: The work on a batch, which can be done again.

        Yields:
            A batch and what came of it, longer texts first.

        Raises:
            ValueError: If a text by itself does not fit into memory; the error names
                the query.
        """
        work = torch.inference_mode()(work)
        return chain.from_iterable(
            self.memory.in_batches(batch, len(batch), work, _size, self._refusal)
            for batch in self._batches(texts)
        )

    def _batches(self, texts: Sequence[Text]) -> Iterator[list[Text]]:
        """Cut into batches of similar length, the longest first."""
        order = sorted(texts, key=lambda text: (-text.num_words, text.query.index))
        while order:
            longest = max(1, _size(order[0]))
            size = self.batch_size or min(
                self.max_batch_size,
                max(1, DECISIONS // (longest * self.method.num_samples)),
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

    def _refusal(self, text: Text) -> ValueError:
        return named(
            text.query,
            ValueError(
                f"{text.num_words} words with num_samples={self.options.num_samples} "
                f"do not fit into the memory of {self.model.device}: give fewer "
                "samples or another device"
            ),
        )

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

    def continued(
        self, texts: Sequence[Text], batch: TokenBatch, starts: Sequence[int] = ()
    ) -> Texts:
        """Return words that follow ``starts`` words of each text, or none."""
        return Texts(self.model, self.stepwise, batch, self.keys(texts), starts)

    def read_contexts(
        self, texts: Sequence[Text]
    ) -> tuple[Weighted, TokenBatch | None]:
        """Return the weighted latents of contexts, and the conditions of texts."""
        batch = self.collate(texts, contexts=True)
        begin = Particles.begin(len(texts), self.model.device)
        read = self.method.extend(self.continued(texts, batch), begin)
        return read, batch.given

    def conditions(self, texts: Sequence[Text]) -> list[tuple[int, ...]] | None:
        """Return what texts are conditional on; None: the model is not conditional."""
        return [t.condition for t in texts if t.condition is not None] or None

    def last(self, text: Text) -> int:
        """Return the word before a continuation."""
        return text.context[-1] if text.context else self.reader.start

    @property
    def spelled(self) -> bool:
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
        title = f"latent likelihoods ({self.options.estimator})"
        return tqdm(total=total, desc=title, unit=f" {unit}", disable=self.quiet)


def num_words(texts: Sequence[Text]) -> int:
    """Count the predicted words of texts, ends included."""
    return sum(len(text.words) for text in texts)


def _size(text: Text) -> int:
    """Return the words of a text that are read at once."""
    return min(text.num_words, PIECE)
