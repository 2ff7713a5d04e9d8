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
    """Replace ids that a model cannot utter by that of the unknown word."""
    return ids.masked_fill(ids >= vocab_size, UNKNOWN)


def excluding(scores: Tensor, words: Sequence[int]) -> Tensor:
    """Return scores of words, (..., V), that are ``-inf`` of some."""
    there = sent(torch.tensor(words).long(), scores.device)
    return scores.index_fill(-1, there, -torch.inf)


@dataclass(frozen=True)
class TokenBatch:
    """B pieces of text, padded to T tokens.

    Ids below the model's vocabulary size are words that it can utter; higher ones
    are words that it can only copy.
    """

    inputs: Tensor
    """The token before each target, (B, T)."""
    targets: Tensor
    """The tokens to be predicted, (B, T)."""
    length: Tensor
    """Targets of each text, (B,)."""
    unknown_log_prob: Tensor
    """Log-probability of an unknown word beside p(unknown), nats, (B, T), float64."""
    spelled: bool = False
    """Whether that cost is the spelling of this very word. Then uttering it unknown and
    copying it are two ways to write it, and add up; else the unknown word stands for
    the words that cannot be copied."""
    collated: tuple[Tensor, Tensor] | None = None
    """Targets and lengths on the host, where the batch was made there; None where other
    targets take their place."""
    given: TokenBatch | None = None
    """The texts that texts are conditional on, whole: x of p(y, z | x); None: none."""
    further: TokenBatch | None = None
    """Of pieces: these and some more tokens of each text, for what reads ahead; None:
    nothing follows, or it is not to be read."""

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
            unknown_log_probs: One number a token; default 0.
            first: The id of the token that stands before every text, or before each.
            spelled: Whether those numbers are spellings of the words themselves.
            given: Token ids that each text is conditional on, if any are.
            device: Where the batch goes.
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
        """Return tokens ``start`` .. ``end - 1`` of every text that has them.

        Args:
            start: The first.
            end: The one after the last.
            ahead: How many tokens after those may be looked at.
        """
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
        """Pick texts, by their numbers on the host."""
        there = sent(index, self.length.device)
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
        """Return the targets of a model that copies nothing, and their costs.

        Args:
            vocab_size: How many ids it can utter; to it the others are unknown words.

        Returns:
            Ids, and what they cost on top of their probability, 0 but of unknown words,
            nats, (B, T) each.
        """
        words = known_ids(self.targets, vocab_size)
        return words, self.unknown_log_prob.masked_fill(words != UNKNOWN, 0.0)

    @cached_property
    def on_host(self) -> tuple[Tensor, Tensor]:
        """Targets and lengths, for which a device is waited for once if at all."""
        targets, length = self.collated or fetched(self.targets, self.length)
        return targets, length

    @property
    def inside_on_host(self) -> Tensor:
        """The same as ``inside``, on the host."""
        targets, length = self.on_host
        return torch.arange(targets.shape[1]) < length[:, None]

    @property
    def inside(self) -> Tensor:
        """Which places hold a token, (B, T) bool."""
        places = torch.arange(self.targets.shape[1], device=self.length.device)
        return places < self.length[:, None]
