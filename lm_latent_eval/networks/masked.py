"""Masked language models of transformers: token ids in, log p at masks out.

A network is a function from tokens to scores, which ``MaskedReader`` reads in batches
of texts of one length. ``BlockCausal`` is one whose attention is causal over blocks:
a block's tokens see each other and all blocks before theirs, so what was read of those
is kept, and read once for everything that begins with it.

Symbols: m -> ``block_length``; token t is in block t // m.
Source of blocks: Arriola et al. (2025), "Block diffusion" (BD3LM); SDAR, generate.py of
github.com/JetAstra/SDAR, whose masks these are.
"""

from __future__ import annotations

import copy
import inspect
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, TypeVar, runtime_checkable

import torch
from torch import Tensor
from transformers import PreTrainedModel

from lm_latent_eval.devices import MOST_ROWS, MemoryLimit, fitting, widened
from lm_latent_eval.networks.causal import autocast, cache_name, cache_of, too_long

R = TypeVar("R")

Logits: TypeAlias = Callable[[Tensor], Tensor]
"""Tokens (B, T), int64 -> scores (B, T, V) of what stands at each place."""


@runtime_checkable
class ReadsOn(Protocol):
    """A network with a cache of a text's beginning."""

    def __call__(self, tokens: Tensor, /) -> Tensor:
        """Return the scores of each place, (B, T, V)."""
        ...

    def read_on(self, tokens: Tensor, first: int) -> Tensor:
        """Return scores from the place before ``first`` on, (B, 1 + T - first, V)."""
        ...


