"""The lattice of segmentations of a string.

A node is a number of written bytes; an edge is a token that writes the next ones. A
path ends where all is written. A path of a prefix also ends with a token that writes
the rest and more, so the probability of a prefix is that of all texts that begin with
it, each counted once:

    prefix(s) = end(s) + sum_b prefix(s b) + lost(s)

where end(s) is followed by the end token, b is a byte, and lost(s) is what the network
gives, after a segmentation of s, to tokens that cannot enter one. A path of a whole
word ends with a token that writes the rest, if there is any, and then white space, or
with an end.

Source: Vieira et al. (2024) for prefixes ("covering" tokens).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from lm_latent_eval.wrappers.tokens.vocabulary import ByteVocabulary

BEGIN = -1
"""Node before the first token of a text, which may write nothing."""
OVERRUN = -1
"""Stand-in for all tokens that overrun the string."""


@dataclass(frozen=True)
class SegmentationLattice:
    """All segmentations of a string.

    Raises:
        ValueError: If there is none.
    """

    vocabulary: ByteVocabulary = field(compare=False, repr=False)
    target: bytes
    begins: bool = True
    """Whether a text begins here, rather than continuing other tokens."""
    overruns: bool = False
    """Whether the last token may overrun the string, as for a prefix."""
    borders: tuple[int, ...] = ()
    """Tokens of which one follows the string: white space and ends, as for a whole
    word; the last token may write a part of the word and white space as well. Empty:
    the string may end anywhere."""
    end: tuple[int, ...] = ()
    """Tokens that follow the string: the end token, or none."""
    fixed: dict[int, tuple[int, int]] = field(default_factory=dict, compare=False)
    """Position of a special token in the string -> the token, and its end."""

    def __post_init__(self) -> None:
        if self.start not in self.fewest:
            far = max(self._reached)
            raise ValueError(
                f"no sequence of tokens writes byte {max(far, 0)} of "
                f"{self.target[:60]!r}: the vocabulary has nothing for it"
            )

    @property
    def start(self) -> int:
        return BEGIN if self.begins else 0

    @property
    def final(self) -> int:
        return len(self.target) + len(self.end) + bool(self.borders)

    def ends(self, node: int) -> bool:
        return max(node, 0) == self.final

    @cached_property
    def _reached(self) -> dict[int, list[tuple[int, int]]]:
        """Reachable nodes, in order -> tokens and nodes after each."""
        reached: dict[int, list[tuple[int, int]]] = {}
        waiting = {self.start}
        while waiting:
            node = min(waiting)
            waiting.remove(node)
            reached[node] = self._from(node)
            waiting |= {after for _, after in reached[node]} - reached.keys()
        return reached

    def _from(self, node: int) -> list[tuple[int, int]]:
        position, size = max(node, 0), len(self.target)
        if position >= size and node != BEGIN:
            past = node - size
            return [(self.end[past], node + 1)] if past < len(self.end) else []
        if position in self.fixed:
            return [self.fixed[position]]
        stop = min((mark for mark in self.fixed if mark > position), default=size)
        table = self.vocabulary.first if node == BEGIN else self.vocabulary.later
        return [*table.within(self.target, position, stop)] + (
            # The empty text.
            [(self.end[0], 1)] if node == BEGIN and not size and self.end else []
        )

    def overrun(self, node: int) -> list[int]:
        """Tokens that write the rest after a node and more, if allowed."""
        rest = self.target[max(node, 0) :]
        if not rest:
            return [*self.borders]
        if not (self.overruns or self.borders):
            return []
        if any(mark >= max(node, 0) for mark in self.fixed):
            return []
        table = self.vocabulary.first if node == BEGIN else self.vocabulary.later
        tokens = table.beyond(rest)
        if self.borders:
            tokens = [t for t in tokens if table.has_space(t, len(rest))]
        return tokens

    @cached_property
    def fewest(self) -> dict[int, int]:
        """Node -> smallest number of tokens of a path from it."""
        counts: dict[int, int] = {}
        for node in reversed(self._reached):
            after = [counts[j] for _, j in self._reached[node] if j in counts]
            if self.ends(node):
                counts[node] = 0
            elif self.overrun(node):
                counts[node] = 1
            elif after:
                counts[node] = 1 + min(after)
        return counts

    def onward(self, node: int) -> list[tuple[int, int]]:
        """Tokens and nodes after a node, on paths that end."""
        return [(t, j) for t, j in self._reached.get(node, ()) if j in self.fewest]

    @cached_property
    def longest(self) -> int:
        """Largest number of tokens of a path."""
        counts: dict[int, int] = {}
        for node in sorted(self.fewest, reverse=True):
            after = [1 + counts[j] for _, j in self.onward(node)]
            counts[node] = max([*after, int(bool(self.overrun(node)))])
        return counts[self.start]

    @cached_property
    def num_prefixes(self) -> int:
        """Number of distinct beginnings of paths that a network reads."""
        ways = dict.fromkeys(self.fewest, 0)
        ways[self.start] = 1
        for node in sorted(self.fewest):
            for _, after in self.onward(node):
                ways[after] += ways[node]
        return sum(ways.values()) - ways.get(self.final, 0) * (self.final > 0)

    @cached_property
    def fewest_tokens(self) -> tuple[int, ...]:
        """Path of the fewest tokens; not for a prefix."""
        tokens, node = [], self.start
        while not self.ends(node):
            token, node = min(self.onward(node), key=lambda edge: self.fewest[edge[1]])
            tokens.append(token)
        return tuple(tokens)

    def nodes(self, tokens: Sequence[int]) -> list[int]:
        """Node after each token of a path.

        Raises:
            ValueError: If it is no path.
        """
        path, node = [], self.start
        for token in tokens:
            after = dict(self.onward(node))
            if self.overrun(node):
                after[OVERRUN] = self.final
            if token not in after:
                raise ValueError(f"{[*tokens]} is no segmentation of {self.target!r}")
            node = after[token]
            path.append(node)
        return path
