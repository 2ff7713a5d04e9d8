"""What canonical segmentations score, in one pass each, as under ``--model hf``.

Of sequences that begin alike and of which one is the beginning of the other, as a
context is of all of its options, only the longer one is read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from lm_latent_eval.memory import Room
from lm_latent_eval.wrappers.network import Network
from lm_latent_eval.wrappers.tokens.reading import call, check_finite, floating

PADDING = 0
MOST_SEQUENCES = 64
TABLE = 1 << 25
"""Scores (sequences x tokens x vocabulary) held at a time, where no batch size is."""

Tokens = tuple[int, ...]


@dataclass(frozen=True)
class TokenScores:
    """What a network makes of tokens."""

    log_p: tuple[float, ...]
    """Of each, nats."""
    greedy: tuple[bool, ...]
    """Whether each is the most probable one."""

    @property
    def total(self) -> float:
        """Log p of all of them, nats."""
        return math.fsum(self.log_p)


def score(
    network: Network,
    wanted: Sequence[tuple[Tokens, Tokens]],
    most: int | None,
    room: Room,
) -> list[TokenScores]:
    """Score tokens after what is given.

    Args:
        network: What gives tokens their probability.
        wanted: What is given, and tokens after it; at least one of each.
        most: Sequences that are read together; None is as many as memory allows.
        room: What memory was found to hold.

    Returns:
        Scores of the tokens.

    Raises:
        ValueError: If one sequence by itself does not fit into memory.
    """
    whole = sorted({given + tokens for given, tokens in wanted})
    # In this order what a sequence is the beginning of stands right after it.
    reader = dict[Tokens, Tokens]()
    for one, following in pairwise([*whole, ()][::-1]):
        longer = reader.get(one, one)
        reader[following] = longer if one[: len(following)] == following else following
    first: dict[Tokens, int] = {}
    for given, tokens in wanted:
        longer = reader[given + tokens]
        first[longer] = min(first.get(longer, len(longer)), len(given))

    def work(sequences: Sequence[Tokens]) -> list[TokenScores]:
        return list(_pass(network, sequences, first))

    def refusal(sequence: Tokens) -> ValueError:
        return ValueError(
            f"{len(sequence)} tokens do not fit into the memory of {network.device}: "
            "give max_length or another device"
        )

    found: dict[Tokens, TokenScores] = {}
    for batch in _batches(network, sorted(first, key=len, reverse=True), most):
        for read, scored in room.in_batches(batch, len(batch), work, len, refusal):
            found.update(zip(read, scored, strict=True))
    scores = []
    for given, tokens in wanted:
        longer = reader[given + tokens]
        start, whole_row = len(given) - first[longer], found[longer]
        part = slice(start, start + len(tokens))
        scores.append(TokenScores(whole_row.log_p[part], whole_row.greedy[part]))
    return scores


def _batches(
    network: Network, sequences: list[Tokens], most: int | None
) -> Iterator[list[Tokens]]:
    size = network.model.config.get_text_config().vocab_size
    while sequences:
        fit = max(1, min(MOST_SEQUENCES, TABLE // (len(sequences[0]) * size)))
        yield sequences[: most or fit]
        sequences = sequences[most or fit :]


@torch.inference_mode()
def _pass(
    network: Network, sequences: Sequence[Tokens], first: dict[Tokens, int]
) -> Iterator[TokenScores]:
    """Yield scores of what follows the first tokens of each sequence."""
    longest = max(map(len, sequences)) - 1
    padded = [[*s[:-1], *[PADDING] * (longest + 1 - len(s))] for s in sequences]
    # A causal network does not see what is padded on the right.
    logits = call(network, torch.tensor(padded, device=network.device)).logits
    for sequence, row in zip(sequences, logits, strict=True):
        start = first[sequence]
        after = floating(row[start - 1 : len(sequence) - 1])
        wanted = torch.tensor(sequence[start:], device=after.device)
        check_finite(network, after.logsumexp(-1))
        log_p = after.log_softmax(-1).gather(-1, wanted[:, None])[:, 0]
        greedy = after.argmax(-1) == wanted
        yield TokenScores(tuple(log_p.tolist()), tuple(greedy.tolist()))


__all__ = ["TokenScores", "score"]
