"""Batches of tokens for left-to-right models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from lm_latent_eval.devices import fetched, sent
from lm_latent_eval.text.words import UNKNOWN


def known_ids(ids: Tensor, vocab_size: int) -> Tensor:
    """Ids with those outside the model's vocabulary replaced by the unknown word."""
    return ids.masked_fill(ids >= vocab_size, UNKNOWN)


def excluding(scores: Tensor, words: Sequence[int]) -> Tensor:
    """Scores of words, (..., V), with ``-inf`` for given ones."""
    index = sent(torch.tensor(words).long(), scores.device)
    return scores.index_fill(-1, index, -torch.inf)


@dataclass(frozen=True)
class TokenBatch:
    """B pieces of text, padded to T tokens.

    Ids below the model's vocabulary size are words that it can predict; higher ones
    are words that it can only copy.
    """

    inputs: Tensor
    """The token before each target, (B, T)."""
    targets: Tensor
    """The tokens to be predicted, (B, T)."""
    length: Tensor
    """Number of targets of each text, (B,)."""
    unknown_log_prob: Tensor
    """Log-probability of an unknown word besides p(unknown), nats, (B, T), float64."""
    spelled: bool = False
    """Whether that cost is the spelling of the word itself. If so, predicting the
    unknown word and copying are two ways to write the word, and add up; otherwise the
    unknown word stands for words that cannot be copied."""
    collated: tuple[Tensor, Tensor] | None = None
    """Targets and lengths on the host, if the batch was made there; None if targets
    were replaced."""
    given: TokenBatch | None = None
    """Condition of each text, whole: x of p(y, z | x); None: none."""
    further: TokenBatch | None = None
    """The piece with further tokens of each text, for look-ahead; None: no
    look-ahead."""

    @classmethod
    def collate(
        cls,
        texts: Sequence[Sequence[int]],
        unknown_log_probs: Sequence[Sequence[float]] | None = None,
        *,
        first: int | Sequence[int],
        spelled: bool = False,
        given: Sequence[Sequence[int]] | None = None,
        device: torch.device | str = "cpu",
    ) -> TokenBatch:
        """Pad texts of different lengths.

        Args:
            texts: Token ids to predict, one list a text.
            unknown_log_probs: Cost of each token; default 0.
            first: Id of the token before every text, or before each.
            spelled: Whether costs are spellings of the words themselves.
            given: Token ids that each text is conditional on, if any.
            device: Device of the batch.
        """
        num_tokens = max((len(text) for text in texts), default=0) or 1
        targets = torch.zeros(len(texts), num_tokens, dtype=torch.long)
        cost = torch.zeros(len(texts), num_tokens, dtype=torch.float64)
        for b, text in enumerate(texts):
            targets[b, : len(text)] = torch.tensor(text, dtype=torch.long)
            if unknown_log_probs is not None:
                cost[b, : len(text)] = torch.tensor(
                    unknown_log_probs[b], dtype=torch.float64
                )
        inputs = targets.roll(1, 1)
        inputs[:, 0] = torch.tensor(first, dtype=torch.long)
        length = torch.tensor([len(text) for text in texts], dtype=torch.long)
        return cls(
            sent(inputs, device),
            sent(targets, device),
            sent(length, device),
            sent(cost, device),
            spelled,
            (targets, length),
            None if given is None else cls.collate(given, first=first, device=device),
        )

    def piece(self, start: int, end: int, ahead: int = 0) -> TokenBatch:
        """Tokens ``start`` .. ``end - 1`` of every text, and ``ahead`` further ones."""
        more = ahead > 0 and end < self.targets.shape[1]

        def cut(targets: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
            left = (length - start).clamp(0, max(end - start, 0))
            return targets[:, start:end], left

        return TokenBatch(
            self.inputs[:, start:end],
            *cut(self.targets, self.length),
            self.unknown_log_prob[:, start:end],
            self.spelled,
            self.collated and cut(*self.collated),
            self.given,
            self.piece(start, end + ahead) if more else None,
        )

    def select(self, index: Tensor) -> TokenBatch:
        """Pick texts, by indices on the host."""
        there = sent(index, self.length.device)  # indices on the device
        return TokenBatch(
            self.inputs[there],
            self.targets[there],
            self.length[there],
            self.unknown_log_prob[there],
            self.spelled,
            self.collated and (self.collated[0][index], self.collated[1][index]),
            self.given and self.given.select(index),
            self.further and self.further.select(index),
        )

    def uttered(self, vocab_size: int) -> tuple[Tensor, Tensor]:
        """Targets and their costs for a model that copies nothing.

        Args:
            vocab_size: Size of its vocabulary; other ids are unknown words.

        Returns:
            Ids, and costs besides their probability, 0 except for unknown words, in
            nats, (B, T) each.
        """
        words = known_ids(self.targets, vocab_size)
        return words, self.unknown_log_prob.masked_fill(words != UNKNOWN, 0.0)

    @cached_property
    def on_host(self) -> tuple[Tensor, Tensor]:
        """Targets and lengths on the host, in one wait."""
        targets, length = self.collated or fetched(self.targets, self.length)
        return targets, length

    @property
    def inside_on_host(self) -> Tensor:
        """Mask of positions that hold a token, on the host, (B, T)."""
        targets, length = self.on_host
        return torch.arange(targets.shape[1]) < length[:, None]

    @property
    def inside(self) -> Tensor:
        """Mask of positions that hold a token, (B, T)."""
        positions = torch.arange(self.targets.shape[1], device=self.length.device)
        return positions < self.length[:, None]
