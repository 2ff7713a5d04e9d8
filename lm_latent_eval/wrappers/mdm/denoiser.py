"""A network that predicts masked tokens, as a function from tokens to scores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

import torch
from torch import Tensor

from lm_latent_eval.devices import widened
from lm_latent_eval.memory import Room

R = TypeVar("R")

Logits: TypeAlias = Callable[[Tensor], Tensor]
"""Tokens (B, T), int64 -> scores (B, T, V) of what stands at each place."""

TABLE = 1 << 25
"""Scores (texts x places x tokens) held at a time."""
MOST_TEXTS = 64


@dataclass(frozen=True)
class Denoiser:
    """Predicts masked tokens.

    Texts are never padded: a batch has texts of one length, so a network that knows no
    attention mask is read as it should be.

    Attributes:
        logits: Scores of what stands at each place.
        mask: The token that masks.
        shift: 1 if the scores of a place are those of the token after it.
        num_scores: V.
        device: Where tokens go.
        batch_size: Texts read together; None is as many as memory allows.
        most: The most that those are.
        room: What memory was found to hold.
    """

    logits: Logits
    mask: int
    shift: int
    num_scores: int
    device: torch.device
    batch_size: int | None = None
    most: int = MOST_TEXTS
    room: Room = field(default_factory=Room)

    @torch.inference_mode()
    def log_probs(self, tokens: Tensor, places: Tensor) -> Tensor:
        """Return log p of every token at some places, (M, V) nats.

        The mask is no token that a text can have: its probability is zero, and the
        others are normalised without it.

        Args:
            tokens: (B, T), some of them the mask.
            places: (B, T), where M entries are true.

        Reference:
            Sahoo et al. (2024), section 3.2.3, "zero masking probabilities".
        """
        return self.normalised(self.scores(tokens)[places.to(self.device)])

    def scores(self, tokens: Tensor) -> Tensor:
        """Return the scores of each place at that place, (B, T, V).

        Of shifted scores the first place has none, and takes those of its own token, as
        Dream does; nothing is predicted there.
        """
        scores = self.logits(tokens.to(self.device))
        if not self.shift:
            return scores
        return torch.cat([scores[:, :1], scores[:, :-1]], dim=1)

    def normalised(self, rows: Tensor) -> Tensor:
        """Return log-probabilities of scores, (M, V), in float32 at least."""
        rows = rows.clone() if rows.dtype == torch.float64 else rows.float()
        if self.mask < self.num_scores:
            rows[:, self.mask] = -torch.inf
        return rows.log_softmax(-1)

    def size(self, length: int) -> int:
        """Return how many texts of a length are read together."""
        fitting = max(1, TABLE // (length * self.num_scores))
        return self.batch_size or min(self.most, fitting)

    def in_batches(
        self,
        number: int,
        length: int,
        work: Callable[[slice], R],
        named: Callable[[int, ValueError], ValueError],
    ) -> Iterator[tuple[slice, R]]:
        """Do work on rows of tokens, as many at a time as memory holds.

        Args:
            number: B.
            length: T.
            work: Does that of some rows.
            named: Names the text of a row in an error.

        Yields:
            Rows and what came of them.

        Raises:
            ValueError: If a row by itself does not fit.
        """

        def refusal(row: int) -> ValueError:
            return named(
                row,
                ValueError(
                    f"{length} tokens do not fit into the memory of {self.device}: "
                    "give max_length or another device"
                ),
            )

        for rows, found in self.room.in_batches(
            range(number),
            self.size(length),
            lambda rows: work(slice(rows[0], rows[-1] + 1)),
            lambda _: length,
            refusal,
        ):
            yield slice(rows[0], rows[-1] + 1), found


def probe(logits: Logits, mask: int, device: torch.device, name: str) -> int:
    """Return V, once it is seen that a prediction depends on what follows.

    Nothing of a scored text is looked at: three tokens are, of which the last is
    changed.

    Raises:
        ValueError: If it does not depend on it, or what is returned are no scores.
    """
    other = 0 if mask else 1
    ids = torch.tensor([[mask, mask, mask], [mask, mask, other]], device=device)
    with torch.inference_mode():
        scores = logits(ids)
    if scores.shape[:2] != ids.shape or scores.ndim != 3:
        raise ValueError(
            f"{name}: tokens of shape (B, T) give scores of shape (B, T, V); got "
            f"{tuple(scores.shape)} of {tuple(ids.shape)}"
        )
    one, changed = widened(scores[:, 0])
    # Rows of a batch may be rounded differently.
    if torch.allclose(one, changed, rtol=1e-6, atol=1e-7):
        raise ValueError(
            f"{name} is a causal model: it does not see the tokens that follow a mask, "
            "so it cannot unmask in any order. Use --model hf"
        )
    return int(scores.shape[-1])