@dataclass(frozen=True)
class MaskedReader:
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
        memory: How much was found to fit.
        mask_is_word: Whether the mask has a probability, as in LLaDA's program.
    """

    logits: Logits | ReadsOn
    mask: int
    shift: int
    num_scores: int
    device: torch.device
    batch_size: int | None = None
    most: int = MOST_ROWS
    memory: MemoryLimit = field(default_factory=MemoryLimit)
    mask_is_word: bool = False

    @torch.inference_mode()
    def log_probs(self, tokens: Tensor, places: Tensor, first: int = 0) -> Tensor:
        """Return log p of every token at some places, (M, V) nats.

        The mask is no token that a text can have: its probability is zero, and the
        others are normalised without it.

        Args:
            tokens: (B, T), some of them the mask.
            places: (B, T), where M entries are true, all from ``first`` on.
            first: Where what is read anew begins, if the network keeps the rest.

        Reference:
            Sahoo et al. (2024), section 3.2.3, "zero masking probabilities".
        """
        where = places[:, first:].to(self.device)
        return self.normalised(self.scores(tokens, first)[where])

    def scores(self, tokens: Tensor, first: int = 0) -> Tensor:
        """Return the scores of each place at that place, (B, T - first, V).

        Of shifted scores the first place has none, and takes those of its own token, as
        Dream does; nothing is predicted there.
        """
        tokens = tokens.to(self.device)
        if first and isinstance(self.logits, ReadsOn):
            scores = self.logits.read_on(tokens, first)
            return scores[:, :-1] if self.shift else scores[:, 1:]
        whole = self.logits(tokens)
        if not self.shift:
            return whole[:, first:]
        begin = max(first, 1)
        return torch.cat([whole[:, begin - 1 : begin], whole[:, first:-1]], dim=1)

    def normalised(self, rows: Tensor) -> Tensor:
        """Return log-probabilities of scores, (M, V), in float32 at least."""
        rows = rows.clone() if rows.dtype == torch.float64 else rows.float()
        if self.mask < self.num_scores and not self.mask_is_word:
            rows[:, self.mask] = -torch.inf
        return rows.log_softmax(-1)

    def size(self, length: int) -> int:
        """Return how many texts of a length are read together."""
        return self.batch_size or fitting(length, self.num_scores, self.most)

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
            return named(row, too_long(length, self.device))

        for rows, found in self.memory.in_batches(
            range(number),
            self.size(length),
            lambda rows: work(slice(rows[0], rows[-1] + 1)),
            lambda _: length,
            refusal,
        ):
            yield slice(rows[0], rows[-1] + 1), found


def probe(
    logits: Logits, mask: int, device: torch.device, name: str, *, alone: bool = False
) -> int:
    """Check that predictions depend on the tokens that follow; return V.

    It reads three tokens, of no scored text, and changes the second one, which a block
    of two has as well.

    Args:
        logits: The network.
        mask: The token that masks.
        device: Where tokens go.
        name: Of the network, for errors.
        alone: Whether a token is a block of its own, which sees none that follow.

    Raises:
        ValueError: If it does not depend on it, or what is returned are no scores.
    """
    other = 0 if mask else 1
    ids = torch.tensor([[mask, mask, mask], [mask, other, mask]], device=device)
    with torch.inference_mode():
        scores = logits(ids)
    if scores.shape[:2] != ids.shape or scores.ndim != 3:
        raise ValueError(
            f"{name}: tokens of shape (B, T) give scores of shape (B, T, V); got "
            f"{tuple(scores.shape)} of {tuple(ids.shape)}"
        )
    one, changed = widened(scores[:, 0])
    # Rows of a batch may be rounded differently.
    if not alone and torch.allclose(one, changed, rtol=1e-6, atol=1e-7):
        raise ValueError(
            f"{name} is a causal model: it does not see the tokens that follow a mask, "
            "so it cannot unmask in any order. Use --model hf"
        )
    return int(scores.shape[-1])


def scores_of(model: PreTrainedModel, mixed_precision: torch.dtype | None) -> Logits:
    """Return a network as a function; if it takes a time, that is zero.

    What an order needs, p(x_i | revealed), is that of no time (Ou et al., 2024), and
    published MDLM checkpoints do not look at it.

    Raises:
        ValueError: If this one does.
    """
    parameters = inspect.signature(model.forward).parameters
    timed = "timesteps" in parameters
    if timed and getattr(model.config, "time_conditioning", False):
        raise ValueError(
            "time_conditioning: the network's scores depend on a time that orders of "
            "unmasking do not have, so it has no likelihood by them"
        )

    # BD3LM masks its own attention, over blocks of its own length, where it is told to
    # sample; else it takes a text and its masked copy side by side, as in training.
    more = {"sample_mode": True} if "sample_mode" in parameters else {}

    def logits(tokens: Tensor) -> Tensor:
        time = {"timesteps": torch.zeros(len(tokens), device=tokens.device)}
        with autocast(tokens.device, mixed_precision):
            scores: Tensor = model(
                input_ids=tokens, **(time if timed else {}), **more
            ).logits
        return scores

    return logits


KEPT = 64
"""Beginnings of texts whose keys and values are kept."""

Tokens = tuple[int, ...]


@dataclass
class BlockCausal:
    """Reads a decoder of transformers that takes an attention mask of four dimensions.

    Attributes:
        model: The network.
        block_length: m.
        mixed_precision: What it computes in where that is not the type of its weights.
        as_truth: Whether the mask says what is seen, as SDAR's code wants it; else it
            is added to attention's scores, as transformers has it.
        more: What else the network is called with.
    """

    model: PreTrainedModel
    block_length: int
    mixed_precision: torch.dtype | None = None
    as_truth: bool = False
    more: dict[str, Any] = field(default_factory=dict)
    _kept: OrderedDict[Tokens, tuple[Any, Tensor]] = field(
        default_factory=OrderedDict, repr=False
    )

    def __call__(self, tokens: Tensor) -> Tensor:
        """Return the scores of a first block, (B, T, V)."""
        scores: Tensor = self._read(tokens, None).logits
        return scores

    def read_on(self, tokens: Tensor, first: int) -> Tensor:
        """Return the scores of the last block, and of the place before it.

        Args:
            tokens: (B, T), of which the last block begins at ``first``.
            first: Above 0.

        Returns:
            (B, 1 + T - first, V).
        """
        prefixes, which = torch.unique(tokens[:, :first], dim=0, return_inverse=True)
        parts: list[Tensor] = []
        order = which.argsort(stable=True)
        for n, prefix in enumerate(prefixes.tolist()):
            block = tokens[which == n, first:]
            cache, last = self._prefix(tuple(prefix))
            own = copy.deepcopy(cache)
            own.reorder_cache(torch.zeros(len(block), dtype=torch.long))
            scores = self._read(block, own).logits
            parts.append(torch.cat([last.expand(len(block), 1, -1), scores], 1))
        return torch.cat(parts)[order.argsort()]

    def _prefix(self, tokens: Tokens) -> tuple[Any, Tensor]:
        """Return keys and values of whole blocks, and the last place's scores."""
        if tokens in self._kept:
            self._kept.move_to_end(tokens)
            return self._kept[tokens]
        begun = tokens[: -self.block_length]
        cache = copy.deepcopy(self._kept[begun][0]) if begun in self._kept else None
        rest = tokens[len(begun) :] if cache is not None else tokens
        out = self._read(torch.tensor([rest], device=self.model.device), cache)
        # A copy: a view would keep the scores of all places alive.
        self._kept[tokens] = cache_of(out), out.logits[0, -1].clone()
        if len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return self._kept[tokens]

    def _read(self, tokens: Tensor, cache: Any) -> Any:
        """Read on after what a cache holds, which then holds these as well."""
        before = 0 if cache is None else cache.get_seq_length()
        position = torch.arange(before + tokens.shape[1], device=tokens.device)
        block = position // self.block_length
        if cache is None and tokens.shape[1] <= self.block_length:
            block = torch.zeros_like(block)
        sees = block[None] <= block[before:, None]
        mask = sees
        if not self.as_truth:
            dtype = self.mixed_precision or self.model.dtype
            mask = torch.zeros(sees.shape, dtype=dtype, device=sees.device)
            mask = mask.masked_fill(~sees, torch.finfo(dtype).min)
        with autocast(tokens.device, self.mixed_precision):
            return self.model(
                input_ids=tokens,
                attention_mask=mask.expand(len(tokens), 1, -1, -1),
                position_ids=position[before:].expand(len(tokens), -1),
                use_cache=True,
                **{cache_name(self.model): cache},
                **self.more,
            )
