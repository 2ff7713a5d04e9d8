"""Causal language models of transformers: token ids in, next-token log p out.

A ``CausalReader`` reads in two ways. ``begin`` reads rows of tokens and keeps their
keys and values, so that rows can be dropped, repeated and gone on with. ``score`` reads
whole sequences in one pass each; of those of which one is the beginning of another, as
a context is of all of its options, only the longer one is read.

Other states than keys and values, as recurrent layers have, are tried out first: of
some networks transformers does not reorder them, or goes on from them to other scores.
"""

from __future__ import annotations

import copy
import inspect
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import (
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
)

from lm_latent_eval.devices import SCORES, MemoryLimit, fetched, fitting, sent, widened

PADDING = 0
AT_ONCE = 1 << 21
"""Log-probabilities of one pass held at a time; moves no number."""

Tokens = tuple[int, ...]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TokenScores:
    """Log-probabilities of tokens."""

    log_p: tuple[float, ...]
    """Log p of each token, nats."""
    greedy: tuple[bool, ...]
    """Whether each is the most probable one."""

    @property
    def total(self) -> float:
        """Log p of all of them, nats."""
        return math.fsum(self.log_p)


@dataclass(frozen=True)
class CausalReader:
    """A causal network, and how its scores become log-probabilities.

    Attributes:
        model: The network, in evaluation.
        name: Its name in error messages.
        temperature: Divides its scores: another network, then.
        wide: Whether log-probabilities are taken in the widest floating type of the
            device; else in float32, or that of the scores if it is wider.
        mixed_precision: What it computes in where that is not the type of its weights.
        memory: How much was found to fit.
    """

    model: PreTrainedModel
    name: str
    temperature: float = 1.0
    wide: bool = True
    mixed_precision: torch.dtype | None = None
    memory: MemoryLimit = field(default_factory=MemoryLimit, repr=False, compare=False)

    @property
    def device(self) -> torch.device:
        return self.model.device

    @torch.inference_mode()
    def begin(self, tokens: Tensor) -> Reading:
        """Read R rows of T tokens each, T at least 1, (R, T)."""
        keeps = _GOES_ON.get(self.model) != 0
        out = self.call(tokens, use_cache=keeps, last=1)
        cache = cache_of(out) if keeps else None
        if keeps and not goes_on_with(self, cache):
            out, cache = self.call(tokens, last=1), None
        log_p = self.log_probs(out.logits[:, -1])
        return Reading(self, log_p, cache, tokens if cache is None else None)

    def score(
        self,
        wanted: Sequence[tuple[Tokens, Tokens]],
        most: int | None = None,
        refusal: Callable[[Tokens], ValueError] | None = None,
    ) -> list[TokenScores]:
        """Score tokens after others.

        Args:
            wanted: What is given, and tokens after it; at least one of each.
            most: Sequences that are read together; None is as many as memory allows.
            refusal: What to raise if a sequence by itself does not fit into memory.

        Returns:
            Scores of the tokens.

        Raises:
            ValueError: If one sequence by itself does not fit into memory, or the
                network predicts NaN.
        """
        whole = sorted({given + tokens for given, tokens in wanted})
        # In this order what a sequence is the beginning of stands right after it.
        reader = dict[Tokens, Tokens]()
        for one, following in pairwise([*whole, ()][::-1]):
            longer = reader.get(one, one)
            begins = one[: len(following)] == following
            reader[following] = longer if begins else following
        first: dict[Tokens, int] = {}
        for given, tokens in wanted:
            longer = reader[given + tokens]
            first[longer] = min(first.get(longer, len(longer)), len(given))

        def work(sequences: Sequence[Tokens]) -> list[TokenScores]:
            return self._pass(sequences, [first[sequence] for sequence in sequences])

        scored_by_sequence: dict[Tokens, TokenScores] = {}
        for batch in self._batches(sorted(first, key=len, reverse=True), most):
            for read, scored in self.memory.in_batches(
                batch, len(batch), work, len, refusal or self._refusal
            ):
                scored_by_sequence.update(zip(read, scored, strict=True))
        scores = []
        for given, tokens in wanted:
            longer = reader[given + tokens]
            start, row = len(given) - first[longer], scored_by_sequence[longer]
            part = slice(start, start + len(tokens))
            scores.append(TokenScores(row.log_p[part], row.greedy[part]))
        return scores

    def log_probs(self, scores: Tensor) -> Tensor:
        """Return log-probabilities of a network's scores, (..., V) nats.

        Raises:
            ValueError: If they are no probabilities; some tokens may have none.
        """
        scores = widened(scores) if self.wide else floating(scores)
        if self.temperature != 1:
            scores = scores / self.temperature
        log_p = scores.log_softmax(-1)
        # Where one of a row is NaN, or infinite, all of them are NaN.
        if bool(log_p[..., 0].isnan().any()):
            raise ValueError(
                f"{self.name} gives scores that are no probabilities (NaN or "
                f"infinite), computing in {self.mixed_precision or self.model.dtype}: "
                "give dtype=float32, or check its weights"
            )
        return log_p

    def call(
        self,
        tokens: Tensor,
        *,
        past: Any = None,
        use_cache: bool = False,
        last: int | None = None,
    ) -> Any:
        """Run the network.

        Args:
            tokens: Ids, (R, T).
            past: Keys and values of the tokens before; None at the beginning.
            use_cache: Whether keys and values are returned.
            last: Number of last places with scores; None: all.
        """
        more: dict[str, Any] = {"use_cache": use_cache}
        if past is not None:
            more[cache_name(self.model)] = past
        if last is not None and last < tokens.shape[1] and self._keeps_last:
            more["logits_to_keep"] = last
        with autocast(self.device, self.mixed_precision):
            return self.model(input_ids=tokens, **more)

    @cached_property
    def _keeps_last(self) -> bool:
        """Whether the network can return the scores of the last places alone."""
        return "logits_to_keep" in inspect.signature(self.model.forward).parameters

    def _batches(
        self, sequences: list[Tokens], most: int | None
    ) -> Iterator[list[Tokens]]:
        size = self.model.config.get_text_config().vocab_size
        start = 0
        while start < len(sequences):
            size_of_batch = most or fitting(len(sequences[start]), size)
            yield sequences[start : start + size_of_batch]
            start += size_of_batch

    @torch.inference_mode()
    def _pass(
        self, sequences: Sequence[Tokens], first: Sequence[int]
    ) -> list[TokenScores]:
        """Score what follows so many first tokens of each sequence."""
        longest = max(map(len, sequences)) - 1
        padded = [[*s[:-1], *[PADDING] * (longest + 1 - len(s))] for s in sequences]
        # A causal network does not see what is padded on the right.
        logits = self.call(sent(torch.tensor(padded), self.device)).logits.flatten(0, 1)
        targets = [
            (n * longest + position - 1, sequence[position])
            for n, (sequence, start) in enumerate(zip(sequences, first, strict=True))
            for position in range(start, len(sequence))
        ]
        at, wanted = sent(torch.tensor(targets).T.contiguous(), logits.device)
        rows = max(1, AT_ONCE // logits.shape[-1])
        parts = []
        for chunk, tokens in zip(at.split(rows), wanted.split(rows), strict=True):
            scores = logits[chunk]
            log_p = self.log_probs(scores).gather(-1, tokens[:, None])[:, 0]
            parts.append((log_p, scores.argmax(-1) == tokens))
        log_p, greedy = fetched(*(torch.cat(part) for part in zip(*parts, strict=True)))
        sizes = [len(s) - start for s, start in zip(sequences, first, strict=True)]
        return [
            TokenScores(tuple(log_p[a:b].tolist()), tuple(greedy[a:b].tolist()))
            for a, b in pairwise(accumulate(sizes, initial=0))
        ]

    def _refusal(self, sequence: Tokens) -> ValueError:
        return too_long(len(sequence), self.device)


def too_long(num_tokens: int, device: torch.device) -> ValueError:
    """Return the error of a sequence that by itself does not fit into memory."""
    return ValueError(
        f"{num_tokens} tokens do not fit into the memory of {device}: give max_length "
        "or another device"
    )


@dataclass
class Reading:
    """R rows of equal length that a network has read; reading on changes them in place.

    No row is padded on its left or in its middle, so no architecture has to know of
    masks or of places. Keys and values of the tokens are kept; a network that keeps
    none, or goes wrong with what it keeps, reads them again.
    """

    reader: CausalReader
    log_p: Tensor
    """Log p of the next token, nats, (R, V)."""
    cache: Any
    """Keys and values, or None."""
    tokens: Tensor | None
    """Tokens read so far, (R, T), where there is no cache."""

    def rows(self, index: Tensor) -> Reading:
        """Return a reading of these rows; rows may repeat."""
        chosen = Reading(
            self.reader, self.log_p, copy.deepcopy(self.cache), self.tokens
        )
        chosen.keep(index)
        return chosen

    @torch.inference_mode()
    def keep(self, index: Tensor) -> None:
        """Keep these rows alone, in this order; rows may repeat."""
        self._select(index)
        self.log_p = self.log_p[index]

    @torch.inference_mode()
    def read(self, tokens: Tensor, after: Tensor | None = None) -> Tensor:
        """Read on, and return log p of what follows each token.

        Args:
            tokens: Ids, (R', n).
            after: Which of the rows each goes on from, (R',); None is all in order.

        Returns:
            Nats, (R', n, V).
        """
        if after is not None:
            self._select(after)
        if self.cache is not None:
            limit = min(_GOES_ON[self.reader.model], tokens.shape[1])
            if limit < tokens.shape[1]:
                return torch.cat([self.read(one) for one in tokens.split(limit, 1)], 1)
        length, before = tokens.shape[1], self.tokens
        if before is not None:
            tokens = self.tokens = torch.cat([before, tokens], 1)
        out = self.reader.call(
            tokens, past=self.cache, use_cache=before is None, last=length
        )
        if before is None:
            self.cache = cache_of(out)
        log_p = self.reader.log_probs(out.logits[:, -length:])
        self.log_p = log_p[:, -1]
        return log_p

    def along(self, tokens: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Read on in pieces that memory holds.

        Args:
            tokens: Ids, (R, n).

        Yields:
            A place, from 0 to n, and log p of the tokens at that place and at some
            after it, nats, (R, places, V).
        """
        yield 0, self.log_p[:, None]
        piece = max(SCORES // self.log_p.numel(), 1)
        for start in range(0, tokens.shape[1], piece):
            yield start + 1, self.read(tokens[:, start : start + piece])

    def _select(self, index: Tensor) -> None:
        if self.cache is not None:
            self.cache.reorder_cache(index)
        if self.tokens is not None:
            self.tokens = self.tokens[index]


@torch.inference_mode()
def check_causal(model: PreTrainedModel, name: str | None = None) -> None:
    """Refuse a network whose scores of a token depend on what comes after it.

    Args:
        model: The network.
        name: What errors call it; None is its class.

    Raises:
        ValueError: If it has an encoder, or reads ahead: its predictions are then no
            probabilities of sequences.
    """
    model.eval()
    name = name or type(model).__name__
    if model.config.is_encoder_decoder:
        raise ValueError(f"{name} has an encoder: give a causal language model")
    other = min(1, model.config.get_text_config().vocab_size - 1)
    ids = torch.tensor([[0, 0, 0], [0, 0, other]], device=model.device)
    one, changed = widened(model(input_ids=ids).logits[:, 0])
    if not _alike(one, changed, model.dtype):
        raise ValueError(
            f"{name} sees the tokens that follow: it is no causal language model, but "
            "one that fills masks, say (of type bert: one without is_decoder in its "
            "configuration), which latent_mdm reads"
        )


LEAST_EPSILON = 1e-5
"""Stands for that of wider types, which sums differ by more of."""
OF_SPREAD = 8
"""Epsilons of their spread by which the layers' rounding may move a place's scores,
root mean square. It was 6.5 at most of random hybrid networks of 4 to 32 layers and 50
and more tokens in 16 bits; wrong states moved them by 12 and more, or by less than 0.01
nats. What is taken for wrong is read anew, which takes longer."""


def _alike(one: Tensor, other: Tensor, dtype: torch.dtype) -> bool:
    """Whether scores, (..., V), differ by rounding alone, as those of batches may.

    That of the layers goes by the scores' spread, that of the scores by their size.
    """
    finite = one.masked_fill(one.isinf(), torch.nan)
    spread = (finite - finite.nanmean(-1, keepdim=True)).square().nanmean().sqrt()
    size = finite.square().nanmean().sqrt()
    epsilon = max(torch.finfo(dtype).eps, LEAST_EPSILON)
    # Where both are -inf, their difference is NaN.
    moved = (one - other).nan_to_num(0.0).square().mean(-1).sqrt().max()
    return not bool(moved > epsilon * (OF_SPREAD * spread + size))


MANY = 1 << 62
_GOES_ON: WeakKeyDictionary[PreTrainedModel, int] = WeakKeyDictionary()
"""Network -> the most tokens that it goes on with at once from what it keeps; 0: what
it keeps is of no use."""
TRIED = 3
"""Tokens at once that stand for any number."""


def goes_on_with(reader: CausalReader, cache: Any) -> int:
    """Return how many tokens a network goes on with at once from what it keeps.

    Keys and values are copied row by row, and looked at by place. Of everything else a
    few tokens are read, with it and anew.

    Args:
        reader: The network.
        cache: What it keeps; None is nothing.
    """
    if reader.model in _GOES_ON:
        return _GOES_ON[reader.model]
    plain = {DynamicLayer, DynamicSlidingWindowLayer}
    if not callable(getattr(cache, "reorder_cache", None)):
        limit = 0
    elif type(cache) is DynamicCache and {*map(type, cache.layers)} <= plain:
        limit = MANY
    elif not _goes_on(reader, 1):
        limit = 0
    else:
        limit = MANY if _goes_on(reader, TRIED) else 1
    if cache is not None and limit < MANY:
        logger.warning(
            "%s, going on from what it keeps of a text, fails or has other scores than "
            "for the whole text at once: %s, which takes longer",
            reader.name,
            "it is read token by token" if limit else "texts are read anew",
        )
    _GOES_ON[reader.model] = limit
    return limit


def _goes_on(reader: CausalReader, number: int) -> bool:
    """Whether a network goes on rightly with so many tokens at once, rows reordered."""
    size = reader.model.config.get_text_config().vocab_size
    order = torch.tensor([1, 0, 1], device=reader.device)
    # Rows that differ at every place, if there are two tokens.
    start = torch.arange(2, device=reader.device)[:, None]
    ids = (start + torch.arange(2 + 2 * TRIED, device=reader.device)) % size
    try:
        whole = widened(reader.call(ids[order]).logits)[:, 2:]
        cache = cache_of(reader.call(ids[:, :2], use_cache=True))
        cache.reorder_cache(order)
        parts = []
        for tokens in ids[order, 2:].split(number, 1):
            out = reader.call(tokens, past=cache, use_cache=True)
            cache = cache_of(out)
            parts.append(widened(out.logits))
    except torch.OutOfMemoryError:
        raise  # fewer rows are read then, and tried again
    except Exception:  # of transformers or a network's own code
        return False
    continued = torch.cat(parts, 1)
    dtype = reader.mixed_precision or reader.model.dtype
    return not bool(continued.isnan().any()) and _alike(whole, continued, dtype)


def autocast(device: torch.device, dtype: torch.dtype | None) -> torch.autocast:
    """Return the context in which a network computes in another type than its own."""
    return torch.autocast(device.type, dtype=dtype, enabled=dtype is not None)


def floating(scores: Tensor) -> Tensor:
    """Return scores in a type that logarithms of sums can be taken in."""
    return scores if scores.dtype == torch.float64 else scores.float()


def cache_name(model: PreTrainedModel) -> str:
    """Return what a network calls the keys and values that it is given.

    Those of transformers call them ``cache`` from 5.24 on and ``past_key_values``
    before, as code of others may for longer.
    """
    # An adapter passes them on.
    names = inspect.signature(without_adapter(model).forward).parameters
    return "cache" if "cache" in names else "past_key_values"


def without_adapter(model: PreTrainedModel) -> PreTrainedModel:
    """Return the network inside an adapter, as PEFT makes it, with its layers."""
    base = getattr(model, "get_base_model", None)
    return base() if base else model


def cache_of(out: Any) -> Any:
    """Return the keys and values that a network returns, by either name, or None."""
    returned = getattr(out, "cache", None)
    return getattr(out, "past_key_values", None) if returned is None else returned
